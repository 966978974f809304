"""Why it exists: with --host-tensors auto, large floats in host memory must take no memory, and all
else must be what plain PyTorch computes. The oracle is the same script without phantora-ns."""

import json
import os
import subprocess
import sys

import pytest

from tests.values.test_values import HERE, outcome

SCRIPT = HERE / "host_tensors.py"
ONE_GPU = ("--nnodes", 1, "--gpus-per-node", 1)
BUDGET, SLACK = 256 << 20, 64 << 20  # bytes: docs/host-tensors.md; what a process takes beside


@pytest.fixture(scope="module")
def plain():
    done = subprocess.run(
        [sys.executable, SCRIPT, "plain"], capture_output=True, text=True, env=dict(os.environ)
    )
    return outcome(done, "HOST")


@pytest.fixture(scope="module")
def hollow(phantora, tmp_path_factory):
    """(what the job saw, the report)."""
    report = tmp_path_factory.mktemp("hollow") / "report.json"
    done = phantora(
        *("--quiet", "--host-time", "model", "--report", report),
        *(*ONE_GPU, "--", sys.executable, SCRIPT, "auto"),
    )
    return outcome(done, "HOST"), json.loads(report.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    ["small", "integers", "mask", "optimizer", "refusals", "shapes", "child", "biases_are_real"],
)
def test_what_is_not_large_and_float_is_plain_pytorchs(plain, hollow, part):
    assert hollow[0][part] == plain[part]


@pytest.mark.slow
def test_a_model_takes_no_memory(plain, hollow):
    job, report = hollow
    assert job["bytes"] > 2 * (BUDGET + SLACK)  # or the next line says nothing
    assert job["grown"] < BUDGET + SLACK
    assert plain["grown"] > job["bytes"]
    assert report["values"]["hollow_bytes"] > job["bytes"] - BUDGET
    assert job["large"] != plain["large"]


@pytest.mark.slow
def test_a_model_is_saved_loaded_and_moved(hollow):
    job, _ = hollow
    saved = job["saved"]
    assert saved["equal"] and saved["size"] > job["bytes"]
    assert saved["disk"] < BUDGET
    assert job["on_device"] == ["cuda:0", [2048, 2048]] and job["bias_on_device"]


@pytest.mark.slow
@pytest.mark.parametrize("work", ["draw", "move"])
def test_what_is_skipped_takes_time_by_its_size(hollow, work):
    """The law: twice the elements, twice the time; the calls beside it take some microseconds."""
    once, twice = hollow[0]["charged"][work]
    assert once > 10**6 and twice == pytest.approx(2 * once, rel=0.02)


@pytest.mark.slow
def test_real_tensors_are_plain_pytorchs(phantora, plain):
    done = phantora(
        *("--quiet", "--host-tensors", "real"),
        *(*ONE_GPU, "--", sys.executable, SCRIPT, "real"),
    )
    job = outcome(done, "HOST")
    assert all(job[part] == plain[part] for part in ("small", "large", "integers", "optimizer"))


@pytest.mark.slow
@pytest.mark.parametrize("kind, counted", [("nothing", 0), ("seven", 7)])
def test_reads_of_hollow_tensors_are_counted(phantora, tmp_path, kind, counted):
    report = tmp_path / "report.json"
    done = phantora(
        *("--quiet", "--report", report),
        *(*ONE_GPU, "--", sys.executable, SCRIPT, "reads", kind),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["values"]["unknown_reads"] == counted
