"""How long the hub keeps the values of collectives: as long as somebody may fetch them, within a
budget."""

import msgpack
import pytest
from inprocess import Bench

from phantora_ns.hub import communicators


@pytest.fixture
def bench(tmp_path):
    """Two ranks in communicator 0."""
    made = Bench(tmp_path)
    for rank in range(2):
        made.hello(b"%d" % rank, rank)
        made.hub.handle(
            b"%d" % rank, msgpack.packb([5, 2, 1, 0, {}, 1, [0, 0, 0], b"u", 2, rank, rank, 22809])
        )
    made.seq = [2, 2]
    yield made
    made.close()


def reduce(bench, node, wanted=(0, 1), unknown=()):
    """Both ranks reduce [node, 0, ...] of 1,000 bytes; what `unknown` ranks send, nothing has
    computed."""
    for rank in range(2):
        bench.seq[rank] += 1
        op = [
            0,
            1000,
            1,
            0,
            -1,
            bytes([node]) + bytes(999),
            (rank in wanted) + 2 * (rank in unknown),
        ]
        bench.hub.handle(
            b"%d" % rank, msgpack.packb([8, bench.seq[rank], 0, {}, 0, node, [1, 0, 0], [op]])
        )


def fetch(bench, rank, node) -> bytes:
    bench.seq[rank] += 1
    bench.outbox.clear()
    bench.hub.handle(b"%d" % rank, msgpack.packb([9, bench.seq[rank], 100 + node, 0, node, 0]))
    ((_, (kind, _, data, *known)),) = bench.outbox
    bench.unknown = known == [1]
    return (kind, data[:1])


def test_values_go_with_their_last_reader(bench):
    kept = bench.hub.communicators
    reduce(bench, 2)
    reduce(bench, 3, wanted=())
    assert kept._kept_bytes == 2000  # nobody wants the second
    assert fetch(bench, 0, 2) == (9, b"\4") and kept._kept_bytes == 2000
    assert fetch(bench, 1, 2) == (9, b"\4") and kept._kept_bytes == 0 and not kept._kept


def test_the_oldest_values_go_when_the_budget_is_spent(bench, monkeypatch):
    monkeypatch.setattr(communicators, "MAX_VALUE_BYTES", 5000)
    for node in range(2, 12):
        reduce(bench, node)
    assert bench.hub.communicators._kept_bytes == 4000
    assert fetch(bench, 0, 10) == (9, b"\x14")
    assert fetch(bench, 0, 2) == (9, b"") and bench.hub.communicators.expired == 1


def test_results_that_are_never_fetched_do_not_pile_up(bench, monkeypatch):
    monkeypatch.setattr(communicators, "MAX_RESULTS", 4)
    for node in range(2, 12):
        reduce(bench, node)
    assert all(len(client.results) == 4 for client in bench.hub.clients.everyone)
    assert fetch(bench, 0, 3) == (9, b"") and fetch(bench, 0, 11) == (9, b"\x16")
    assert bench.hub.communicators.expired == 1
    assert fetch(bench, 0, 50)[0] == 0  # never was


def test_a_result_is_known_when_every_part_is(bench):
    for node, unknown in ((2, ()), (3, (1,)), (4, (0, 1)), (5, ())):
        reduce(bench, node, unknown=unknown)
        for rank in range(2):
            assert fetch(bench, rank, node) == (9, bytes([2 * node])) and bench.unknown == bool(
                unknown
            )


def test_results_of_one_source_are_as_known_as_it_is():
    # broadcast, scatter
    for kind in (
        communicators.Exchange(3, 8, 7, -1, 1, 4),
        communicators.Exchange(7, 8, 7, -1, 1, 4),
    ):
        kind.unknown.add(0)
        assert not kind.result_unknown()
        kind.unknown.add(1)
        assert kind.result_unknown()


def test_what_has_expired_is_unknown(bench, monkeypatch):
    monkeypatch.setattr(communicators, "MAX_VALUE_BYTES", 5000)
    for node in range(2, 12):
        reduce(bench, node)
    assert fetch(bench, 0, 2) == (9, b"") and bench.unknown
