"""Broadcasts whose receivers never come. On a GPU the root's part ends without them, because NCCL's buffers
hold the data; PyTorch's `test_ddp_model_diff_shape_across_ranks` ends so."""

import itertools

import msgpack
import pytest
from inprocess import Bench

from phantora_ns.protocol import Collective
from phantora_ns.sim._communicators import HELD_BYTES

INIT, FREE, OPS = 5, 7, 8
LAUNCHED_NS, LEFT_NS = 1_000, 5_000


class Job:
    """`ranks` ranks in communicator 0."""

    def __init__(self, bench, ranks):
        self.bench, self.seq = bench, [1] * ranks
        for rank in range(ranks):
            bench.hello(b"%d" % rank, rank)
            self.tell(rank, INIT, 1, 0, {}, 1, [0, 0, 0], b"u", ranks, rank, rank % 2, 22809)

    def tell(self, rank, kind, *fields):
        self.seq[rank] += 1
        self.bench.hub.handle(b"%d" % rank, msgpack.packb([kind, self.seq[rank], *fields]))

    def launch(self, rank, size=1000, root=0, kind=Collective.BROADCAST, vertex=2):
        op = [kind, size, 1, 0, root, bytes(size) if size == 1000 and rank == root else None, 0]
        self.tell(rank, OPS, LAUNCHED_NS, {}, 0, vertex, [0, LAUNCHED_NS, 0], [op])

    def leave(self, rank, at_ns=LEFT_NS):
        self.tell(rank, FREE, at_ns, 0)

    def end_ns(self, rank=0, vertex=2):
        """When the launch ends on a rank, ns; None while nothing that is known ends it."""
        graph = self.bench.hub.graph
        graph.run()
        graph.check()
        assert graph.late == 0
        return dict(graph.vertices(rank))[vertex].time_ns


@pytest.fixture
def job(tmp_path):
    folders = itertools.count()
    benches = []

    def job(ranks=2):
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        benches.append(Bench(folder))
        return Job(benches[-1], ranks)

    yield job
    for bench in benches:
        assert not bench.hub.diagnostics.bad_messages
        bench.close()


def met_ns(job, ranks=2):
    """How long the same broadcast takes when all come."""
    met = job(ranks)
    for rank in range(ranks):
        met.launch(rank)
    return met.end_ns() - LAUNCHED_NS


def test_it_begins_when_the_receiver_leaves(job):
    before, after = job(), job()
    before.launch(0)
    assert before.end_ns() is None
    before.leave(1)
    after.leave(1)
    after.launch(0)
    assert before.end_ns() == after.end_ns() == LEFT_NS + met_ns(job)


def test_a_receiver_that_ends_has_left(job):
    alone = job()
    alone.launch(0)
    client = alone.bench.hub.clients.get(b"1")
    client.clock_ns = LEFT_NS
    alone.bench.hub.clients.leave(client)
    assert alone.end_ns() == LEFT_NS + met_ns(job)


def test_the_root_may_leave_before_its_receivers(job):
    """Who of two leaves first in real time changes nothing."""
    first, last = job(), job()
    for one, ranks in ((first, (0, 1)), (last, (1, 0))):
        one.launch(0)
        for rank in ranks:
            one.leave(rank)
    assert first.end_ns() == last.end_ns() == LEFT_NS + met_ns(job)


def test_one_of_two_receivers_may_still_come(job):
    three = job(3)
    three.launch(0)
    three.leave(1)
    assert three.end_ns() is None
    three.leave(2, LEFT_NS + 7)
    assert three.end_ns() == LEFT_NS + 7 + met_ns(job, 3)


def test_a_receiver_that_waits_hangs_as_on_a_gpu(job):
    three = job(3)
    three.launch(0)
    three.launch(2)
    three.leave(1)
    assert three.end_ns(0) is None and three.end_ns(2) is None


def test_buffers_hold_so_much_in_all(job):
    alone = job()
    for vertex in range(2, 5):
        alone.launch(0, size=HELD_BYTES // 2, vertex=vertex)
    alone.leave(1)
    ends = [alone.end_ns(vertex=vertex) for vertex in range(2, 5)]
    assert None not in ends[:2] and ends[2] is None


@pytest.mark.parametrize(
    "launch",
    [
        {"size": HELD_BYTES + 1},
        {"root": 1},
        {"kind": Collective.REDUCE},
    ],
    ids=["too_large", "no_root", "other_kind"],
)
def test_whatever_no_buffer_holds_waits_for_ever(job, launch):
    alone = job()
    alone.launch(0, **launch)
    alone.leave(1)
    assert alone.end_ns() is None
