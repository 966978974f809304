"""The law of folding: what ranks do folded takes the times that it takes unfolded, to the nanosecond.

Ranks run random programs against a hub without sockets, once all of them and once with some absent. The
cluster has slow links, so that ranks of one class reach the same point at different times.
"""

import os
import random
import struct

import msgpack
import pytest

from phantora_ns.config import load_cluster, load_gpu
from phantora_ns.config.changes import Changes
from phantora_ns.hub import horizon
from phantora_ns.hub.lookups import KernelModels
from phantora_ns.hub.registry import SharedStats
from phantora_ns.hub.requests import Query
from phantora_ns.hub.server import Hub, HubOptions
from phantora_ns.hub.stillness import Stillness
from phantora_ns.model.fold import LAST, Fold
from phantora_ns.protocol import (
    RANK_STATS,
    RANK_STATS_AT,
    RANK_STATS_MAGIC,
    RANK_STATS_VERSION,
    VERSION,
    Collective,
    Message,
)
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph
from phantora_ns.sim.topology import Topology

NODES, EACH = 7, 2
WORLD = NODES * EACH
BF16 = 9
REQUESTS = (Message.SYNC, Message.COMM_INIT, Message.COMM_SPLIT, Message.QUERY)


class Rank:
    """One rank that runs a program: a list of (word, arguments...)."""

    def __init__(self, number, program):
        self.number, self.program = number, list(program)
        self.identity = b"%d" % number
        self.seq = self.requests = self.vertices = 0
        self.anchor, self.told, self.offset = 0, 0, 0
        self.stream, self.comm = [], []
        self.groups = {}
        self.waits = None

    def say(self, kind, *fields):
        self.seq += 1
        return msgpack.packb([kind, self.seq, *fields])

    def ask(self, kind, *fields, then):
        self.requests += 1
        self.waits = then
        return self.say(kind, self.requests, self.told + self.offset, *fields)

    def vertex(self):
        self.vertices += 1
        return self.vertices

    def here(self):
        return [self.anchor, self.offset, 0]

    def anchored(self, vertex, time):
        self.anchor, self.told, self.offset = vertex, time, 0
        self.stream, self.comm = [], []

    def step(self):
        """The next message, None when the word needs none."""
        word, *arguments = self.program.pop(0)
        return getattr(self, word)(*arguments)

    def host(self, ns):
        self.offset += ns

    def kernel(self, ns, contention):
        terms = self.stream + self.here()
        self.stream = [
            value
            for at in range(0, len(terms), 3)
            for value in (terms[at], terms[at + 1], _longer(terms[at + 2], ns, contention))
        ]

    def init(self, name, members):
        vertex = self.vertex()
        uid = f"{name} {members[0]}".encode().ljust(128)

        def answered(reply):
            self.groups[name] = reply[2], members
            self.anchored(vertex, reply[3])

        at = [len(members), members.index(self.number), self.number % EACH, 22809]
        return self.ask(Message.COMM_INIT, {}, vertex, self.here(), uid, *at, then=answered)

    def split(self, name, source, members):
        """Into a group of these members; who is no member gets none."""
        vertex, inside = self.vertex(), self.number in members
        color, key = (members[0], members.index(self.number)) if inside else (-1, 0)

        def answered(reply):
            if inside:
                self.groups[name] = reply[2], members
                assert reply[3:5] == [key, len(members)]
            self.anchored(vertex, reply[5])

        at = [vertex, self.here(), self.groups[source][0], color, key]
        return self.ask(Message.COMM_SPLIT, {}, *at, then=answered)

    def collective(self, name, kind, size):
        return self.ops(name, [[kind, size, BF16, -1 if kind else 0, 0, None, 0]])

    def ring(self, name, by, size):
        _, members = self.groups[name]
        at, count = members.index(self.number), len(members)
        pairs = [(Collective.SEND, (at + by) % count), (Collective.RECV, (at - by) % count)]
        return self.pairs(name, [(kind, peer, size) for kind, peer in pairs])

    def pairs(self, name, pairs):
        """Sends and receives of one launch: (kind, peer, bytes) each."""
        return self.ops(name, [[kind, size, BF16, -1, peer, None, 0] for kind, peer, size in pairs])

    def ops(self, name, ops):
        vertex = self.vertex()
        begins = self.stream + self.comm + self.here()
        message = self.say(
            Message.OPS, self.told + self.offset, {}, self.groups[name][0], vertex, begins, ops
        )
        self.comm = [vertex, 0, 0]
        return message

    def wait(self):
        self.stream = self.stream + self.comm

    def sync(self):
        vertex = self.vertex()
        ends = self.stream + self.comm + self.here()
        return self.ask(
            Message.SYNC,
            {},
            vertex,
            ends,
            then=lambda reply: self.anchored(vertex, reply[2]),
        )

    def query(self):
        if self.comm:
            named = self.comm[::3]
            return self.ask(
                Message.QUERY, {}, self.comm, self.here(), named, then=lambda reply: None
            )

    def bye(self):
        return self.say(Message.BYE, self.told + self.offset)

    def mark(self):
        return self.say(Message.STEP, self.told + self.offset, {}, self.here(), 1, 2, [])


def _longer(work, ns, contention):
    runs = work if isinstance(work, list) else [work, 0] if work else []
    return [*runs, ns, contention]


class NoTimes:
    versions = None


class Run:
    """A hub and the ranks that run; `times` are those of every rank's vertices in the end."""

    def __init__(self, folder, cluster, programs, fold, order):
        (folder / "ranks").mkdir(parents=True)
        topology = Topology.build(cluster)
        flows = FlowSimulator(topology.capacities)
        for change in topology.capacity_changes():
            flows.set_capacity(*change)
        self.graph = EventGraph(
            flows,
            CollectiveModel(topology, load_gpu(cluster.gpu)),
            topology.capacities,
            contention=0.1,
        )
        models = KernelModels(NoTimes(), lambda *_: 0, lambda *_: 1)
        options = HubOptions(NODES, EACH, table_capacity=64, fold=fold, per_node=EACH)
        self.hub = Hub(folder, self.graph, models, options)
        self.folder, self.times = folder, {}
        running = [at for at in range(WORLD) if fold is None or fold.runs(at)]
        self.ranks = [Rank(at, programs(at)) for at in running]
        order.shuffle(self.ranks)
        for rank in self.ranks:
            self.hello(rank)
        self.go(order)

    def hello(self, rank):
        page = bytearray(RANK_STATS.size)
        struct.pack_into("<QQ", page, 0, RANK_STATS_MAGIC, RANK_STATS_VERSION)
        busy = sum(word[1] for word in rank.program if word[0] == "kernel")
        struct.pack_into("<Q", page, RANK_STATS_AT["busy_ns"], busy)
        (self.folder / "ranks" / str(rank.number)).write_bytes(page)
        place = {"rank": rank.number, "world_size": WORLD, "node": rank.number // EACH}
        self.hub.handle(
            rank.identity,
            rank.say(Message.HELLO, VERSION, place | {"shm": str(rank.number), "leader": 0}),
        )
        client = self.hub.clients.get(rank.identity)
        for one in (client, *client.absent):
            self.times[one.rank] = own = {}
            self.graph.follow(
                one.number, lambda at, vertex, _, own=own: own.update({at: vertex.time_ns})
            )
        self.hub.answers.take()

    def go(self, order):
        """Every rank goes on as far as it can, in a random order, until all have ended."""
        by_identity = {rank.identity: rank for rank in self.ranks}
        while any(rank.program for rank in self.ranks):
            free = [rank for rank in self.ranks if rank.program and not rank.waits]
            for rank in order.sample(free, order.randint(0, len(free))):
                message = rank.step()
                if message is not None:
                    self.hub.handle(rank.identity, message)
            self.hub.settle()
            self.check_bounds()
            if order.random() < 0.1:
                self.hub.releases.commit()
            for identity, reply in self.hub.answers.take():
                assert reply[0] in REQUESTS, reply
                then, by_identity[identity].waits = by_identity[identity].waits, None
                then(reply)
        self.graph.run()
        self.graph.check()
        self.graph.finish_following()
        self.marks = {
            one.rank: self.graph.marks(one.number)
            for client in self.hub.clients.everyone
            for one in (client, *client.absent)
        }
        if self.hub.folding is not None:
            assert self.hub.folding.finish() is None

    def check_bounds(self):
        """What the hub keeps of bounds is what they are."""
        clients = self.hub.clients.present()
        for client in clients:
            for request in client.pending.values():
                if isinstance(request, Query):
                    hosts = [request.host, *(host for _, host in request.others)]
                    known = [at[0] for host in hosts if (at := host.reach()) is not None]
                    assert request.bound_ns() == min(known, default=None)
        assert self.hub.releases.lower_bound_ns() == horizon.last(clients)[0]

    def close(self):
        for client in list(self.hub.clients.present()):
            self.hub.clients.leave(client)
        self.hub.lookups.table.close()


@pytest.fixture(autouse=True)
def living(monkeypatch):
    monkeypatch.setattr(SharedStats, "owner", lambda stats: os.getpid())
    # nobody idles: looking at this process would only take time
    monkeypatch.setattr(Stillness, "reached", lambda *_: False)


def random_program(seed):
    """rank -> a program that every rank runs over its own groups."""
    order = random.Random(seed)
    words = []
    for _ in range(order.randint(10, 40)):
        words += (
            order.choices(
                [
                    lambda: ("host", order.randint(0, 50_000)),
                    lambda: ("kernel", order.randint(1, 200_000), order.randint(0, 40_000)),
                    lambda: (
                        "collective",
                        order.choice("WNAST"),
                        order.randint(0, 2),
                        order.randint(1, 1 << 22),
                    ),
                    lambda: (
                        "ring",
                        order.choice("WA"),
                        order.randint(1, NODES - 1),
                        order.randint(1, 1 << 20),
                    ),
                    lambda: ("wait",),
                    lambda: ("sync",),
                    lambda: ("query",),
                    lambda: ("mark",),
                ],
                weights=[3, 4, 4, 1, 2, 1, 1, 1],
            )[0](),
        )
    words += [("sync",), ("bye",)]

    def program(rank):
        node = rank // EACH * EACH
        across = list(range(rank % EACH, WORLD, EACH))
        yield from [
            ("init", "W", list(range(WORLD))),
            ("init", "N", list(range(node, node + EACH))),
            ("init", "A", across),
            ("split", "S", "W", across),
            # one node after another, as when groups are made of lists of ranks
            *(("split", "T", "W", list(range(at, at + EACH))) for at in range(0, WORLD, EACH)),
        ]
        knows = random.Random(seed * WORLD + rank)
        for word in words:
            # what a rank has to ask depends on how far the hub knew time when it last asked
            if word == ("query",) and knows.random() < 0.5:
                continue
            # in a ring over the world, the peer is a whole number of nodes away
            yield ("ring", "W", word[2] * EACH, word[3]) if word[:2] == ("ring", "W") else word

    return program


def slow(links):
    return load_cluster("h200-rail", NODES, EACH, Changes((), (), links))


CLUSTERS = {
    "even": (),
    "slow rail": ("node-3/nic-0:50%",),
    "slow links": ("node-2/nic-1:70%", "node-4/nic-0:30%"),
}


@pytest.mark.parametrize("links", CLUSTERS)
@pytest.mark.parametrize(
    "seed, last", [*((seed, LAST) for seed in range(12)), *((seed, 0) for seed in range(12, 18))]
)
def test_times_are_those_of_all_ranks_running(tmp_path, seed, last, links):
    cluster, programs = slow(CLUSTERS[links]), random_program(seed)
    whole = Run(tmp_path / "whole", cluster, programs, None, random.Random(seed))
    fold = Fold(EACH, WORLD, WORLD, last)
    folded = Run(tmp_path / "folded", cluster, programs, fold, random.Random(seed + 1))
    assert folded.times.keys() == whole.times.keys() == set(range(WORLD))
    assert folded.times == whole.times
    assert folded.marks == whole.marks
    assert folded.graph.late == 0
    if not folded.hub.releases.past_absent:
        assert folded.graph.revised == 0
    found = folded.hub.folding.describe()
    assert not found["differences"] and found["compared"] > 0
    if links == "even":
        assert found["different_answers"] == 0
    whole.close()
    folded.close()


def test_the_slow_links_do_make_answers_differ(tmp_path):
    """Else the law above would say nothing about ranks that fall behind their representative."""
    different = 0
    for seed in range(12):
        run = Run(
            tmp_path / str(seed),
            slow(CLUSTERS["slow links"]),
            random_program(seed),
            Fold(EACH, WORLD, WORLD),
            random.Random(seed),
        )
        different += run.hub.folding.describe()["different_answers"]
        run.close()
    assert different
