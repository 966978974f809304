"""Outcome, spec and messages, progress line, run directories: the parts that need no process."""

import os

import pytest

from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine.sandbox import Message, parse_message, write_spec
from phantora_ns.launch.run import rundir
from phantora_ns.launch.run.outcome import Outcome
from phantora_ns.launch.run.progress import format_duration, format_line


def test_the_first_failure_decides():
    outcome = Outcome(3)
    assert not outcome.command_exited(0, 0)
    assert outcome.command_exited(1, 7)
    assert not outcome.command_killed(2, 15)
    assert not outcome.hub_ended("killed by signal 9")
    assert (outcome.verdict().exit_code, outcome.verdict().failed_by) == (7, "job")
    assert outcome.commands_left == [] and outcome.nodes_left == [0, 1, 2]


@pytest.mark.parametrize(
    "happen, code, who",
    [
        (lambda o: o.command_killed(0, 9), 137, "job"),
        (lambda o: o.interrupted(2), 130, "job"),
        (lambda o: o.interrupted(15), 143, "job"),
        (lambda o: o.hub_ended("exit code 1"), 70, "hub"),
        (lambda o: o.sandbox_ended("killed by signal 9"), 70, "launcher"),
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
    assert outcome.nodes_left == []


@pytest.mark.parametrize(
    "data, message",
    [
        (b"up", Message("up")),
        (b"step /dev/shm", Message("step", text="/dev/shm")),
        (b"exit 3 7", Message("exit", 3, 7)),
        (b"signal 0 9", Message("signal", 0, 9)),
        (b"gone 12", Message("gone", 12)),
        (b"failed - a: b; c", Message("failed", None, text="a: b; c")),
        (b"failed 2 a: b; c", Message("failed", 2, text="a: b; c")),
        (b"noexec 1 cannot run x", Message("noexec", 1, text="cannot run x")),
    ],
)
def test_messages(data, message):
    assert parse_message(data) == message


@pytest.mark.parametrize("data", [b"", b"exit", b"exit x 1", b"gone -", b"hello 1 2", b"\xff\xfe"])
def test_messages_of_another_version(data):
    with pytest.raises(LaunchError, match="make build"):
        parse_message(data)


def test_spec_is_one_record_per_line():
    spec = write_spec(
        program="/bin/x",
        argv=["x", "a\nb\\"],
        cwd="/",
        env={"A": "1\n2"},
        node_envs=[{"N": "0"}, {}],
        isolated=True,
    )
    lines = spec.decode().splitlines()
    assert lines[0] == "phantora-sandbox 1" and "arg a\\nb\\\\" in lines and "env A=1\\n2" in lines
    assert lines[-3:] == ["node node-0 10.77.0.1/16", "env N=0", "node node-1 10.77.0.2/16"]


def test_progress_line():
    assert format_line([], 1.0, 8) == "simulated 0 | real 1 s | 0/8 ranks up"
    assert (
        format_line([2_000_000, 4_000_000], 2.0, 8)
        == "simulated 2 ms to 4 ms | real 2 s | slow-down 500x | 2/8 ranks up"
    )
    assert (
        format_line([5_000_000_000], 0.5, 1)
        == "simulated 5 s | real 500 ms | slow-down 0.1x | 1/1 ranks up"
    )


@pytest.mark.parametrize(
    "ns, text",
    [
        (0, "0 us"),
        (1500, "1.5 us"),
        (999_999, "1000 us"),
        (1_000_000, "1 ms"),
        (59_900_000_000, "59.9 s"),
        (60_000_000_000, "1 min 00 s"),
        (3_725_000_000_000, "62 min 05 s"),
    ],
)
def test_durations(ns, text):
    assert format_duration(ns) == text


def test_a_run_directory_is_private_short_and_gone_afterwards(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_dir = rundir.RunDir()
    assert run_dir.path.parent == tmp_path and run_dir.path.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(run_dir.path / "hub.sock")) <= 107
    run_dir.remove()
    assert not run_dir.path.exists()


def test_a_kept_directory_survives_the_next_run(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_dir = rundir.RunDir()
    run_dir.keep()
    rundir.RunDir().remove()
    assert (run_dir.path / "ranks").is_dir()


def test_a_folder_too_deep_for_a_socket_is_not_used(monkeypatch, tmp_path):
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert rundir.base_folders()[0] == tmp_path
