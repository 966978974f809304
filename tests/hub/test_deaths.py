"""Why it exists: a rank that a signal ends cannot say so. The hub notes it for the report and the launcher's last
line, and notes no ends that others report."""

import multiprocessing
import os
import resource
import re
import signal
import time

import pytest
from client import Client, form
from test_ring import expected_all_reduce_ns

from phantora_ns.hub import deaths
from phantora_ns.hub.deaths import ENDS, ERROR, _cpu_limit, _wait_status
from phantora_ns.hub.processes import read_stat

LINUX = tuple(int(number) for number in re.match(r"(\d+)\.(\d+)", os.uname().release).groups())
LAST_NS = 777_000_000


def rank(run_dir, number, pipe):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests' shell has set
    client = Client(run_dir, number, number, world=2)
    pipe.send("here")
    ending = pipe.recv()
    if ending == "exit":
        os._exit(3)
    client.bye()
    client.close()
    os._exit(0)


def queuer(run_dir, number, pipe):
    """A rank of two that queues communication, and is killed."""
    client = Client(run_dir, number, world=2)
    comm = client.init(b"u" * 128, 2, number)
    for _ in range(20):
        client.all_reduce(comm, 64 << 20)
    client.query([0, 0, 0])  # its messages have been handled
    pipe.send("queued")
    signal.pause()


def computer(run_dir, number, pipe):
    """A rank whose clock advances after its last message. It ends well, without a word, as ranks do."""
    client = Client(run_dir, number, number, world=2)
    client.sync()
    client.set_word(2, LAST_NS)
    pipe.send("computed")
    os._exit(0)


def starter(run_dir, pipe):
    """A process that starts a rank, and is killed with it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=rank, args=(run_dir, 0, theirs))
    child.start()
    assert ours.recv() == "here"
    pipe.send(child.pid)
    signal.pause()


@pytest.fixture
def spawned(hub):
    """Starts a process; returns it and its pipe."""
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []

    def start(function, *arguments):
        ours, theirs = context.Pipe()
        process = context.Process(target=function, args=(hub.run_dir, *arguments, theirs))
        process.start()
        processes.append(process)
        pipes.append(ours)  # a rank ends by itself when its pipe does
        return process, ours, ours.recv()

    yield start
    for process in processes:
        process.kill()
        process.join()


def killed(hub):
    """What the hub has for the report and for the last line, after it has seen every end so far."""
    client = Client(hub.run_dir, 5, 1)
    client.sync()
    time.sleep(0.3)  # it waits for those that end together
    client.sync()
    kept = hub.stop()["killed"]
    assert "was killed" not in hub.stderr  # the launcher's one line says it
    told = hub.run_dir / ERROR
    return kept, told.read_text() if told.exists() else None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_the_first_rank_that_a_signal_ends_is_named(hub, spawned, number):
    ranks = [spawned(rank, rank_number)[0] for rank_number in range(2)]
    other = "rank 0: ConnectionError: the other is gone"  # it was quicker than the hub
    (hub.run_dir / ERROR).write_text(other)
    os.kill(ranks[1].pid, number)
    ranks[1].join()
    time.sleep(0.3)
    Client(hub.run_dir, 2, 1).sync()  # a rank that comes late starts no new job
    ranks[0].kill()
    ranks[0].join()
    kept, told = killed(hub)
    assert kept == [f"rank 1 was killed by {number.name}; on node-1"]
    assert told.startswith(f"rank 1 was killed by {number.name}; ") and told.endswith(other)
    assert ("see dmesg" in told) == (number == signal.SIGKILL)


@pytest.mark.parametrize("noticed", [True, False])
def test_the_last_clock_of_a_rank_counts_whether_or_not_its_end_was_noticed(hub, spawned, noticed):
    """Which of the two it is depends on the order in which ranks exit."""
    spawned(computer, 0)[0].join()
    if noticed:
        Client(hub.run_dir, 1, 1).sync()
    assert hub.stop()["simulated_ns"] == LAST_NS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_that_is_asked_to_end_is_not(hub, spawned, number):
    process, _, _ = spawned(rank, 0)
    signal_default = number == signal.SIGTERM
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == (-number if signal_default else 1)
    assert killed(hub) == ([], None)


def test_ranks_that_start_anew_do_not_meet_what_the_dead_had_queued(hub):
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    ranks = [
        context.Process(target=queuer, args=(hub.run_dir, number, theirs), daemon=True)
        for number, (_, theirs) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    assert [ours.recv() for ours, _ in pipes] == ["queued"] * 2
    for process in ranks:
        process.kill()
        process.join()
    time.sleep(0.3)
    clients = [Client(hub.run_dir, number, world=2) for number in range(2)]
    comm = form(clients, b"v" * 128)
    for client in clients:
        client.advance(99_999)
        client.all_reduce(comm, 64 << 20)
    syncs = [client.start_sync() for client in clients]
    alone_ns = expected_all_reduce_ns(2, 64 << 20)
    assert [c.finish_sync(*sync) for c, sync in zip(clients, syncs)] == [100_000 + alone_ns] * 2
    for client in clients:
        client.bye()
    result = hub.stop()
    assert (result["revised"], result["internal_errors"]) == (0, 0)


@pytest.mark.parametrize("first", ["exit", "the launcher ends the job"])
def test_ends_that_others_report_are_not(hub, spawned, first):
    ranks = [spawned(rank, number) for number in range(2)]
    if first == "exit":
        ranks[0][1].send("exit")
        ranks[0][0].join()
    else:
        (hub.run_dir / ENDS).touch()
    ranks[1][0].kill()
    ranks[1][0].join()
    assert killed(hub) == ([], None)


def test_a_rank_that_ends_with_the_process_that_started_it_is_not(hub, spawned):
    process, _, child = spawned(starter)
    os.kill(child, signal.SIGSTOP)  # they are killed at once
    process.kill()
    os.kill(child, signal.SIGKILL)
    process.join()
    assert killed(hub) == ([], None)


def test_a_rank_that_leaves_is_not(hub, spawned):
    process, pipe, _ = spawned(rank, 0)
    pipe.send("leave")
    process.join()
    assert process.exitcode == 0
    assert killed(hub) == ([], None)


@pytest.mark.parametrize("ending", ["signal", "code", "runs"])
def test_how_a_process_ended_on_a_kernel_that_does_not_tell_by_a_descriptor(ending):
    pid = os.fork()
    if not pid:
        if ending == "code":
            os._exit(3)
        signal.pause()
    if ending == "signal":
        os.kill(pid, signal.SIGKILL)
    if ending != "runs":
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with open("/dev/null", "rb") as nothing:
        status = _wait_status(nothing.fileno(), pid)
    if ending == "runs":
        os.kill(pid, signal.SIGKILL)
        assert status == 0
        os.waitpid(pid, 0)
    else:
        assert status == os.waitpid(pid, 0)[1] != 0


@pytest.mark.skipif(
    LINUX < (6, 15),
    reason="the kernel tells how a process ended by its descriptor from Linux 6.15 on",
)
def test_how_a_process_ended_whose_parent_waits_for_it_meanwhile(monkeypatch):
    pid = os.fork()
    if not pid:
        signal.pause()
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    expected = []

    def waited_for_meanwhile(pid):
        expected.append(os.waitpid(pid, 0)[1])
        return read_stat(pid)

    monkeypatch.setattr(deaths, "read_stat", waited_for_meanwhile)
    assert [_wait_status(descriptor, pid)] == expected
    os.close(descriptor)


def test_a_limit_of_cpu_time_is_said(monkeypatch):
    """The kernel logs nothing when it ends a process for it."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5, resource.RLIM_INFINITY))
    said = "; a process may use 5 s of CPU time here: raise ulimit -t"
    assert (_cpu_limit(signal.SIGXCPU), _cpu_limit(signal.SIGKILL)) == (said, "")
