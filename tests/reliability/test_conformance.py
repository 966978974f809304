"""Why it exists: PyTorch's own DistributedTest was written by others for real GPUs. Two of its tests here, which once
failed; all of them by `make conformance` (docs/reliability.md)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("test_barrier_cuda", "test_post_localSGD_optimizer_step_reload")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_some_of_pytorchs_own_distributed_tests_pass(tmp_path):
    log = tmp_path / "log"
    patterns = [rf"\.{name}$" for name in TESTS]
    words = ["-m", "bench.conformance.run", "--log", str(log), *patterns]
    # written for PyTorch's first NCCL backend
    environment = {**os.environ, "TORCH_DIST_USE_NCCL2": "0"}
    done = subprocess.run(
        [sys.executable, *words, "--", "--warm-start", "auto"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    ended = [json.loads(line) for line in log.read_text().splitlines()]
    assert {one["name"]: one["outcome"] for one in ended} == dict.fromkeys(TESTS, "passed"), ended
    assert done.returncode == 0, done.stderr
