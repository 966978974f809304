"""A rank's excerpt against a trace whose numbers are known, and against counting each nanosecond."""

import random
from collections import Counter

from tests.page.made_trace import MadeTrace

from phantora_ns.page.excerpt import SHORT_OPERATORS, excerpt


def test_every_nanosecond_of_a_step_has_one_owner(tmp_path):
    """Against the naive way: look at each nanosecond."""
    random.seed(3)
    made = MadeTrace()
    made.step(0, 0, 2000)
    spans = []
    for stream in (7, 9):
        at = random.randrange(100)
        while at < 1900:
            end = min(2000, at + random.randrange(5, 200))
            made.kernel("ampere_gemm", at, end, launched=0, stream=stream)
            spans.append(("compute", at, end))
            at = end + random.randrange(0, 150)
    at = 50
    while at < 1800:
        end = at + random.randrange(20, 300)
        made.collective("all_gather", at, end, 0, 2)
        spans.append(("exposed", at, end))
        at = end + random.randrange(1, 100)
    found = excerpt(made.write(tmp_path / "rank-0.json.gz"))
    (step,) = found["steps"]
    naive = Counter()
    for ns in range(2000):
        running = {kind for kind, begin, end in spans if begin <= ns < end}
        naive["compute" if "compute" in running else "exposed" if running else "idle"] += 1
    for group in ("compute", "exposed", "idle"):
        assert sum(step[group].values()) == naive[group]
    assert set(step["compute"]) == {"gemm"} and set(step["exposed"]) == {"all_gather"}


def test_kernels_are_added_up_by_name_and_source(tmp_path):
    made = MadeTrace()
    made.step(0, 0, 1000)
    made.kernel("gemm_a", 10, 110, launched=1, source=0)
    made.kernel("gemm_a", 200, 300, launched=2, source=0)
    made.kernel("gemm_a", 400, 450, launched=3, source=7)
    rows = excerpt(made.write(tmp_path / "rank-0.json.gz"))["kernels"]
    assert [(row["count"], row["gpu_ns"], row["source"]) for row in rows] == [
        (2, 200, "exact"),
        (1, 50, "guess"),
    ]


def test_a_row_for_each_stream_and_thread(tmp_path):
    made = MadeTrace()
    made.step(0, 0, 900_000)
    made.kernel("gemm_a", 10, 110, launched=1)
    made.collective("all_reduce", 200, 300, 0, 2)
    made.host("outer", 0, 400_000)
    made.host("inner", 10, 100)
    for number in range(5):
        made.host(f"small {number}", 500_000 + 2000 * number, 501_000 + 2000 * number)
    rows = {row["row"]: row["spans"] for row in excerpt(made.write(tmp_path / "a.gz"))["rows"]}
    assert rows["stream 7"] == [(10, 100, "gemm|gemm_a in outer")]
    assert rows["stream 20 (NCCL)"] == [(200, 100, "communication|all_reduce")]
    assert rows["host thread 0"] == [
        (0, 400_000, "operator|outer"),
        (500_000, 9000, SHORT_OPERATORS),
    ]
