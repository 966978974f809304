"""Why it exists: every collective of torch.distributed must bring the numbers that NCCL would
bring."""

import pytest

from tests.torch.outcome import JOBS, Outcome, check_names


@pytest.fixture(scope="module")
def outcome(phantora):
    return Outcome(
        phantora(
            "--quiet", "torchrun", "--nnodes", 2, "--nproc-per-node", 2, JOBS / "collectives.py"
        ),
        ranks=4,
    )


@pytest.mark.parametrize("name", check_names("collectives"))
def test_values(outcome, name):
    assert outcome.complaints(name) == []


def test_the_job_ends_well(outcome):
    assert outcome.done.returncode == 0, outcome.done.stderr
