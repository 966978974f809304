"""A Kineto file reduced to one row per kernel: times since the epoch, launches, NCCL's channels."""

import gzip
import json

import pytest

pytest.importorskip("torch")

from bench.gpus import traces  # noqa: E402
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
