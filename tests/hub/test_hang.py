"""Why it exists: a job in which nothing can go on is told so (hub/hang.py). One that may still go on
never is: it would be ended.

Ranks are processes of their own, so that what a test does is not taken for the job's."""

import multiprocessing
import threading
import time

import pytest
from client import Client, HubError

from phantora_ns.hub.hang import BLOCKED_S, FILE

SIZE = 1 << 20
LONG_S = BLOCKED_S + 1.5
"""Longer than ranks that wait for one another must stand still, and a few looks more."""


def rank(run_dir, number, pipe):
    """One of two ranks. It carries out the orders that come through `pipe`, and answers each."""
    client = Client(run_dir, number, 0, timeout_ms=60_000, world=2)
    comms = [client.init(name * 128, 2, number) for name in (b"a", b"b")]
    pipe.send("here")
    for order in iter(pipe.recv, "end"):
        try:
            pipe.send(_obey(client, comms, order))
        except HubError as error:
            pipe.send(str(error))
    client.close()


def _obey(client, comms, order):
    end = time.monotonic() + LONG_S
    while order == "compute" and time.monotonic() < end:
        pass
    if order == "nap beside":
        threading.Thread(target=_naps, daemon=True).start()
    if order == "form another":
        client.init(b"n" * 128, 3, client.rank)
    if order in ("a", "b"):
        client.all_reduce(comms[order == "b"], SIZE)
        client.sync()
    return order


def _naps():
    while True:
        time.sleep(0.5)


@pytest.fixture
def ranks(hub):
    """Two ranks' pipes."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(2):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=rank, args=(hub.run_dir, number, theirs)))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.recv() == "here"
    yield pipes
    for process in processes:
        process.kill()
        process.join()


@pytest.fixture
def hangs(hub):
    """Whether the hub says that the job hangs, within a time."""

    def within(seconds):
        end = time.monotonic() + seconds
        while not (hub.run_dir / FILE).exists():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    return within


def test_ranks_that_wait_for_one_another_hang(hub, ranks, hangs):
    for pipe, order in zip(ranks, "ab"):
        pipe.send(order)
    assert hangs(30)
    hub.stop()
    assert "nothing in the job can go on: rank 0, rank 1 wait for communication" in hub.stderr


@pytest.mark.parametrize("order", ["compute", "sleep outside"])
def test_a_rank_that_may_still_act_is_waited_for(hub, ranks, hangs, order):
    ranks[0].send("a")
    if order == "compute":
        ranks[1].send(order)
    assert not hangs(LONG_S)
    if order == "compute":
        assert ranks[1].recv() == order
    ranks[1].send("a")
    assert [pipe.recv() for pipe in ranks] == ["a", "a"]
    assert "nothing in the job" not in str(hub.stop()["warnings"])


def test_a_thread_that_sleeps_for_a_time_is_waited_for(ranks, hangs):
    ranks[0].send("nap beside")
    assert ranks[0].recv() == "nap beside"
    for pipe, order in zip(ranks, "ab"):
        pipe.send(order)
    assert not hangs(LONG_S)


def test_a_communicator_that_never_forms_ends_the_job(hub, ranks):
    for pipe in ranks:
        pipe.send("form another")
    texts = [pipe.recv() for pipe in ranks]
    assert all("wait for a communicator that other ranks do not come to" in text for text in texts)


def test_a_job_that_goes_on_hangs_no_more(hub, ranks, hangs):
    for pipe, order in zip(ranks, "ab"):
        pipe.send(order)
    assert hangs(30)
    Client(hub.run_dir, 1, 1, world=2).close()
    end = time.monotonic() + 30
    while (hub.run_dir / FILE).exists():
        assert time.monotonic() < end
        time.sleep(0.01)
