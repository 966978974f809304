"""Why it exists: the first steps, without host times, must say what real H200s said after whole runs, to
the byte."""

import json

import pytest

from tests.truth.test_memory import RUNS, TRUTH, job, measured_under_2_11, name

QUICK = ("8-1b-ddp-1-4096-1", "2-160m-tp-1-1024-1", "8-1b-fsdp-1-512-1")
"""DDP's buckets grow in the third step, so it is not ended after the fourth."""

pytestmark = [
    pytest.mark.truth,
    pytest.mark.slow,
    pytest.mark.skipif(not RUNS, reason=f"no measured runs in {TRUTH}"),
    measured_under_2_11,
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", [run for run in RUNS if name(run) in QUICK] or [None])
def test_the_first_steps_need_what_real_gpus_needed(phantora, run):
    words = ["fit", "--json", "--warm-start", "auto", "torchrun", *job(run), "--steps=12"]
    done = phantora(*words, "--warmup=1", timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    need = found["needs"][0]
    assert need["allocated_bytes"] == run["peak_alloc"]
    assert need["reserved_bytes"] == run["peak_reserved"]
    assert found["ended"].startswith("ended after ")
