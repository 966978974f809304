"""Why it exists: a point is kept for good only when it is known how its job ended."""

import signal

import pytest

from phantora_ns.sweep.engine import Machine
from phantora_ns.sweep.judge import FAILED
from phantora_ns.sweep.point_run import result_of


class Finished:
    """A run that has ended; an engine asks for no more."""

    alone = True


@pytest.mark.parametrize(
    ("code", "ended_by"),
    [
        (128 + signal.SIGINT, "SIGINT"),  # while the launcher made the results
        (128 + signal.SIGTERM, "SIGTERM"),
        (-signal.SIGKILL, "SIGKILL"),  # the launcher itself
        (128 + signal.SIGKILL, None),  # the job's code
        (1, None),
    ],
)
def test_a_point_whose_launcher_got_a_signal_is_run_again(code, ended_by):
    result = result_of(None, code)
    assert (result["state"], result["ended_by"]) == (FAILED, ended_by)
    run, machine = Finished(), Machine(2, [])
    machine.begin(run)
    measured = {"ranks": 1, "cores": 1.0, "peak_bytes": 1, "alone": True}
    ended = machine.end(run, result | {"measured": measured, "memory_killed": False})
    assert ended.keep == (ended_by is None)
