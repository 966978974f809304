"""Why it exists: PyTorch's CUDA graphs, captured and replayed by unmodified code: values, overlap,
refusals; and its profiler."""

import gzip
import json
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parent / "jobs"


@pytest.mark.slow
def test_a_captured_training_step_is_the_eager_one(phantora):
    done = phantora(
        "--quiet", "--host-time", "none", "torchrun", "--nproc-per-node", 2, JOBS / "cuda_graphs.py"
    )
    assert done.returncode == 0, done.stderr
    assert {"OK 0", "OK 1"} <= set(done.stdout.splitlines())


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["callables", "compile"])
def test_pytorchs_own_uses_of_graphs(phantora, what):
    done = phantora("--quiet", "--", sys.executable, JOBS / "graphed.py", what, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout.splitlines()


@pytest.mark.nightly
def test_the_profiler_sees_the_kernels_of_a_graph(phantora):
    done = phantora("--quiet", "--", sys.executable, JOBS / "graphed.py", "profiler")
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout.splitlines()


@pytest.mark.nightly
def test_a_trace_shows_the_kernels_of_a_graph(phantora, tmp_path):
    options = ["--quiet", "--trace", tmp_path / "trace", "--host-time", "none"]
    done = phantora(*options, "torchrun", "--nproc-per-node", 2, JOBS / "cuda_graphs.py")
    assert done.returncode == 0, done.stderr
    events = [e for file in (tmp_path / "trace").rglob("*.json*") for e in read(file)]
    launches = {e["args"]["correlation"] for e in events if e.get("name") == "cudaGraphLaunch"}
    kernels = [
        e for e in events if e.get("cat") == "kernel" and e["args"].get("correlation") in launches
    ]
    assert (
        launches and len(kernels) > 10 * len(launches) and any("nccl" in e["name"] for e in kernels)
    )


def read(file):
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt") as text:
        return json.load(text)["traceEvents"]
