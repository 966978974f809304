"""Why it exists: each collective becomes flows, and each flow that meets others re-times them."""

import pytest

from phantora_ns.config import load_cluster, load_gpu
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.databases import shipped_path
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import SignatureKind
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph, Op
from phantora_ns.sim.topology import Topology

HOSTS = 32
ALL_GATHER, BF16 = 1, 9


@pytest.mark.parametrize("meeting", [False, True], ids=["alone", "meeting"])
def test_flows(benchmark, meeting):
    """64 flows inserted, their completions read and committed; each alone on its link, or all to
    one host."""
    simulator = FlowSimulator({("link", host): 50.0 for host in range(HOSTS)})
    now = 0

    def step():
        nonlocal now
        handles = []
        for flow in range(2 * HOSTS):
            route = [("link", flow % HOSTS)] + [("link", 0)] * (meeting and flow % HOSTS > 0)
            handles.append(simulator.add(now, route, 1_000_000 + flow))
        now = max(simulator.completion_ns(handle) for handle in handles)
        simulator.commit(now)

    benchmark.extra_info["flows"] = 2 * HOSTS
    benchmark.pedantic(step, warmup_rounds=5, rounds=100)


class Jobs:
    """Two communicators over the same network cards, 16 ranks each, on two servers."""

    def __init__(self) -> None:
        cluster = load_cluster("h200-rail", nodes=2, gpus_per_node=8)
        topology = Topology.build(cluster)
        model = CollectiveModel(topology, load_gpu(cluster.gpu))
        flows = FlowSimulator(topology.capacities)
        self.graph = EventGraph(flows, model, topology.capacities)
        self.clients = [[self.graph.add_client() for _ in range(16)] for _ in range(2)]
        names = [f"rank {rank}" for rank in range(16)]
        self.groups = [
            self.graph.communicator(clients, list(range(16)), names) for clients in self.clients
        ]
        self.number = 0
        self.ends = []

    def launch(self, which: int, at_ns: int) -> None:
        """All ranks of a communicator gather 64 MB, and something depends on each end."""
        operation = Op(ALL_GATHER, 64 << 20, BF16, -1, -1)
        for client in self.clients[which]:
            start = self.graph.expression(client, [0, at_ns, 0])
            self.graph.launch(self.groups[which], client, self.number + 1, start, [operation])
            after = self.graph.expression(client, [self.number + 1, 1_000, 0])
            self.ends.append(self.graph.define(client, self.number + 2, after))


def test_a_retiming(benchmark):
    """A collective of 16 ranks moves another that is under way, and all that depends on it."""

    def first():
        jobs = Jobs()
        jobs.launch(0, 0)
        jobs.graph.run()
        return (jobs,), {}

    def second(jobs):
        jobs.launch(1, 1_000)
        jobs.graph.run()
        assert jobs.graph.retimed > 0

    benchmark.pedantic(second, setup=first, rounds=30)


@pytest.fixture(scope="module")
def entries():
    """Signatures that the shipped database holds."""
    with Database.open(shipped_path("h200")) as database:
        found = [entry for entry in database.signatures() if entry.kind == SignatureKind.KERNEL]
        return found[:200]


def test_look_ups_in_the_database(benchmark, entries):
    """200 kernels that nobody has asked for yet."""

    def fresh():
        return (KernelTimes("h200", [shipped_path("h200")]),), {}

    def look_up(times):
        return [times.lookup(entry.kind, entry.fields) for entry in entries]

    benchmark.extra_info["signatures"] = len(entries)
    answers = benchmark.pedantic(look_up, setup=fresh, rounds=10)
    assert len(answers) == 200
