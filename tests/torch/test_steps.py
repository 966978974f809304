"""Why it exists: the report's step is found without the job's help, so it is held against what the
job's own log says, with every way to step that frameworks have."""

import json
import re
import statistics

import pytest

from tests.torch.outcome import JOBS

STEP = re.compile(r"step +\d+ +([\d.]+) ms")
RESULT = re.compile(r"RESULT ([\d.]+)")


@pytest.mark.slow
def test_the_reports_step_is_that_of_the_jobs_log(phantora, root, tmp_path):
    """Two ranks of a tiny model, bound by the host."""
    path = tmp_path / "report.json"
    done = phantora(
        *("--host-time", "model", "--report", path, "torchrun", "--nproc-per-node", 2),
        *(root / "examples/train_llama.py", "--mode", "fsdp", "--size", "debug"),
        *("--seq", 128, "--steps", 8),
    )
    assert done.returncode == 0, done.stderr
    log_ms = [float(ms) for ms in STEP.findall(done.stdout)]
    report = json.loads(path.read_text())
    step = report["step"]
    assert (step["rank"], step["count"]) == (0, len(log_ms) - 1)
    assert step["mean_ns"] / 1e6 == pytest.approx(statistics.fmean(log_ms[4:]), rel=0.03)
    assert step["host_ns"] == pytest.approx(step["mean_ns"], rel=0.1)
    by_class = sum(sum(of.values()) for of in report["kernel_time_ns"].values())
    assert by_class == sum(rank["gpu_busy_ns"] for rank in report["ranks"])
    assert {"gemm", "attention", "elementwise", "optimizer"} <= set(report["kernel_time_ns"])
    band = step["band"]
    assert 0 < band["low_ns"] < step["mean_ns"] < band["high_ns"]
    assert band["host"] == max(band[term] for term in ("kernels", "gpu", "communication", "host"))
    assert re.search(r"step [\d.]+ ms \([\d.]+-[\d.]+\): 80% of real runs", done.stderr)


def test_a_step_has_one_end_whatever_optimizers_it_has(phantora, tmp_path):
    path = tmp_path / "report.json"
    command = ("--host-time", "none", "--report", path, "torchrun", JOBS / "steps.py")
    done = phantora(*command)
    assert done.returncode == 0, done.stderr
    log_ms = [float(ms) for ms in RESULT.findall(done.stdout)]
    step = json.loads(path.read_text())["step"]
    assert step["count"] == len(log_ms) - 1 == 7
    assert step["mean_ns"] / 1e6 == pytest.approx(statistics.fmean(log_ms[4:]), rel=0.02)
