"""Why it exists: what the diff says of a simulated step is worth something only if the trace's step
is the step that the job timed, and if simulated work finds its counterpart in a real trace."""

import json
from pathlib import Path

import pytest

from phantora_ns.trace.diff import diff
from phantora_ns.trace.kineto import read_trace
from tests.torch_release import measured_under_2_11

BENCH = Path(__file__).resolve().parents[2] / "bench" / "accuracy"
pytestmark = [pytest.mark.slow, pytest.mark.truth, measured_under_2_11]


def test_a_simulated_step_is_the_jobs_own_and_pairs_with_a_real_one(phantora, tmp_path):
    # the real trace's, but fewer steps
    job = [
        "--size=1b",
        "--mode=none",
        "--seq=4096",
        "--mbs=2",
        "--steps=5",
        "--warmup=2",
    ]
    done = phantora(
        "--quiet",
        "--host-time",
        "none",
        "--trace",
        tmp_path,
        "--trace-ranks",
        "0",
        "--trace-steps",
        "3:",
        "torchrun",
        "--nproc-per-node",
        "1",
        "-m",
        "bench.accuracy.workload",
        *job,
        "--out",
        tmp_path / "result",
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    simulated = read_trace(tmp_path / "rank-0.json.gz")
    result = diff(read_trace(BENCH / "data" / "traces" / "1b-none-4k-mbs2.json.xz"), simulated)
    timed_ns = json.loads((tmp_path / "result").read_text())["median_s"] * 1e9
    # two clock reads and an event query apart
    assert result.simulated.step_ns == pytest.approx(timed_ns, abs=10_000)
    assert sum(row.contribution_ns for row in result.rows) == result.difference_ns
    assert set(result.paired_by) == {
        "library operator, in order, equally many",
        "operator, name, shapes and grid",
    }
