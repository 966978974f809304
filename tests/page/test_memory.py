"""What held a peak: the parts add up to it, and go to the operators that were running."""

import random

import pytest
from tests.page.made_trace import MadeTrace

from phantora_ns.page.excerpt import excerpt
from phantora_ns.page.memory import MOST_POINTS, OUTSIDE, shown


def made(tmp_path, *records, spans=(), step=(0, 10_000)):
    trace = MadeTrace()
    trace.step(0, *step)
    trace.kernel("gemm_a", step[0] + 1, step[0] + 2, launched=step[0])
    for name, begin, end in spans:
        trace.host(name, begin, end)
    for record in records:
        trace.memory(*record)
    return excerpt(trace.write(tmp_path / "rank-0.json.gz"))["memory"]


def test_the_outermost_operator_gets_what_was_added_in_it(tmp_path):
    found = made(
        tmp_path,
        (500, 100, 100),  # before the step
        (1200, 400, 400, "aten::empty"),
        (1500, 300, 400, ""),  # at the begin of the next operator: something was freed before
        (1600, 900, 950, "aten::mm"),  # and 50 more were there in between
        spans=[("aten::linear", 1100, 1300), ("aten::matmul", 1500, 1600)],
        step=(1000, 2000),
    )
    peak = found["peak"]
    assert (peak["bytes"], peak["at_ns"], peak["step"]) == (950, 1600, 0)
    assert (peak["held_bytes"], peak["operator"]) == (100, "aten::matmul")
    assert sorted(map(tuple, peak["added"])) == sorted(
        [
            ("aten::matmul", 600),
            ("aten::linear", 300),
            (OUTSIDE, -100),
            ("within aten::matmul", 50),
        ]
    )


@pytest.mark.parametrize("seed", range(5))
def test_parts_add_up_to_the_peak(tmp_path, seed):
    random.seed(seed)
    allocated = peak = 0
    records, highest = [], 0
    for at in range(0, 10_000, 3):
        allocated = max(0, allocated + random.randrange(-900, 1000))
        peak = max(peak, allocated + random.randrange(0, 50))
        highest = max(highest, allocated)
        records.append((at, allocated, peak, f"op {random.randrange(30)}"))
    found = made(tmp_path, *records, step=(4000, 10_000))
    held = found["peak"]["held_bytes"]
    assert held + sum(count for _, count in found["peak"]["added"]) == peak
    assert len(found["points"]) <= MOST_POINTS * 1.01
    assert max(point[1] for point in found["points"]) == highest
    times = [point[0] for point in found["points"]]
    assert times == sorted(times)


def test_a_trace_without_memory_says_nothing(tmp_path):
    assert made(tmp_path) is None and shown([(0, None)]) is None


def test_the_rank_with_the_highest_peak_is_shown():
    ranks = [(rank, {"peak": {"bytes": size}}) for rank, size in ((0, 5), (1, 9), (2, 9))]
    assert shown(ranks)["rank"] == 1
