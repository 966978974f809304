"""Ranks that are not there in one way or another: asleep in a socket, busy, dead, never come. None
may stop the others."""

import multiprocessing
import os
import signal
import time

import pytest
from client import Client, form, pair

SIZE = 1 << 20


def sleeper(run_dir, pipe):
    """A rank on another server's rail that connects, then waits in a read, as for a store or a
    lock."""
    client = Client(run_dir, 2, 0)
    pipe.send("here")
    pipe.recv()
    client.close()


def worker(run_dir, pipe):
    """A rank that computes on the CPU until it is told to stop: it still may do anything at its
    clock."""
    client = Client(run_dir, 2, 0)
    pipe.send("here")
    while not pipe.poll(0):
        sum(range(10_000))
    client.advance(10**10)
    pipe.send("advanced")
    pipe.recv()
    client.close()


def ender(run_dir, pipe):
    """A rank that has said PARTING, and sends one more message when it is told to. It uses its CPU throughout."""
    client = Client(run_dir, 2, 0)
    client.part()
    pipe.send("here")
    while not pipe.poll(0):
        sum(range(10_000))
    client.note("warning", "it acts")
    pipe.recv()
    pipe.send("acted")
    while not pipe.poll(0):
        sum(range(10_000))
    client.close()


@pytest.fixture
def other(hub):
    """Starts a process of the job that runs `function(run_dir, pipe)`."""
    context = multiprocessing.get_context("spawn")
    started = []

    def start(function):
        ours, theirs = context.Pipe()
        process = context.Process(target=function, args=(hub.run_dir, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
        assert ours.recv() == "here"
        return process, ours

    yield start
    for process, pipe in started:
        pipe.close()
        process.kill()
        process.join()


def test_an_idle_rank_is_left_out(hub, other):
    other(sleeper)
    clients, syncs = pair(hub)
    # would time out otherwise
    times = [client.finish_sync(*sync) for client, sync in zip(clients, syncs)]
    assert times[0] == times[1] > 5_000
    assert hub.stop()["revised"] == 0


def test_a_rank_that_uses_its_cpu_is_waited_for(hub, other):
    _, pipe = other(worker)
    clients, syncs = pair(hub)
    deadline = time.monotonic() + 0.3  # many times what makes a rank count as idle
    while time.monotonic() < deadline:
        assert not clients[0].socket.poll(20)
    pipe.send("stop")
    assert pipe.recv() == "advanced"
    assert clients[0].finish_sync(*syncs[0]) == clients[1].finish_sync(*syncs[1])
    pipe.send("end")


def test_a_query_of_what_cannot_be_over_waits_for_nobody(hub, other):
    """A GPU has milliseconds of work in its queue. So the hub can answer "not over" while another rank is far
    behind. "Over" has to wait for that rank, which may still slow the work down."""
    _, pipe = other(worker)
    clients = [Client(hub.run_dir, rank, rank) for rank in range(2)]
    comm = form(clients, devices=[0, 0])
    for client in clients:
        client.all_reduce(comm, 64 * SIZE)
    for client in clients:
        client.advance(1_000)
        assert client.query(client.stream) == 0
    clients[0].advance(10**9)
    request = clients[0].start_query(clients[0].stream)
    assert not clients[0].socket.poll(300)
    pipe.send("stop")
    assert pipe.recv() == "advanced"
    clients[1].advance(10**9)
    assert clients[0].wait(request)[2] == 1
    pipe.send("end")


def test_a_turn_comes_when_nobody_can_act_earlier(hub, other):
    """Ranks at the same time do not wait for each other; who is earlier is waited for, however long it works."""
    _, pipe = other(worker)
    clients = [Client(hub.run_dir, rank, rank) for rank in range(2)]
    for client in clients:
        client.advance(7_000)
    turns = [client.start_turn() for client in clients]
    assert not clients[0].socket.poll(300) and not clients[1].socket.poll(0)
    pipe.send("stop")
    assert pipe.recv() == "advanced"
    assert [client.wait(turn)[2:] for client, turn in zip(clients, turns)] == [[], []]
    assert [client.clock for client in clients] == [7_000, 7_000]
    clients[0].advance(2_000)
    late = clients[0].start_turn()
    clients[1].look_busy()
    assert not clients[0].socket.poll(100)
    clients[1].advance(1_999)
    assert not clients[0].socket.poll(100)
    clients[1].advance(1)
    clients[0].wait(late)
    assert hub.stop()["answers_past_idle"] == 0


def test_an_idle_rank_does_not_hold_back_a_turn(hub, other):
    """It may wait for what the other one does after its turn."""
    other(sleeper)
    client = Client(hub.run_dir, 0, 0)
    client.advance(7_000)
    client.wait(client.start_turn())  # would time out otherwise
    assert hub.stop()["answers_past_idle"] == 1


def test_a_rank_that_waits_for_its_turn_to_end_holds_back_nobody_until_it_acts(hub, other):
    """Like the busy rank above, for which the others wait, but it has said PARTING."""
    _, pipe = other(ender)
    clients, syncs = pair(hub)
    assert clients[0].finish_sync(*syncs[0]) == clients[1].finish_sync(*syncs[1]) > 5_000
    pipe.send("act")
    assert pipe.recv() == "acted"
    meeting = [client.start_init(b"later", 2, rank) for rank, client in enumerate(clients)]
    assert not clients[0].socket.poll(300)
    pipe.send("end")
    assert len({c.finish_init(*one) for c, one in zip(clients, meeting)}) == 1
    assert hub.stop()["revised"] == 0


def test_a_killed_rank_is_left_out(hub, other):
    process, _ = other(worker)
    clients, syncs = pair(hub)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert clients[0].finish_sync(*syncs[0]) == clients[1].finish_sync(*syncs[1])


def test_an_idle_rank_that_wakes_up_revises_what_was_told(hub, other):
    """It had a flow in the past of an answer. The times are told as revised, and the rest goes
    on."""
    clients = [Client(hub.run_dir, rank, rank % 2) for rank in range(4)]
    first = form(clients[:2], b"first", [0, 0])
    second = form(clients[2:], b"second", [0, 0])
    for client in clients[:2]:
        client.all_reduce(first, 8 * SIZE)
    syncs = [client.start_sync() for client in clients[:2]]
    # this process sleeps: all look idle
    told = [client.finish_sync(*sync) for client, sync in zip(clients, syncs)]
    for client in clients[2:]:
        client.all_reduce(second, 8 * SIZE)
    later = [client.start_sync() for client in clients[2:]]
    assert [client.finish_sync(*sync) for client, sync in zip(clients[2:], later)][0] >= told[0]
    assert hub.stop()["revised"] == 2


def test_ranks_that_wait_for_one_another_do_not_hold_back_a_third(hub):
    """Two ranks in rendezvous whose other members have not come, and one that only needs itself and
    a partner."""
    clients = [Client(hub.run_dir, rank, rank % 2) for rank in range(4)]
    clients[2].start_init(b"never-a", 2, 0, 1)
    clients[3].start_init(b"never-b", 2, 0, 1)
    comm = form(clients[:2], b"pair", [0, 0])
    for client in clients[:2]:
        client.advance(1_000_000)
        client.all_reduce(comm, SIZE)
    syncs = [client.start_sync() for client in clients[:2]]
    assert clients[0].finish_sync(*syncs[0]) == clients[1].finish_sync(*syncs[1]) > 1_000_000


def test_sigterm_while_answers_are_open(hub, other):
    other(worker)
    clients, _ = pair(hub)
    clients[0].lookup(1, 4, ["nop", []])
    clients[1].lookup(1, 4, ["nop", []])
    result = hub.stop()
    assert result["simulated_ns"] > 5_000 and len(result["clients"]) == 3
