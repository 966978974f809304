"""The first of several failures decides the exit code and the message."""

import pytest

from phantora_ns.hub.deaths import memory_kills
from phantora_ns.launch.run.outcome import Outcome, ended_how


def test_the_first_failure_decides():
    outcome = Outcome(3)
    assert not outcome.command_exited(0, 0)
    assert outcome.command_exited(1, 7)
    assert not outcome.command_killed(2, 15)
    assert not outcome.hub_ended("killed by SIGKILL")
    assert (outcome.verdict().exit_code, outcome.verdict().failed_by) == (7, "job")
    assert outcome.commands_left == [] and outcome.nodes_left == [0, 1, 2]


@pytest.mark.parametrize(
    "happen, code, who",
    [
        (lambda o: o.command_killed(0, 9), 137, "job"),
        (lambda o: o.interrupted(2), 130, None),
        (lambda o: o.interrupted(15), 143, None),
        (lambda o: o.hub_ended("exit code 1"), 70, "hub"),
        (lambda o: o.sandbox_ended("killed by SIGKILL"), 70, "launcher"),
        (lambda o: o.node_gone(0), 137, "job"),
        (lambda o: o.command_exited(0, 0), 0, None),
    ],
)
def test_exit_codes(happen, code, who):
    outcome = Outcome(1)
    happen(outcome)
    outcome.node_gone(0)
    verdict = outcome.verdict()
    assert (verdict.exit_code, verdict.failed_by) == (code, who)
    assert (verdict.message is None) == (code == 0)
    assert verdict.ended_by == {130: "SIGINT", 143: "SIGTERM"}.get(code)
    assert outcome.nodes_left == []


def test_processes_that_the_kernel_killed_for_memory_are_named(tmp_path):
    events = tmp_path / "vmstat"
    events.write_text("nr_free_pages 5\noom_kill 7\nswap_ra 1\n")
    outcome = Outcome(1, memory_kills(events))
    assert outcome.about_memory(memory_kills(events)) == ""
    events.write_text("nr_free_pages 5\noom_kill 9\nswap_ra 1\n")
    assert "2 processes of this machine for lack of memory" in outcome.about_memory(
        memory_kills(events)
    )
    assert memory_kills(tmp_path / "missing") == 0


def test_what_ends_after_the_run_was_stopped_is_no_failure():
    outcome = Outcome(2)
    outcome.stop()
    assert not outcome.command_killed(0, 9) and not outcome.node_gone(1)
    outcome.node_gone(0)
    assert outcome.nodes_left == [] and outcome.verdict().exit_code == 0


def test_a_signal_ends_a_run_that_was_stopped():
    """The wait for the hub is given up for it, so there is no result to judge by."""
    outcome = Outcome(1)
    outcome.stop()
    assert outcome.interrupted(2) and not outcome.interrupted(15)
    assert (outcome.verdict().exit_code, outcome.verdict().ended_by) == (130, "SIGINT")


def test_a_failure_before_the_stop_decides():
    outcome = Outcome(1)
    outcome.command_exited(0, 3)
    outcome.stop()
    assert outcome.verdict().exit_code == 3


def test_a_process_of_ours_that_is_killed_is_named_with_its_signal():
    found = [ended_how(code) for code in (-9, -24, -64, 3)]
    assert found[:2] == ["killed by SIGKILL", "killed by SIGXCPU"] and found[3] == "exit code 3"
    assert found[2] in ("killed by SIGRTMAX", "killed by signal 64")
