"""Why it exists: a route is a path, and the links it names carry what the cluster file says."""

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.config import load_cluster
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.topology import Topology

SHAPES = [
    ("h200-1x8", 1, 8),
    ("h200-rail", 5, 8),
    ("h200-rail", 3, 3),
    ("h100-switch", 4, 8),
    ("a100-fat-tree", 11, 8),
    ("h200-fat-tree", 9, 2),
    ("example-graph", 2, 2),
]
BUILT = {shape: Topology.build(load_cluster(*shape)) for shape in SHAPES}


def make(tmp_path, text, **sizes):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return Topology.build(load_cluster(path, **sizes))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_route_is_a_path_and_as_long_both_ways(data):
    topology = BUILT[data.draw(st.sampled_from(SHAPES))]
    gpus = st.integers(0, topology.world_size - 1)
    a, b, salt = data.draw(gpus), data.draw(gpus), data.draw(st.integers(0, 2**40))
    rail = data.draw(st.none() | st.integers(0, max(topology.nics_per_node, 1) - 1))
    route = topology.route(a, b, salt, rail)
    place = topology.gpu_name(a)
    for link in route:
        start, end = topology.link_ends(link)
        assert start == place and topology.capacities[link] > 0
        place = end
    assert place == topology.gpu_name(b)
    assert len(set(route)) == len(route)
    back = topology.route(b, a, salt, rail)
    assert len(back) == len(route) and topology.latency_ns(a, b, salt, rail) == topology.latency_ns(
        b, a, salt, rail
    )
    assert (topology.kind(a, b) == "self") == (a == b) == (route == ())


def shortest(topology, a, b):
    """(latency, links) of the shortest way through the whole graph: Dijkstra, the plain form."""
    queue, done = [(0, 0, topology.gpu_name(a))], set()
    onward = {}
    for link in topology.capacities:
        start, end = topology.link_ends(link)
        onward.setdefault(start, []).append((end, topology.link_latency_ns[link]))
    while queue:
        latency, hops, place = heapq.heappop(queue)
        if place == topology.gpu_name(b):
            return latency, hops
        if place not in done:
            done.add(place)
            for end, more in onward[place]:
                heapq.heappush(queue, (latency + more, hops + 1, end))
    raise AssertionError("not connected")


@pytest.mark.parametrize(
    "shape", [("h100-switch", 3, 4), ("a100-fat-tree", 9, 2), ("example-graph", 2, 2)]
)
def test_routes_by_own_nics_are_the_shortest(shape):
    """Without PXN each side uses its own NIC, which is the nearest, so written-down routes are the
    searched ones."""
    topology = BUILT.get(shape) or Topology.build(load_cluster(*shape))
    per_node = topology.gpus_per_node
    for a in range(topology.world_size):
        for b in range(topology.world_size):
            own, theirs = topology.nic_of(a % per_node), topology.nic_of(b % per_node)
            if a // per_node == b // per_node or own == theirs:
                assert (topology.latency_ns(a, b), len(topology.route(a, b))) == shortest(
                    topology, a, b
                )


def test_capacities_are_the_files_bandwidths_times_their_efficiencies():
    topology = BUILT["h200-rail", 5, 8]
    assert topology.capacities[
        topology.link_id("node-0/gpu-3", "node-0/nvswitch")
    ] == pytest.approx(450 * 0.824)
    assert topology.capacities[topology.link_id("node-4/nic-7", "rail-7")] == pytest.approx(
        50 * 0.97
    )
    # 4 nodes x 8 NICs x 25 GB/s, halved, over 8 spines; the last leaf is not full
    tree = BUILT["a100-fat-tree", 11, 8]
    for leaf in ("leaf-0", "leaf-2"):
        assert tree.capacities[tree.link_id(leaf, "spine-3")] == pytest.approx(
            4 * 8 * 25 / 2 / 8 * 0.97
        )


def test_two_flows_leaving_by_one_nic_share_it(tmp_path):
    """And by two NICs they do not: the time that arithmetic predicts, to the nanosecond."""
    text = 'gpu = "h100"\n[server]\ngpus_per_nic = {}\n[network]\nkind = "switch"\nnic_bandwidth = "400 Gbit/s"\n'
    text += 'efficiency = "100%"\n'
    size = 50_000_000
    for sharing, expected in ((2, 2_000_000), (1, 1_000_000)):
        topology = make(tmp_path, text.format(sharing), nodes=2, gpus_per_node=2)
        flows = FlowSimulator(topology.capacities)
        handles = [flows.add(0, topology.route(gpu, gpu + 2), size) for gpu in (0, 1)]
        assert [flows.completion_ns(handle) for handle in handles] == [expected] * 2


def test_two_nodes_on_an_oversubscribed_uplink_take_as_much_longer(tmp_path):
    """Two nodes under one leaf send to two under another: 4 NICs x 50 GB/s into an uplink of 200 /
    ratio GB/s."""
    text = """gpu = "h100"
[network]
kind = "fat-tree"
nic_bandwidth = "400 Gbit/s"
efficiency = "100%"
nodes_per_leaf = 2
spines = 1
oversubscription = {}
"""
    for ratio in (1, 2, 4):
        topology = make(tmp_path, text.format(ratio), nodes=4, gpus_per_node=2)
        flows = FlowSimulator(topology.capacities)
        handles = [flows.add(0, topology.route(gpu, gpu + 4), 50_000_000) for gpu in range(4)]
        assert [flows.completion_ns(handle) for handle in handles] == [1_000_000 * ratio] * 4


def test_rails_are_changed_inside_the_sender():
    """PXN: a flow to GPU 5 of another node goes by GPU 5 of its own, and never leaves rail 5."""
    topology = BUILT["h200-rail", 5, 8]
    names = [topology.link_names[link] for link in topology.route(0, 13)]
    assert names == [
        "node-0/gpu-0 -> node-0/nvswitch",
        "node-0/nvswitch -> node-0/gpu-5",
        "node-0/gpu-5 -> node-0/nic-5",
        "node-0/nic-5 -> rail-5",
        "rail-5 -> node-1/nic-5",
        "node-1/nic-5 -> node-1/gpu-5",
    ]


def test_ecmp_spreads_flows_and_repeats():
    topology = BUILT["a100-fat-tree", 11, 8]
    spines = {}
    for salt in range(4000):
        name = topology.link_names[topology.route(0, 9 * 8, salt)[2]]
        spines[name] = spines.get(name, 0) + 1
    # 500 each on average, 22 standard deviation
    assert len(spines) == 8 and min(spines.values()) > 400
    again = Topology.build(load_cluster("a100-fat-tree", 11, 8))
    assert [again.route(0, 72, salt) for salt in range(100)] == [
        topology.route(0, 72, salt) for salt in range(100)
    ]


def test_an_explicit_graph_takes_the_way_of_least_latency_then_ecmp(tmp_path):
    topology = BUILT["example-graph", 2, 2]
    names = [topology.link_names[link] for link in topology.route(0, 2)]
    assert "left -> right" in names and not any("detour" in name for name in names)
    link = '[[network.link]]\na = "{}"\nb = "{}"\nbandwidth = "10 GB/s"\nlatency = "1 us"\n'
    switches = "".join(
        f'[[network.switch]]\nname = "{name}"\n' for name in ("l", "r", "m1", "m2", "m3")
    )
    pairs = [("node-0/nic-0", "l"), ("node-1/nic-0", "r")] + [
        pair for m in ("m1", "m2", "m3") for pair in (("l", m), (m, "r"))
    ]
    text = (
        f'gpu = "h100"\nnodes = 2\ngpus_per_node = 1\n[network]\nkind = "graph"\n{switches}'
        + "".join(link.format(*pair) for pair in pairs)
    )
    built = make(tmp_path, text)
    middles = [built.link_ends(built.route(0, 1, salt)[2])[1] for salt in range(300)]
    assert {name: middles.count(name) > 60 for name in set(middles)} == {
        "m1": True,
        "m2": True,
        "m3": True,
    }


def test_gpus_outside_are_refused():
    topology = BUILT["h200-rail", 3, 3]
    with pytest.raises(IndexError):
        topology.route(0, 9)
    with pytest.raises(IndexError):
        topology.route(0, 3, rail=3)


def test_a_thousand_gpus_are_built_and_routed_at_once():
    topology = Topology.build(load_cluster("h200-rail", 128, 8))
    topology.check()
    assert len(topology.route(0, 1023)) == 6
