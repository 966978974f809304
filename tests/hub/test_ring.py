"""Why it exists: the smallest whole run: ranks meet, add up, synchronise; the times and values are
those of the models."""

import numpy as np
from client import ALL_REDUCE, FP32, SUM, Client, form

from phantora_ns.config import load_cluster, load_gpu
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.topology import Topology


def expected_all_reduce_ns(ranks: int, size: int, nodes=2, gpus_per_node=4) -> int:
    """The collective alone on the network, straight from the model."""
    cluster = load_cluster("h200-rail", nodes=nodes, gpus_per_node=gpus_per_node)
    topology = Topology.build(cluster)
    plan = CollectiveModel(topology, load_gpu(cluster.gpu)).plan(
        ALL_REDUCE, list(range(ranks)), size, FP32
    )
    flows = FlowSimulator(topology.capacities)
    handles = [
        flows.add(plan.before_ns, flow.links, flow.size_bytes, flow.rate_cap, flow.count)
        for flow in plan.flows
    ]
    return max(flows.completion_ns(handle) for handle in handles) + plan.after_ns


def test_two_ranks_all_reduce(hub):
    a, b = Client(hub.run_dir, 0), Client(hub.run_dir, 1)
    comm = form([a, b])
    assert a.clock == b.clock == 1  # a rendezvous is one nanosecond after its last member
    a.compute(5_000)
    b.compute(9_000)
    for client in (a, b):
        client.advance(100)
        client.all_reduce(comm, 1 << 20)
    syncs = [client.start_sync() for client in (a, b)]
    times = [client.finish_sync(*sync) for client, sync in zip((a, b), syncs)]
    assert times == [9_001 + expected_all_reduce_ns(2, 1 << 20)] * 2
    for client in (a, b):
        client.bye()
    result = hub.stop()
    assert result["simulated_ns"] == times[0]
    alone_ns = expected_all_reduce_ns(2, 1 << 20)
    spans = [(c["comm_ns"], c["comm_wait_ns"]) for c in result["clients"]]
    assert spans == [(alone_ns + 4_000, 4_000), (alone_ns, 0)]
    assert result["bad_messages"] == result["internal_errors"] == 0


def test_values_travel(hub):
    clients = [Client(hub.run_dir, rank) for rank in range(3)]
    comm = form(clients)
    data = [np.arange(4, dtype=np.float32) * (rank + 1) for rank in range(3)]
    nodes = [
        c.ops(comm, [ALL_REDUCE, 16, FP32, SUM, -1, d.tobytes(), 1]) for c, d in zip(clients, data)
    ]
    for client, node in zip(clients, nodes):
        assert np.array_equal(np.frombuffer(client.fetch(node), np.float32), sum(data))
    for client in clients:
        client.bye()
    assert hub.stop()["bad_messages"] == 0
