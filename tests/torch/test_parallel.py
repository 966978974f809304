"""Why it exists: every way in which torch spreads training over ranks must train the same small
model that one CPU trains."""

import pytest

from tests.torch.outcome import JOBS, Outcome, check_names


@pytest.fixture(scope="module")
def outcome(phantora):
    return Outcome(
        phantora("--quiet", "torchrun", "--nnodes", 2, "--nproc-per-node", 2, JOBS / "parallel.py"),
        ranks=4,
    )


@pytest.mark.parametrize("name", check_names("parallel"))
def test_weights(outcome, name):
    assert outcome.complaints(name) == []


def test_the_job_ends_well(outcome):
    assert outcome.done.returncode == 0, outcome.done.stderr
