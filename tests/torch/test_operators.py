"""Why it exists: what PyTorch can do on one GPU, beyond plain operators, must run, be ordered in
time, and keep small values."""

import sys

import pytest

from tests.torch.outcome import JOBS, Outcome, check_names


@pytest.fixture(scope="module")
def outcome(phantora, tmp_path_factory):
    # an empty one: Inductor and Triton must really compile
    caches = tmp_path_factory.mktemp("compiled")
    return Outcome(
        phantora(
            "--host-time",
            "measured",
            "--quiet",
            "--nnodes",
            1,
            "--gpus-per-node",
            1,
            "--",
            sys.executable,
            JOBS / "operators.py",
            env={
                "TORCHINDUCTOR_CACHE_DIR": str(caches),
                "TRITON_CACHE_DIR": str(caches / "triton"),
            },
        ),
        ranks=1,
    )


@pytest.mark.parametrize("name", check_names("operators"))
def test_operators(outcome, name):
    assert outcome.complaints(name) == []


def test_the_job_ends_well(outcome):
    assert outcome.done.returncode == 0, outcome.done.stderr
