"""Why it exists: peak memory on real H200s is the one figure that must come out equal to the byte,
not merely close.

The figures were measured with the script beside them, which runs here unmodified; it lies outside
the repository, in ../shared/truth, and where that is absent there is nothing to compare with.
"""

import json
from pathlib import Path

import pytest

from tests.torch_release import measured_under_2_11

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "truth"
RUNS = (
    [json.loads(line) for line in (TRUTH / "train.jsonl").read_text().splitlines()]
    if TRUTH.is_dir()
    else []
)
STEPS = 3  # the allocator's peaks are reached in the second step: the first has no optimizer state

pytestmark = [
    pytest.mark.truth,
    pytest.mark.slow,
    pytest.mark.skipif(not RUNS, reason=f"no measured runs in {TRUTH}"),
    measured_under_2_11,
]


def job(run):
    """torchrun's own options, and the script as it was run; the number of steps is to follow."""
    options = [
        f"--{key}={run[key]}"
        for key in ("size", "mode", "tp", "seq", "mbs", "accum", "layers")
        if run[key] is not None
    ]
    options += [f"--{key}" for key in ("ac", "compile") if run[key]]
    return ["--nnodes=1", f"--nproc-per-node={run['world']}", TRUTH / "train.py", *options]


def name(run):
    return "-".join(str(run[key]) for key in ("world", "size", "mode", "tp", "seq", "accum"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", RUNS or [None], ids=name if RUNS else None)
def test_peak_memory_is_a_real_gpus_to_the_byte(phantora, run):
    done = phantora(
        "--quiet",
        "torchrun",
        *job(run),
        f"--steps={STEPS}",
        "--warmup=1",
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    results = [
        json.loads(line.removeprefix("RESULT "))
        for line in done.stdout.splitlines()
        if line.startswith("RESULT ")
    ]
    assert [(r["peak_alloc"], r["peak_reserved"]) for r in results] == [
        (run["peak_alloc"], run["peak_reserved"])
    ]
    assert results[0]["gpu"] == run["gpu"]
