"""Why it exists: cluster files and GPU models become frozen objects here, or one message that says
what to change.

Rule: parsing and validation only; nothing in here looks at the machine that it runs on. Every key
is described in docs/clusters.md. The graph that a cluster file means is built by `sim.topology`;
building it once is the last step of validation, so that an unconnected graph or a fault on a link
that does not exist is found before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from phantora_ns._toml_table import ConfigError, Table, nearest, read_toml
from phantora_ns.sim._nccl_constants import NcclConstants, NcclTimes, PairTimes, ProtocolTimes

__all__ = [
    "Cluster",
    "ConfigError",
    "Fault",
    "GpuModel",
    "GraphLink",
    "HostCosts",
    "NcclSettings",
    "Network",
    "Server",
    "default_cluster",
    "list_clusters",
    "list_gpus",
    "load_cluster",
    "load_gpu",
    "topologies_dir",
]

_PACKAGE = Path(str(resources.files("phantora_ns")))
_DEFAULT_CLUSTER = "h200-rail"
PROTOCOLS = ("ll", "ll128", "simple")
HOST_CALLS = (
    "launch",
    "gemm",
    "dnn",
    "comm",
    "copy",
    "memset",
    "record",
    "wait",
    "sync",
    "query",
    "malloc",
    "free",
)
"""Classes of calls that cost the host time: enum ph_call of libintercept/base/shim.h."""


@dataclass(frozen=True)
class HostCosts:
    """What the host pays for calls of the driver, and the GPU's own latencies, in nanoseconds."""

    call_ns: Mapping[str, int]  # by class of call: HOST_CALLS
    launch_latency_ns: int  # from the end of the launch's call to the first cycle on an idle stream
    kernel_gap_ns: int  # between back-to-back kernels
    unknown_ns: int  # the job's own time before a call of which no record says anything
    launch_queue: (
        int  # works of one stream that may be unfinished before a launch waits; 0: any number
    )
    graph_gap_ns: int = 0  # between back-to-back kernels of a CUDA graph
    graph_launch_ns: int = 0  # what cudaGraphLaunch costs the host
    graph_node_ns: int = 0  # and what each node of the graph adds


@dataclass(frozen=True)
class GpuModel:
    """One GPU model: phantora_ns/data/gpus/MODEL.toml. Bandwidths in bytes per ns, per direction;
    peaks in FLOP per ns."""

    model: str
    name: str
    memory_bytes: int
    context_bytes: int
    comm_bytes: int
    compute_major: int
    compute_minor: int
    multiprocessors: int
    nvlinks: int
    nvlink_bytes_per_ns: float
    nvlink_efficiency: float
    pcie_bytes_per_ns: float
    memory_bytes_per_ns: float
    peak_flop_per_ns: Mapping[str, float]
    attributes: Mapping[int, int]
    host: HostCosts
    nccl: NcclTimes
    tables: Mapping[str, Mapping[str, Any]] = field(
        repr=False
    )  # tables that other parts read: efficiency, contention


@dataclass(frozen=True)
class Server:
    """What is inside one node. Bandwidths in bytes per ns, per direction; None: the GPU model's
    own."""

    interconnect: str  # "nvswitch" or "pcie"
    nvlink_bytes_per_ns: float | None
    nvlink_latency_ns: int
    pcie_bytes_per_ns: float | None
    pcie_latency_ns: int
    gpus_per_nic: int


@dataclass(frozen=True)
class GraphLink:
    """One cable of an explicit graph, both directions."""

    a: str
    b: str
    bytes_per_ns: float
    latency_ns: int


@dataclass(frozen=True)
class Network:
    """What is between nodes; `kind` is none, switch, rail, fat-tree or graph."""

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
    `to_ns` (None: for good)."""

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
    """A whole cluster, ready for `Topology.build`."""

    name: str
    file: str
    description: str
    nodes: int
    gpus_per_node: int
    gpu: str
    gpu_model: GpuModel
    server: Server
    network: Network
    nccl: NcclSettings
    faults: tuple[Fault, ...]

    @property
    def world_size(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node


def topologies_dir() -> Path:
    """The folder of shipped cluster files: beside the package in a checkout, inside it when
    installed by pip.

    Raises ConfigError when neither is there.
    """
    for folder in (_PACKAGE.parent / "topologies", _PACKAGE / "topologies"):
        if any(folder.glob("*.toml")):
            return folder
    raise ConfigError(
        _PACKAGE / "topologies",
        "",
        "the shipped cluster files are missing; install phantora-ns again",
    )


def list_clusters() -> list[str]:
    """Names that `load_cluster` knows, sorted."""
    return sorted(path.stem for path in topologies_dir().glob("*.toml"))


def default_cluster() -> str:
    """The cluster of a user who names none: H200 servers on a rail-optimised 400 Gbit/s network."""
    return _DEFAULT_CLUSTER


def list_gpus() -> list[str]:
    """Names that `load_gpu` knows, sorted."""
    return sorted(path.stem for path in (_PACKAGE / "data" / "gpus").glob("*.toml"))


def load_gpu(model: str) -> GpuModel:
    """Reads phantora_ns/data/gpus/MODEL.toml. Raises ConfigError."""
    folder = _PACKAGE / "data" / "gpus"
    known = list_gpus()
    if model not in known:
        raise ConfigError(
            folder, "", f"no GPU model {model!r}{nearest(model, known)} (known: {', '.join(known)})"
        )
    path = folder / f"{model}.toml"
    top = Table(path, read_toml(path))
    device, peak, host = top.table("device"), top.table("peak"), top.table("host")
    calls = host.table("calls")
    capability = device.text("compute_capability").partition(".")
    if not (capability[0].isdigit() and capability[2].isdigit()):
        raise device.error("compute_capability", 'is not of the form "9.0"')
    attributes = _attributes(top)
    nvlinks = device.integer("nvlinks")
    linked = {} if nvlinks else {"default": 0.0}  # a GPU without NVLink need not say how fast it is
    gpu = GpuModel(
        model=model,
        name=device.text("name"),
        memory_bytes=device.size_bytes("memory"),
        context_bytes=device.size_bytes("context"),
        comm_bytes=device.size_bytes("communicator"),
        compute_major=int(capability[0]),
        compute_minor=int(capability[2]),
        multiprocessors=device.integer("multiprocessors", low=1),
        nvlinks=nvlinks,
        nvlink_bytes_per_ns=device.bytes_per_ns("nvlink_bandwidth", **linked),
        nvlink_efficiency=device.fraction("nvlink_efficiency", **linked),
        pcie_bytes_per_ns=device.bytes_per_ns("pcie_bandwidth"),
        memory_bytes_per_ns=device.bytes_per_ns("memory_bandwidth"),
        peak_flop_per_ns=MappingProxyType({key: peak.flop_per_ns(key) for key in peak.keys()}),
        attributes=MappingProxyType(attributes),
        host=HostCosts(
            MappingProxyType({name: calls.time_ns(name) for name in HOST_CALLS}),
            host.time_ns("launch_latency"),
            host.time_ns("kernel_gap"),
            host.time_ns("unknown"),
            host.integer("launch_queue", low=0),
            host.time_ns("graph_gap", default=host.time_ns("kernel_gap")),
            host.time_ns("graph_launch", default=calls.time_ns("launch")),
            host.time_ns("graph_node", default=0),
        ),
        nccl=_nccl_times(top.table("nccl"), int(capability[0])),
        tables=MappingProxyType(
            {key: top.raw(key) for key in ("efficiency", "contention", "power") if top.has(key)}
        ),
    )
    for table in (device, peak, calls, host, top):
        table.done()
    return gpu


def _attributes(top: Table) -> dict[int, int]:
    own = dict(top.raw("attributes"))
    like = own.pop("like", None)
    if not all(
        key.isdigit() and int(key) < 192 and type(value) is int for key, value in own.items()
    ):
        raise top.error(
            "attributes",
            "every entry is NUMBER = INTEGER, with NUMBER a CUdevice_attribute below 192",
        )
    return {
        **(load_gpu(like).attributes if like else {}),
        **{int(key): value for key, value in own.items()},
    }


def _nccl_times(table: Table, compute_major: int) -> NcclTimes:
    protocols = []
    for name in PROTOCOLS:
        part = table.table(name)
        protocols.append(
            ProtocolTimes(
                start_ns=part.time_ns("start"),
                step_ns=part.time_ns("step"),
                chain_start_ns=part.time_ns("chain_start"),
                chain_step_ns=part.time_ns("chain_step"),
                tree_start_ns=part.time_ns("tree_start"),
                tree_step_ns=part.time_ns("tree_step"),
                tree_bytes_per_ns=part.bytes_per_ns("tree_bandwidth"),
                bytes_per_ns=part.bytes_per_ns("bandwidth"),
                copy_bytes_per_ns=part.bytes_per_ns("copy_bandwidth"),
            )
        )
        part.done()
    part = table.table("pairs")
    pairs = PairTimes(
        start_ns=part.time_ns("start"),
        doubling_ns=part.time_ns("doubling"),
        ll_start_ns=part.time_ns("ll_start"),
        ll_doubling_ns=part.time_ns("ll_doubling"),
        ll_channel_bytes_per_ns=part.bytes_per_ns("ll_channel_bandwidth"),
        channel_bytes_per_ns=part.bytes_per_ns("channel_bandwidth"),
        bytes_per_ns=part.bytes_per_ns("bandwidth"),
        spread_bytes_per_ns=part.bytes_per_ns("spread_bandwidth"),
        fill_bytes_per_ns=part.bytes_per_ns("fill_bandwidth"),
    )
    part.done()
    table.done()
    return NcclTimes(
        protocols=tuple(protocols), pairs=pairs, constants=_nccl_constants(compute_major)
    )


def _nccl_constants(compute_major: int) -> NcclConstants:
    path = _PACKAGE / "data" / "nccl.toml"
    top = Table(path, read_toml(path))
    top.raw("source")
    generations = {8: "ampere", 9: "hopper", 10: "blackwell"}
    if compute_major not in generations:
        raise top.error(
            "generation",
            f"no tuning constants for compute capability {compute_major}.x; known: 8.x, 9.x and 10.x",
        )
    return NcclConstants.from_table(top, generations[compute_major], PROTOCOLS)


def _find(name_or_path: str | Path) -> Path:
    text = str(name_or_path)
    if "/" in text or text.endswith(".toml"):
        return Path(text)
    known = list_clusters()
    if text not in known:
        raise ConfigError(
            text,
            "",
            f"no such cluster{nearest(text, known)} (shipped: {', '.join(known)}); "
            "for a file of your own give its path, such as ./mine.toml",
        )
    return topologies_dir() / f"{text}.toml"


def load_cluster(
    name_or_path: str | Path | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
) -> Cluster:
    """Reads a cluster by shipped name or path (None: the default cluster) and settles its size.

    A size that the file leaves open follows the argument (1 node, and as many GPUs as a server
    holds, when there is none); an argument that contradicts the file is an error. Raises
    ConfigError for anything wrong in the file, an unconnected graph included.
    """
    path = _find(default_cluster() if name_or_path is None else name_or_path)
    top = Table(path, read_toml(path))
    description = top.text("description", "")
    gpu_name = top.text("gpu", among=list_gpus())
    gpu = load_gpu(gpu_name)
    nodes = _settle(top, "nodes", nodes, 1, 1_000_000)
    most = top.integer("max_gpus_per_node", 8, low=1, high=1024)
    gpus_per_node = _settle(top, "gpus_per_node", gpus_per_node, most, most)
    server, network = _server(top.table("server")), _network(top.table("network"), gpu)
    if network.kind == "none" and nodes > 1:
        raise top.error(
            "network.kind",
            f'"none" joins nothing, and {nodes} nodes were asked for; use a cluster with a network'
            " (rail, switch, fat-tree or graph), or one node",
        )
    settings = top.table("nccl")
    nccl = NcclSettings(
        nvls=settings.flag("nvls", False),
        pxn=settings.flag("pxn", server.interconnect == "nvswitch"),
        amd_host=settings.flag("amd_host", False),
    )
    settings.done()
    if nccl.pxn and server.interconnect != "nvswitch":
        raise settings.error(
            "pxn",
            'needs NVLink between a server\'s GPUs; remove it or set server.interconnect = "nvswitch"',
        )
    faults = tuple(_fault(table) for table in top.tables("fault"))
    top.done()
    cluster = Cluster(
        name=path.stem,
        file=str(path),
        description=description,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu=gpu_name,
        gpu_model=gpu,
        server=server,
        network=network,
        nccl=nccl,
        faults=faults,
    )
    from phantora_ns.sim.topology import (
        Topology,
        TopologyError,
    )  # the graph is the last thing to validate

    try:
        Topology.build(cluster)
    except TopologyError as error:
        raise ConfigError(path, error.key, error.problem) from None
    return cluster


def _settle(top: Table, key: str, asked: int | None, default: int, most: int) -> int:
    fixed = top.integer(key, None, low=1, high=most)
    if asked is not None and asked < 1:
        raise top.error(key, f"{asked} was asked for; ask for at least 1")
    if fixed is not None and asked is not None and fixed != asked:
        raise top.error(
            key,
            f"the file says {fixed} and the command asks for {asked}; change one of them, "
            f"or remove the line so that the command decides",
        )
    value = fixed if fixed is not None else asked if asked is not None else default
    if value > most:
        raise top.error(
            key,
            f"{value} was asked for, and this cluster has at most {most}; raise max_{key} in a file of your own"
            if key == "gpus_per_node"
            else f"{value} is too many; at most {most}",
        )
    return value


def _server(table: Table) -> Server:
    server = Server(
        interconnect=table.text("interconnect", "nvswitch", among=("nvswitch", "pcie")),
        nvlink_bytes_per_ns=table.bytes_per_ns("nvlink_bandwidth", None),
        nvlink_latency_ns=table.time_ns("nvlink_latency", 350),
        pcie_bytes_per_ns=table.bytes_per_ns("pcie_bandwidth", None),
        pcie_latency_ns=table.time_ns("pcie_latency", 400),
        gpus_per_nic=table.integer("gpus_per_nic", 1, low=1, high=1024),
    )
    table.done()
    return server


def _network(table: Table, gpu: GpuModel) -> Network:
    kind = table.text("kind", among=("none", "switch", "rail", "fat-tree", "graph"))
    if kind == "none":
        table.done()
        return Network("none", gpu.pcie_bytes_per_ns, 0, 0, 1.0, None, 0, 1.0, 0)
    tiered, rail = kind == "fat-tree", kind == "rail"
    network = Network(
        kind=kind,
        nic_bytes_per_ns=table.bytes_per_ns("nic_bandwidth") if kind != "graph" else 1.0,
        nic_latency_ns=table.time_ns("nic_latency", 700) if kind != "graph" else 0,
        switch_latency_ns=table.time_ns("switch_latency", 300) if kind != "graph" else 0,
        efficiency=_share(table, "efficiency", 0.97),
        nodes_per_leaf=table.integer("nodes_per_leaf", low=1)
        if tiered
        else table.integer("nodes_per_leaf", None, low=1)
        if rail
        else None,
        spines=table.integer("spines", low=1)
        if tiered
        else table.integer("spines", 0)
        if rail
        else 0,
        oversubscription=table.number("oversubscription", 1.0, low=0.01) if tiered or rail else 1.0,
        seed=table.integer("seed", 0),
        switches=_switches(table) if kind == "graph" else (),
        links=tuple(_graph_link(link) for link in table.tables("link")) if kind == "graph" else (),
    )
    table.done()
    return network


def _share(table: Table, key: str, default: float) -> float:
    value = table.fraction(key, default)
    if not 0 < value <= 1:
        raise table.error(key, "must be more than 0% and at most 100%")
    return value


def _switches(table: Table) -> tuple[str, ...]:
    names = []
    for switch in table.tables("switch"):
        names.append(switch.text("name"))
        switch.done()
        if names.count(names[-1]) > 1:
            raise switch.error("name", f"{names[-1]!r} is given twice; names of switches differ")
        if names[-1].startswith("node-"):
            raise switch.error(
                "name",
                f'{names[-1]!r}: names that start with "node-" belong to servers; choose another',
            )
    return tuple(names)


def _graph_link(table: Table) -> GraphLink:
    link = GraphLink(
        table.text("a"), table.text("b"), table.bytes_per_ns("bandwidth"), table.time_ns("latency")
    )
    table.done()
    return link


def _fault(table: Table) -> Fault:
    link, gpu = table.text("link", None), table.text("gpu", None)
    if (link is None) == (gpu is None):
        raise table.error(
            "",
            "names either a link (with bandwidth) or a gpu (with speed); give exactly one of them",
        )
    key = "bandwidth" if link is not None else "speed"
    factor = table.fraction(key)
    if not 0 < factor <= 1:
        raise table.error(
            key,
            "must be more than 0% and at most 100%; a link that carries nothing would stop the job for good",
        )
    fault = Fault(link, gpu, factor, table.time_ns("from", 0), table.time_ns("to", None), table.at)
    table.done()
    if fault.to_ns is not None and fault.to_ns <= fault.from_ns:
        raise table.error("to", "is not after `from`")
    return fault
