"""Why it exists: a job reads simulated time where it measures, real time where it waits, and the
same time in every run."""

import sys

import pytest

from tests.torch.outcome import JOBS, Outcome, check_names


@pytest.fixture(scope="module")
def outcome(phantora):
    return Outcome(
        phantora(
            *("--quiet", "--host-time", "measured"),
            *("torchrun", "--nnodes", 2, "--nproc-per-node", 2, JOBS / "clocks.py"),
        ),
        ranks=4,
    )


@pytest.mark.parametrize("name", check_names("clocks"))
def test_clocks(outcome, name):
    assert outcome.complaints(name) == []


def test_the_job_ends_well(outcome):
    assert outcome.done.returncode == 0, outcome.done.stderr


@pytest.mark.nightly
def test_without_host_time_two_runs_are_equal_to_the_byte(phantora):
    def results():
        done = phantora(
            "--quiet",
            "--host-time",
            "none",
            "torchrun",
            "--nnodes",
            2,
            "--nproc-per-node",
            2,
            JOBS / "repeat.py",
        )
        assert done.returncode == 0, done.stderr
        return sorted(line for line in done.stdout.splitlines() if line.startswith("RESULT "))

    first = results()
    assert len(first) == 4 * 5
    assert first == results()
    steps = [line for line in Outcome.parse(first) if "loss" in line]
    assert all(
        line["loss"] > 0 and line["norm"] > 0 and line["asked"] > 100 and line["clock"] > 0
        for line in steps
    )
    assert all(0 < line["times"][0] < line["times"][1] for line in steps)
    assert len({line["loss"] for line in steps}) == len(steps)  # ranks see different data
    assert all(
        len({line["mean"] for line in steps if line["step"] == step}) == 1 for step in range(4)
    )


def test_observing_operators_is_not_the_job_s_time(phantora):
    """The values library observes every operator. A job of small operators was charged a third more
    for that. The two loops run in turn on one CPU clock, and the median of 40 differences counts."""
    done = phantora(
        "--quiet", "--host-time", "measured", "--", sys.executable, JOBS / "observed.py"
    )
    assert done.returncode == 0, done.stderr
    longer, alone, excluded = map(int, done.stdout.split())
    assert -0.25 * alone < longer < 0.25 * alone
    assert excluded == 0, "what is excluded is taken off what the thread computes next"


def test_communication_of_processes_that_come_after_all_others_does_not_wait_for_their_end(
    phantora,
):
    """Simulated time begins at 0 in each, also for the links."""
    done = phantora(
        "--quiet", "--gpus-per-node", 2, "--", sys.executable, JOBS / "generations.py", timeout=200
    )
    assert done.returncode == 0, done.stderr
    took = [float(line.split()[1]) for line in done.stdout.splitlines() if line[:5] == "TOOK "]
    assert len(took) == 2
    assert max(took) < 1
