"""Traces of real steps: reduced to a row per kernel, packed, and taken apart line by line."""

import gzip
import json

import pytest

pytest.importorskip("torch")

from bench.gpus import decompose, traces, visit  # noqa: E402
from bench.gpus.steps import Kernel, Spans, Step, waited  # noqa: E402
from bench.gpus.summary import Samples  # noqa: E402

BASE = 1_790_857_026_000_000_000
BEGIN = BASE + 2_000_000


def event(cat, name, us, duration, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": us, "dur": duration, "args": args}


def test_a_row_per_kernel_of_the_kept_step():
    content = {
        "baseTimeNanoseconds": BASE,
        "traceEvents": [
            event("kernel", "of the step before", 1999.0, 5.0, stream=7, correlation=1),
            event("cuda_runtime", "cudaLaunchKernel", 2001.5, 4.0, correlation=2),
            event("kernel", "gemm", 2010.25, 100.125, stream=7, correlation=2, grid=[2, 66, 1]),
            event("kernel", "ncclDevKernel_AllGather", 2003.0, 9.0, stream=24, grid=[24, 1, 1]),
            event("cpu_op", "aten::mm", 2000.0, 1.0),
        ],
    }
    assert traces.reduced(content, BEGIN) == {
        "names": ["gemm", "ncclDevKernel_AllGather x24"],
        "rows": [[1, 24, 3000, 9000, None], [0, 7, 10250, 100125, 1500]],
        "events": 5,
    }


def test_members_of_a_ranks_file_read_as_one(tmp_path):
    for part in ("a", "b"):
        traces.append(tmp_path, 3, {"part": part})
    with gzip.open(tmp_path / "trace-rank3.jsonl.gz", "rt") as file:
        assert [json.loads(line)["part"] for line in file] == ["a", "b"]


def test_power_is_the_energy_between_two_changes_of_the_counter(tmp_path):
    lines = ["# base_ns 1000"]
    for tick in range(50):  # every 10 ms; the counter moves every 100 ms, by 50 J
        lines.append(f"{tick * 10_000_000},0,1500,600.0,,{(tick // 10) * 50_000},,")
    (tmp_path / "samples.csv").write_text("\n".join(lines) + "\n")
    found = Samples(tmp_path).between(0, 1000, 1000 + 500_000_000)
    assert found == {"mhz": 1500.0, "watts": pytest.approx(500.0), "celsius": None}


def test_a_packed_visit_reads_as_the_plain_one(tmp_path):
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.mkdir()
    (plain / "results.jsonl").write_text('{"row":"begin"}\n')
    lines = ["# base_ns 1000"]
    for tick in range(50):  # the clock changes with the counter
        energy = (tick // 10) * 50_000
        lines.append(f"{tick * 10_000_000},0,{1500 + tick // 10},600.0,,{energy},,")
    (plain / "samples.csv").write_text("\n".join(lines) + "\n")
    rows = [[0, 7, 3000, 9000, 1000], [1, 24, 10250, 100125, 7000]]
    traces.append(plain, 0, {"part": "a@2", "names": ["gemm", "nccl"], "rows": rows, "events": 2})
    visit.pack(plain, packed)
    assert visit.results(packed) == visit.results(plain)
    (read,) = visit.traces(packed)
    assert read == {"part": "a@2", "names": ["gemm", "nccl"], "rows": rows}
    for begin, end in ((1000, 500_001_000), (55_000_000, 333_000_000)):
        a, b = (Samples(folder).between(0, begin, end) for folder in (plain, packed))
        assert a == {**b, "mhz": pytest.approx(b["mhz"])}


def kernel(name, stream, begin, end, launch=0):
    return Kernel(name, stream, begin, end - begin, launch)


def test_pauses_and_kernels_add_up_to_the_step():
    step = Step(
        [
            kernel("nvjet a", 7, 0, 100),
            kernel("nccl x", 9, 50, 180),  # covers half of a; its last rank begins at 120
            kernel("copy", 8, 185, 190),
            kernel("nvjet b", 7, 200, 300, launch=110),
            kernel("nvjet c", 7, 350, 400, launch=340),
        ]
    )
    pauses = step.pauses(Spans([kernel("nccl x", 9, 50, 120)]))
    assert pauses == {"launch": 10 + 40, "late": 10, "exposed": 60, "side": 5, "small": 15 + 10}
    assert [k.covered for k in step.main] == [0.5, 0.0, 0.0]
    assert step.length == sum(k.length for k in step.main) + sum(pauses.values())


def test_a_collective_waits_for_its_last_rank():
    steps = [
        Step([kernel("nvjet", 7, 0, 9), kernel("nccl x", 9, begin, 100)])
        for begin in (10, 30, 20, 90)
    ]
    found = [spans.spans for spans in waited(steps, "1b-fsdp-4k@2")]
    assert found == [[[10, 30]], [[30, 30]], [[20, 90]], [[90, 90]]]


def test_growth_tells_the_clock_from_contention():
    one = [kernel("nvjet", 7, 0, 100), kernel("nvjet", 7, 100, 200), kernel("adam", 7, 200, 210)]
    more = [
        kernel("nvjet", 7, 0, 110),
        kernel("nccl x", 9, 110, 300),
        kernel("nvjet", 7, 110, 300),
    ]
    found = decompose.growth(Step(one), Step(more), Spans([]))
    assert found["step"] == pytest.approx(90 / 1e6)
    assert found["clock gemm"] == pytest.approx(20 / 1e6)  # 10 % of both
    assert found["contention gemm"] == pytest.approx(80 / 1e6)
    assert found["sharded"] == pytest.approx(-10 / 1e6)
