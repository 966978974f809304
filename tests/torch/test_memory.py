"""Why it exists: a job must see the GPU's memory as it is, and read small values wherever it reads
them."""

import os
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
