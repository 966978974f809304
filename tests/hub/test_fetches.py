"""A FETCH waits as long as the run lives, and fails in words when its result can never come."""

import os
import struct

import msgpack
import pytest
from inprocess import Bench

from phantora_ns.hub import fetches, horizon, registry
from phantora_ns.protocol import RANK_STATS_AT

ERROR, QUERY, FETCH = 0, 3, 9


class Clock:
    """Real time, which stands still unless a test moves it."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Three ranks: all in communicator 0, ranks 1 and 2 in communicator 1."""
    made = Bench(tmp_path)
    made.clock = Clock()
    monkeypatch.setattr(fetches, "time", made.clock)
    monkeypatch.setattr(registry, "time", made.clock)
    monkeypatch.setattr(horizon, "tree_sleeps", lambda pid: True)
    made.seq = [1] * 3
    for rank in range(3):
        made.hello(b"%d" % rank, rank)
    for rank in range(3):
        send(made, rank, 5, 1, 0, {}, 1, [0, 0, 0], b"u", 3, rank, rank % 2, 22809)
    for rank in (1, 2):
        send(made, rank, 5, 2, 0, {}, 2, [1, 0, 0], b"v", 2, rank - 1, rank % 2, 22809)
    made.hub.settle()
    made.outbox.clear()
    yield made
    made.close()


def says_sent(bench, rank, seq):
    """Writes into the rank's page, as the rank does before it sends."""
    os.pwrite(bench.pages[rank], struct.pack("<Q", seq), RANK_STATS_AT["sent_seq"])


def send(bench, rank, kind, *rest):
    bench.seq[rank] += 1
    says_sent(bench, rank, bench.seq[rank])
    bench.hub.handle(b"%d" % rank, msgpack.packb([kind, bench.seq[rank], *rest]))


def died(bench, rank, monkeypatch):
    """From now on no living process holds the lock on the rank's page."""
    dead = bench.hub.clients.everyone[rank].stats
    before = registry.SharedStats.owner
    monkeypatch.setattr(
        registry.SharedStats, "owner", lambda stats: None if stats is dead else before(stats)
    )


def reduce(bench, rank, comm=0, node=3):
    send(bench, rank, 8, 0, {}, comm, node, [1, 0, 0], [[0, 8, 4, 0, -1, bytes([21] + [0] * 7), 1]])


def look(bench, seconds):
    """What the hub says after `seconds`, and one look more."""
    bench.outbox.clear()
    for step in (seconds, fetches.LOOK_S):
        bench.clock.now += step
        bench.hub.settle()
    return [(who, reply[0], reply[2]) for who, reply in bench.outbox]


def test_a_member_that_comes_an_hour_late_is_waited_for(bench):
    for rank in (0, 1):
        reduce(bench, rank)
    send(bench, 0, FETCH, 7, 0, 3, 0)
    for _ in range(60):
        assert look(bench, 60) == []
    reduce(bench, 2)
    ((who, reply),) = bench.outbox
    assert (who, reply) == (b"0", [FETCH, 7, bytes([63] + [0] * 7), 0])
    assert not bench.hub.fetches and bench.hub.releases.hold_ms() is None


@pytest.mark.parametrize("word", [True, False])
def test_a_member_that_has_ended_is_not_waited_for(bench, word, monkeypatch):
    """Whether it said BYE or was killed."""
    for rank in (0, 1):
        reduce(bench, rank)
    send(bench, 0, FETCH, 7, 0, 3, 0)
    assert look(bench, 1) == [] and bench.hub.releases.hold_ms() <= 1000 * fetches.LOOK_S
    if word:
        send(bench, 2, 12, 0)
    else:
        died(bench, 2, monkeypatch)
    ((who, kind, text),) = look(bench, 1)
    assert (who, kind) == (b"0", ERROR)
    assert "rank 0 waits" in text and "rank 2 has ended" in text and "all_reduce" in text
    assert not bench.hub.fetches


def test_what_a_member_sent_before_it_was_killed_still_counts(bench, monkeypatch):
    for rank in (0, 1):
        reduce(bench, rank)
    send(bench, 0, FETCH, 7, 0, 3, 0)
    died(bench, 2, monkeypatch)
    says_sent(bench, 2, bench.seq[2] + 1)
    for _ in range(8):  # the hub has more to do, and comes to this message late
        assert look(bench, 0.5) == []
    reduce(bench, 2)
    assert [reply[0] for _, reply in bench.outbox] == [FETCH]


def test_a_member_that_was_killed_while_it_sent_is_not_waited_for(bench, monkeypatch):
    for rank in (0, 1):
        reduce(bench, rank)
    send(bench, 0, FETCH, 7, 0, 3, 0)
    died(bench, 2, monkeypatch)
    says_sent(bench, 2, bench.seq[2] + 1)
    assert look(bench, 1) == []
    ((who, kind, _),) = look(bench, registry.LAST_WORDS_S)
    assert (who, kind) == (b"0", ERROR)


def test_a_rank_that_waited_and_has_ended_is_no_error(bench, monkeypatch):
    """After a Ctrl-C all ranks end, the one that waited as well."""
    for rank in (0, 1):
        reduce(bench, rank)
    send(bench, 0, FETCH, 7, 0, 3, 0)
    for rank in (0, 2):
        died(bench, rank, monkeypatch)
    assert look(bench, 1) == [] and not bench.hub.fetches
    assert bench.hub.diagnostics.errors == []


def test_a_thread_that_only_watches_does_not_hide_that_ranks_are_stuck(bench):
    """NCCL's watchdog asks every 100 ms about a collective that is not done."""
    reduce(bench, 1, comm=1)
    send(bench, 1, FETCH, 7, 0, 3, 0)
    reduce(bench, 2)
    send(bench, 2, 2, 8, 0, {}, 4, [3, 0, 0])
    reduce(bench, 0)
    send(bench, 0, FETCH, 9, 0, 3, 0)
    assert look(bench, 1) == []
    for number in range(10):
        send(bench, 1, QUERY, 20 + number, 0, {}, [3, 0, 0], [], [])
        bench.clock.now += fetches.STUCK_S / 10
    told = look(bench, fetches.LOOK_S)
    assert b"1" in {who for who, kind, _ in told if kind == ERROR}


def test_a_thread_that_only_watches_does_not_make_its_rank_act(bench):
    """Rank 1 waits for a value of rank 0, so its clock does not hold rank 0's answers back, whether
    its watchdog asks in the meantime or not."""
    reduce(bench, 1)
    send(bench, 1, FETCH, 7, 0, 3, 0)
    clients = bench.hub.clients.everyone
    before = horizon.acting(clients)
    send(bench, 1, QUERY, 8, 0, {}, [0, 0, 0], [], [])
    bench.hub.settle()
    assert [(who, reply[0]) for who, reply in bench.outbox] == [(b"1", QUERY)]
    assert horizon.acting(clients) == before and clients[1] not in before
    send(bench, 1, QUERY, 9, 0, {}, [0, 0, 0], [0, 100, 0], [])
    bench.hub.settle()
    assert clients[1] in horizon.acting(clients), "another thread of its acts"


def test_a_message_whose_sender_has_ended(bench):
    send(bench, 1, 8, 0, {}, 1, 3, [1, 0, 0], [[9, 8, 4, 0, 1, None, 1]])
    send(bench, 1, FETCH, 7, 0, 3, 0)
    send(bench, 0, 12, 0)
    assert look(bench, 1) == []  # it is of no matter for this one
    send(bench, 2, 12, 0)
    ((who, kind, text),) = look(bench, 1)
    assert (who, kind) == (b"1", ERROR) and "rank 2 has ended" in text


def test_ranks_that_wait_for_one_another_fail(bench):
    """Rank 1 reads a result on the host that rank 2 comes to only after rank 1's next collective.
    On GPUs the hosts would go on."""
    reduce(bench, 1, comm=1)
    send(bench, 1, FETCH, 7, 0, 3, 0)
    reduce(bench, 2)
    send(bench, 2, 2, 8, 0, {}, 4, [3, 0, 0])
    assert look(bench, fetches.STUCK_S) == []  # rank 0 runs, and may help
    reduce(bench, 0)
    send(bench, 0, FETCH, 9, 0, 3, 0)
    assert look(bench, fetches.STUCK_S / 2) == []
    told = look(bench, fetches.STUCK_S)
    assert {who for who, _, _ in told} == {b"0", b"1"} and {kind for _, kind, _ in told} == {ERROR}
    assert any("rank 1 reads the result of all_reduce" in text for _, _, text in told)


def test_ranks_that_wait_for_one_that_works_do_not_fail(bench, monkeypatch):
    """It may be asleep, stopped, or in a long computation."""
    for rank in (0, 1):
        reduce(bench, rank)
        send(bench, rank, FETCH, 7, 0, 3, 0)
    assert look(bench, 100 * fetches.STUCK_S) == []
