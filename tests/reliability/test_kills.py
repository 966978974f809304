"""Why it exists: whatever process of a run gets whatever signal, at whatever time, the run ends as
docs/reliability.md says. Some strikes here, hundreds every night; a strike is repeated by its seed."""

import os
import random
import shutil
import tempfile
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tests.reliability.runs import Range, cheap, led, shared_memory, with_torch
from tests.reliability.strikes import Signal, Strike, draw

HALF, ALL = 0.5, 300
"""Of a role's life; how many strikes a night."""


@pytest.fixture(scope="module")
def in_range():
    """A function that strikes runs of the cheap job: four ranks on two nodes."""
    folder = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))  # short, for the hub's socket
    yield Range(folder, cheap(2, 100))
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "role, number, then",
    [
        ("hub", Signal.SIGSTOP, Signal.SIGCONT),
        ("rank", Signal.SIGSTOP, Signal.SIGCONT),
        ("launcher", Signal.SIGKILL, None),
        ("launcher", Signal.SIGINT, None),
        ("hub", Signal.SIGKILL, None),
        ("rank", Signal.SIGKILL, None),
    ],
)
def test_a_struck_run_ends_as_it_should(in_range, role, number, then):
    strike = Strike(role, number, HALF * in_range.lives[role], 0.0, 2.0 if then else 0.0, then)
    run = in_range.fire(strike)
    assert not run.wrong, f"{strike}: {run.wrong}\n{run.err}"


@pytest.mark.nightly
def test_a_hub_that_is_killed_is_said_once_where_traces_are_written():
    """Each rank's trace was said to be missing, too."""
    folder = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))
    try:
        there = Range(folder, cheap(2, 100, shows=True))
        strike = Strike("hub", Signal.SIGKILL, 0.8 * there.lives["hub"], 0.0, 0.0, None)
        run = there.fire(strike)
        assert not run.wrong, f"{run.code}: {run.wrong}\n{run.err}"
    finally:
        shutil.rmtree(folder)


def test_what_another_program_shares_is_not_left_by_the_run():
    other = SharedMemory(create=True, size=1)
    name = other.name.removeprefix("/")
    try:
        assert name not in shared_memory()
        other.close()
        assert name in shared_memory()
    finally:
        other.unlink()


def strikes(there, count):
    """`count` random strikes; what was wrong with each."""
    seed = os.environ.get("CAMPAIGN_SEED") or str(random.randrange(10**6))
    print(f"seed {seed}: python -m tests.reliability.campaign --seed {seed} repeats these")
    for number in range(count):
        strike = draw(f"{seed}-{number}", there.lives, there.roles)
        run = there.fire(strike)
        if run.wrong:
            yield f"{number} {strike}: {run.wrong}\n{run.err[-3000:]}"


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_hundreds_of_strikes(in_range):
    wrong = list(strikes(in_range, ALL))
    assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize(
    "job, count",
    [
        pytest.param(with_torch(), ALL // 10, id="torchrun"),
        pytest.param(led(100), ALL // 5, id="a leader"),
        pytest.param(cheap(2, 100, shows=True), ALL // 5, id="traces and a page"),
    ],
)
def test_strikes_at_other_jobs(job, count):
    folder = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))
    wrong = list(strikes(Range(folder, job), count))
    shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)
