"""Faults reach what they are about: links change capacity in the flow simulator, slow GPUs are told
to their node's ranks."""

import pytest

from phantora_ns.config import load_cluster
from phantora_ns.launch.machine.environment import gpu_faults
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.topology import Topology

CLUSTER = """
gpu = "h200"
max_gpus_per_node = 8
[server]
interconnect = "nvswitch"
gpus_per_nic = 1
[network]
kind = "rail"
nic_bandwidth = "400 Gbit/s"
nic_latency = "0.7 us"
"""
LINK = '[[fault]]\nlink = "node-0/nic-0 -> rail-0"\n'


def build(tmp_path, faults):
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER + faults)
    return load_cluster(str(path), nodes=2, gpus_per_node=2)


def simulator(topology):
    flows = FlowSimulator(topology.capacities)
    for change in topology.capacity_changes():
        flows.set_capacity(*change)
    return flows


def test_a_slow_link_takes_as_long_as_arithmetic_says(tmp_path):
    topology = Topology.build(
        build(tmp_path, LINK + 'bandwidth = "25%"\nfrom = "1 ms"\nto = "3 ms"\n')
    )
    (link,) = {link for _, link, _ in topology.capacity_changes()}
    rate = topology.capacities[link]
    flows = simulator(topology)
    # 1 ms at full rate, 2 ms at a quarter, the rest at full rate again
    flow = flows.add(0, [link], int(rate * 4_000_000))
    assert flows.completion_ns(flow) == pytest.approx(1e6 + 2e6 + (4 - 1 - 0.5) * 1e6, abs=2)


def test_overlapping_faults_multiply(tmp_path):
    faults = LINK + 'bandwidth = "50%"\n' + LINK + 'bandwidth = "50%"\nfrom = "1 ms"\nto = "2 ms"\n'
    topology = Topology.build(build(tmp_path, faults))
    rate = max(topology.capacities[link] for _, link, _ in topology.capacity_changes())
    assert [(at, value / rate) for at, _, value in topology.capacity_changes()] == [
        (0, 0.5),
        (1_000_000, 0.25),
        (2_000_000, 0.5),
    ]


def test_a_node_is_told_of_its_own_slow_gpus_only(tmp_path):
    cluster = build(tmp_path, '[[fault]]\ngpu = "node-1/gpu-1"\nspeed = "90%"\nfrom = "2 s"\n')
    assert gpu_faults(cluster.faults, 0) == {}
    assert gpu_faults(cluster.faults, 1) == {"PHANTORA_GPU_FAULTS": "1,2000000000,0,900"}
