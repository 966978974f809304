"""Why it exists: a job must see the GPU's memory as it is, and read small values wherever it reads
them."""

import lzma
import os
import re
import sys
import tomllib

import pytest

from tests.torch.outcome import JOBS, Outcome, check_names


@pytest.fixture(scope="module")
def outcome(phantora):
    environment = {
        name: "" for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if name in os.environ
    }
    return Outcome(
        phantora(
            "--quiet",
            "--nnodes",
            1,
            "--gpus-per-node",
            2,
            "--",
            sys.executable,
            JOBS / "memory.py",
            env=environment,
        ),
        ranks=1,
    )


@pytest.mark.parametrize("name", check_names("memory"))
def test_memory(outcome, name):
    assert outcome.complaints(name) == []


def test_figures_are_those_of_the_gpus_file(outcome, root):
    device = tomllib.loads((root / "phantora_ns/data/gpus/h200.toml").read_text())["device"]
    total, context = (int(device[key].removesuffix(" B")) for key in ("memory", "context"))
    (seen,) = outcome.lines("DEVICE")
    assert seen == {
        "rank": 0,
        "name": device["name"],
        "total": total,
        "properties_total": total,
        "free": total - context - seen["reserved"],
        "reserved": seen["reserved"],
    }


def test_the_job_ends_well(outcome):
    assert outcome.done.returncode == 0, outcome.done.stderr


def test_a_slow_start_leaves_no_bucket_behind(phantora):
    """On one rank an all-reduce in place launches nothing, but NCCL's watchdog holds its bucket until
    it looks. So it must get to look, also when the last launch was long before."""
    peaks = []
    for seconds in (0, 0.3):
        job = JOBS / "one_rank.py"
        done = phantora("--quiet", "--host-time", "none", "torchrun", job, seconds)
        assert done.returncode == 0, done.stderr
        peaks.append(int(re.search(r"RESULT (\d+)", done.stdout)[1]))
    assert peaks[0] == peaks[1]


def test_the_workspace_of_batch_normalisation_is_that_of_a_real_gpu(phantora, root, tmp_path):
    """The oracle is an H200's cuDNN 9.19, asked by the same script."""
    answers = tmp_path / "sizes.jsonl.xz"
    script = root / "bench" / "kernels" / "norm_sizes.py"
    done = phantora("--quiet", "--", sys.executable, script, answers)
    assert done.returncode == 0, done.stderr
    recorded = lzma.decompress(script.with_suffix(".jsonl.xz").read_bytes())
    assert lzma.decompress(answers.read_bytes()) == recorded
