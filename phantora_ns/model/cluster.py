"""A cluster: servers, the network between them, faults, and NCCL's switches.

Why it exists: it is what a cluster file means once it has been validated (`config/clusters.py`).
Bandwidths are in bytes per nanosecond, per direction; times are in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora_ns.model.gpu import GpuModel

MAX_NODES = 1000
"""Ports of the Linux bridge that joins the emulated nodes: BR_MAX_PORTS is 1024
(net/bridge/br_private.h)."""


@dataclass(frozen=True)
class Server:
    """What is inside one server. A bandwidth of None: the GPU model's own."""

    interconnect: str  # "nvswitch" or "pcie"
    nvlink_bytes_per_ns: float | None
    nvlink_latency_ns: int
    pcie_bytes_per_ns: float | None
    pcie_latency_ns: int
    gpus_per_nic: int
    storage_bytes_per_ns: float | None = None  # of one writing process; None: not modelled
    cpu_score_ns: int | None = None  # None: as fast as the machine of the host times


@dataclass(frozen=True)
class GraphLink:
    """One cable of an explicit graph, both directions."""

    a: str
    b: str
    bytes_per_ns: float
    latency_ns: int


@dataclass(frozen=True)
class Network:
    """What joins the servers; `kind` is none, switch, rail, fat-tree or graph."""

    kind: str
    nic_bytes_per_ns: float
    nic_latency_ns: int
    switch_latency_ns: int
    efficiency: float
    nodes_per_leaf: int | None
    spines: int
    oversubscription: float
    seed: int
    switches: tuple[str, ...] = ()
    links: tuple[GraphLink, ...] = ()


@dataclass(frozen=True)
class Fault:
    """A link at `factor` of its bandwidth, or a GPU at `factor` of its speed, from `from_ns` until
    `to_ns` (None: until the end). `key` is its place in the cluster file, for messages."""

    link: str | None
    gpu: str | None
    factor: float
    from_ns: int
    to_ns: int | None
    key: str


@dataclass(frozen=True)
class NcclSettings:
    """Switches of NCCL on this cluster."""

    nvls: bool
    pxn: bool
    amd_host: bool


@dataclass(frozen=True)
class Cluster:
    """A whole cluster, ready for `sim.topology.Topology`."""

    name: str
    file: str
    description: str
    nodes: int
    gpus_per_node: int
    gpu_model: GpuModel
    server: Server
    network: Network
    nccl: NcclSettings
    faults: tuple[Fault, ...]

    @property
    def gpu(self) -> str:
        """The GPU model's name in our files, such as "h200"."""
        return self.gpu_model.model

    @property
    def world_size(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node
