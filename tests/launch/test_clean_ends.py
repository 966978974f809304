"""Whatever is killed, whenever: one message, the right exit code, and nothing of ours on the
machine."""

import fcntl
import os
import pty
import signal
import socket
import struct
import sys
import termios
import time
from contextlib import suppress

import pytest

from phantora_ns.launch.machine.sandbox import Sandbox, SandboxSpec
from tests.leftovers import wait_until

SLEEPER = "echo up $NODE_RANK; sleep 1000 & wait"
STUBBORN = 'trap "" INT TERM HUP; echo up $NODE_RANK; while :; do sleep 1000; done'
ISOLATION = pytest.mark.parametrize("isolation", ["namespaces", "none"])


def start(launch, isolation, script=SLEEPER, nodes=2, **options):
    run = launch("--isolation", isolation, "--nnodes", nodes, "--", "sh", "-c", script, **options)
    assert sorted(run.line() for _ in range(nodes)) == [f"up {node}" for node in range(nodes)]
    return run


def messages(err):
    return [
        line
        for line in err.splitlines()
        if line.startswith("phantora-ns:") and "ended:" not in line
    ]


@pytest.mark.parametrize(
    "number, code, script, isolation",
    [
        (signal.SIGINT, 130, SLEEPER, "namespaces"),
        (signal.SIGTERM, 143, SLEEPER, "namespaces"),
        (signal.SIGHUP, 129, SLEEPER, "none"),
        (signal.SIGINT, 130, STUBBORN, "namespaces"),
        (signal.SIGTERM, 143, STUBBORN, "none"),
    ],
)
def test_signals_end_the_job(launch, number, code, script, isolation):
    run = start(launch, isolation, script)
    os.killpg(run.process.pid, number)
    got, _, err = run.finish(timeout=20)
    assert got == code
    assert len(messages(err)) == 1 and number.name in err
    assert f"'failed_by': None, 'ended_by': '{number.name}'" in err


def test_the_job_gets_the_signal_once_and_may_clean_up(launch):
    script = 'trap "echo caught; exit 3" INT; echo up $NODE_RANK; while :; do sleep 0.01; done'
    run = start(launch, "namespaces", script)
    os.killpg(run.process.pid, signal.SIGINT)
    code, out, _ = run.finish(timeout=20)
    assert code == 130 and out == "caught\ncaught\n"


def test_a_second_signal_does_not_wait(launch):
    run = start(launch, "namespaces", STUBBORN)
    run.process.send_signal(signal.SIGINT)
    while "SIGINT" not in run.process.stderr.readline():
        pass
    run.process.send_signal(signal.SIGINT)
    assert run.finish(timeout=20)[0] == 130


@ISOLATION
def test_hub_killed(launch, isolation):
    run = start(launch, isolation)
    os.kill(run.find("fake_hub.py"), signal.SIGKILL)
    code, _, err = run.finish(timeout=20)
    assert code == 70 and "'failed_by': 'hub'" in err
    assert len(messages(err)) == 1 and "killed by SIGKILL" in err


@ISOLATION
def test_sandbox_killed(launch, isolation):
    run = start(launch, isolation)
    sandbox = min(
        pid for pid, command in run.processes().items() if "phantora-sandbox run" in command
    )
    os.kill(sandbox, signal.SIGKILL)
    code, _, err = run.finish(timeout=20)
    assert code == 70 and "'failed_by': 'launcher'" in err
    assert len(messages(err)) == 1 and "phantora-sandbox ended (killed by SIGKILL)" in err


@ISOLATION
def test_launcher_killed(launch, isolation):
    run = start(launch, isolation, STUBBORN)
    os.kill(run.find("drive.py"), signal.SIGKILL)
    run.process.wait(timeout=20)
    run.assert_nothing_left()


def test_launcher_killed_before_anything_runs(launch):
    """Also then somebody deletes its directory."""
    run = launch("--", "true", env={"PHANTORA_TEST_HUB": "silent"})
    wait_until(lambda: any("fake_hub.py" in command for command in run.processes().values()))
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait(timeout=20)
    run.assert_nothing_left()


def test_launcher_and_sandbox_killed_together(launch):
    run = start(launch, "namespaces")
    os.kill(run.process.pid, signal.SIGSTOP)  # so that neither can see the other's death
    sandbox = min(
        pid for pid, command in run.processes().items() if "phantora-sandbox run" in command
    )
    os.kill(sandbox, signal.SIGKILL)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait(timeout=20)
    run.assert_nothing_left()


@ISOLATION
def test_one_nodes_command_killed(launch, isolation):
    run = start(launch, isolation, STUBBORN)
    victim = next(
        pid
        for pid, command in run.processes().items()
        if command.startswith("sh -c") and node_of(pid) == "1"
    )
    os.kill(victim, signal.SIGKILL)
    code, _, err = run.finish(timeout=20)
    assert code == 137 and "'failed_by': 'job', 'ended_by': None" in err
    assert len(messages(err)) == 1 and "SIGKILL; on node-1" in err


@ISOLATION
def test_one_nodes_init_killed(launch, isolation):
    run = start(launch, isolation)
    inits = sorted(
        pid for pid, command in run.processes().items() if "phantora-sandbox run" in command
    )
    os.kill(inits[-1], signal.SIGKILL)
    code, _, err = run.finish(timeout=20)
    assert code == 137 and "killed from outside" in err


def node_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return next(
            item.split(b"=")[1].decode()
            for item in file.read().split(b"\0")
            if item.startswith(b"PHANTORA_NODE=")
        )


@pytest.mark.slow
def test_a_torchrun_worker_killed(launch):
    script = (
        "import os, time; os.write(1, f'up {os.environ[\"RANK\"]}\\n'.encode()); time.sleep(1000)"
    )
    run = launch(
        "torchrun",
        "--nnodes=2",
        "--nproc-per-node=2",
        "--no-python",
        sys.executable,
        "-c",
        script,
        env={"OMP_NUM_THREADS": "1"},
    )
    assert sorted(run.line() for _ in range(4)) == [f"up {rank}" for rank in range(4)]
    workers = [
        pid
        for pid, command in run.processes().items()
        if command.startswith(sys.executable)
        and "time.sleep" in command
        and "torchrun" not in command
    ]
    os.kill(max(workers), signal.SIGKILL)
    code, _, err = run.finish(timeout=30)
    assert code == 1 and "'failed_by': 'job'" in err and len(messages(err)) == 1


def test_ctrl_c_and_the_progress_line_on_a_terminal(launch):
    controller, terminal = pty.openpty()
    fcntl.ioctl(controller, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 101, 0, 0))
    script = """[ $NODE_RANK = 0 ] && test -t 1 && test -t 2 && stty size <&2 &&
        printf 'half a ' && printf 'line\\n' >&2
        echo 5000000 >$PHANTORA_RUN_DIR/ranks/1; echo 7000000 >$PHANTORA_RUN_DIR/ranks/2; exec sleep 1000"""
    arguments = ("--nnodes", 2, "--", "sh", "-c", script)
    run = launch(
        *arguments,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    seen = read_until(controller, b"2/16 ranks up")
    # what the job prints is whole, and for a terminal of this size
    assert b"30 101\r\nhalf a line\r\n" in seen
    assert b"\r\x1b[Ksimulated 5 ms to 7 ms" in seen
    os.write(controller, b"\x03")
    seen = read_until(controller, b"ended:")
    assert run.process.wait(timeout=20) == 130
    assert seen.count(b"phantora-ns: SIGINT") == 1 and b"\x1b[Kphantora-ns: SIGINT" in seen
    run.assert_nothing_left()
    os.close(controller)


def read_until(fd, end):
    seen = b""
    while end not in seen:
        seen += os.read(fd, 4096)
    return seen


def test_a_hub_that_cannot_write_its_part_is_a_failure(launch):
    """A full disk, say. The job's own end was good."""
    run = launch("--isolation", "none", "--", "true", env={"PHANTORA_TEST_HUB": "full"})
    code, _, err = run.finish(timeout=20)
    assert code == 70 and "'failed_by': 'hub'" in err
    assert len(messages(err)) == 1 and "its part of the report" in err


def test_a_signal_ends_the_wait_for_the_hubs_end(launch):
    """A hub on a busy machine has much to write after a job; the user need not wait for it."""
    run = launch("--isolation", "none", "--", "true", env={"PHANTORA_TEST_HUB": "slow"})
    assert run.process.stderr.readline() == "the hub writes\n"
    run.process.send_signal(signal.SIGINT)
    code, _, err = run.finish(timeout=50)
    assert code == 130 and messages(err) == ["phantora-ns: SIGINT: ending the job"]


def inits(sandbox):
    """The nodes' first processes, in the order of the nodes, while a cluster is built."""
    with open(f"/proc/{sandbox}/task/{sandbox}/children") as file:
        children = file.read().split()
    own = os.readlink("/proc/self/ns/pid")
    found = []
    for child in children:
        with suppress(OSError):  # it has ended
            found += [int(child)] * (os.readlink(f"/proc/{child}/ns/pid") != own)
    return found


@pytest.mark.parametrize("nodes_made", [1, 60, 120])
def test_a_node_that_is_killed_while_the_cluster_is_built_is_named(nodes_made):
    """It used to be the sandbox that had ended, without a reason."""
    spec = SandboxSpec("/bin/sleep", ["sleep", "60"], "/", {}, [{}] * 120, isolated=True)
    sandbox = Sandbox(spec)
    deadline = time.monotonic() + 30
    while len(made := inits(sandbox.process.pid)) < nodes_made:
        assert time.monotonic() < deadline
    os.kill(made[0], signal.SIGKILL)
    said = []
    while message := sandbox.receive():
        said.append(message)
        if message.kind == "gone":
            sandbox.channel.shutdown(socket.SHUT_RDWR)
    sandbox.channel.close()
    assert said[-1].kind == "gone", said
    assert sandbox.process.wait(30) in (0, 125)  # 0: it was up already
