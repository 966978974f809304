"""A result that comes late, and one that never comes: the right value, or an error message; never a
zero."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture
def run_late(phantora, tmp_path):
    clock = tmp_path / "fast_clock.so"
    source = HERE / "c" / "fast_clock.c"
    subprocess.run(
        ["cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", clock, source, "-ldl"],
        check=True,
    )
    script = f'[ $RANK = 0 ] && LD_PRELOAD="$LD_PRELOAD:{clock}"; exec "$0" "$@"'

    def run(how, ranks=2):
        return phantora(
            *("--quiet", "--nnodes", ranks, "--gpus-per-node", 1),
            *("--", "sh", "-c", script, sys.executable, HERE / "late.py", how),
        )

    return run


def test_a_late_result_is_waited_for(run_late):
    """Rank 0 used to read 0 after 20 s on its clock."""
    done = run_late("late")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 reads 42", "rank 1 reads 42"]
    assert done.stderr == ""


def test_a_result_that_cannot_come_fails_in_words(run_late):
    done = run_late("gone")
    assert done.returncode not in (0, None) and "reads" not in done.stdout
    assert "rank 0 waits for the result of all_reduce" in done.stderr
    assert "rank 1 has ended without its part" in done.stderr


def test_the_rank_that_ended_first_is_named(run_late):
    """An agent ends the others of its node when one was killed. Their end says nothing."""
    done = run_late("gone", ranks=4)
    assert done.returncode not in (0, None)
    assert "rank 1 has ended without its part" in done.stderr
