"""Cluster files: parsed and validated into a `model.cluster.Cluster`, or one clear message.

Why it exists: the message for a mistake in a cluster file gives the file, the key, what is wrong and
what to do. docs/clusters.md describes every key. Rule: nothing in here looks at the machine that it
runs on. The last step of validation builds the topology once. So an unconnected graph, or a fault on
a link that does not exist, is found before anything starts.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib import resources
from pathlib import Path

from phantora_ns.config.changes import Changes
from phantora_ns.config.gpus import list_gpus, load_gpu
from phantora_ns.config.nccl import calibrated
from phantora_ns.config.toml_table import ConfigError, Table, nearest, read_toml
from phantora_ns.config.units import LEAST_BYTES_PER_NS
from phantora_ns.model.cluster import (
    MAX_NODES,
    Cluster,
    Fault,
    GraphLink,
    NcclSettings,
    Network,
    Server,
)
from phantora_ns.model.gpu import GpuModel
from phantora_ns.sim.topology import Topology, TopologyError

_PACKAGE = Path(str(resources.files("phantora_ns")))
_DEFAULT_CLUSTER = "h200-rail"
LEAST_FACTOR = 1e-6
MAX_SPINES = 4096
MAX_CABLES = 1 << 20
"""Of a network. Each takes a kilobyte wherever the cluster is loaded."""


def topologies_dir() -> Path:
    """The folder of shipped cluster files: beside the package in a checkout, inside it after an
    installation by pip.

    Raises ConfigError when neither exists.
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
    """The cluster for a user who names none: H200 servers on a rail-optimised 400 Gbit/s network."""
    return _DEFAULT_CLUSTER


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
    changes: Changes | None = None,
) -> Cluster:
    """Reads a cluster by shipped name or path (None: the default cluster), changes it, and decides
    its size.

    A size that the file leaves open follows the argument. Without an argument it is 1 node, and as
    many GPUs as a server holds. An argument that contradicts the file is an error. Raises ConfigError
    for anything wrong in the file, including an unconnected graph.
    """
    path = _find(default_cluster() if name_or_path is None else name_or_path)
    data, changes = read_toml(path), changes or Changes()
    changed = f"{path}, changed by {shlex.join(changes.words())}" if changes else path
    top = Table(changed, data)
    changes.apply(data, path)
    description = top.text("description", "")
    gpu = load_gpu(top.text("gpu", among=list_gpus()))
    nodes = _settle(top, "nodes", nodes, 1, MAX_NODES)
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
    gpu = replace(gpu, nccl=calibrated(settings, gpu.nccl))
    settings.done()
    if nccl.pxn and server.interconnect != "nvswitch":
        raise settings.error(
            "pxn",
            'needs NVLink between a server\'s GPUs; remove it or set server.interconnect = "nvswitch"',
        )
    more = changes.faults(nodes, gpus_per_node, path)
    if more and isinstance(data.setdefault("fault", []), list):
        data["fault"] += more
    faults = tuple(_fault(table) for table in top.tables("fault"))
    top.done()
    cluster = Cluster(
        name=path.stem,
        file=str(path),
        description=description,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu_model=gpu,
        server=server,
        network=network,
        nccl=nccl,
        faults=faults,
    )
    _check_size(top, cluster)
    try:
        topology = Topology.build(cluster)
    except TopologyError as error:
        raise ConfigError(changed, error.key, error.problem) from None
    rates = [*topology.capacities.values(), *(rate for *_, rate in topology.capacity_changes())]
    if min(rates, default=LEAST_BYTES_PER_NS) < LEAST_BYTES_PER_NS:
        raise top.error("network", "a link carries less than 1 kB/s; a job over it would never end")
    return cluster


def _check_size(top: Table, cluster: Cluster) -> None:
    """Raises ConfigError before a topology is built that would not fit in memory."""
    network = cluster.network
    leaves = 1
    if network.kind in ("rail", "fat-tree"):
        nics = -(-cluster.gpus_per_node // cluster.server.gpus_per_nic)
        groups = -(-cluster.nodes // (network.nodes_per_leaf or cluster.nodes))
        leaves = groups * (nics if network.kind == "rail" else 1)
    cables = 3 * cluster.world_size + leaves * network.spines
    if cables > MAX_CABLES:
        raise top.error(
            "network.spines" if leaves * network.spines > MAX_CABLES else "gpus_per_node",
            f"makes a cluster of {cables} cables; at most {MAX_CABLES} fit in memory",
        )


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
        storage_bytes_per_ns=table.bytes_per_ns("storage_bandwidth", None),
        cpu_score_ns=table.time_ns("cpu_score", None),
    )
    table.done()
    if server.cpu_score_ns == 0:
        raise table.error("cpu_score", "is 0; phantora-ns calibrate host measures it")
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
        spines=table.integer("spines", low=1, high=MAX_SPINES)
        if tiered
        else table.integer("spines", 0, high=MAX_SPINES)
        if rail
        else 0,
        oversubscription=table.number("oversubscription", 1.0, low=0.01, high=1e6)
        if tiered or rail
        else 1.0,
        seed=table.integer("seed", 0),
        switches=_switches(table) if kind == "graph" else (),
        links=tuple(_graph_link(link) for link in table.tables("link")) if kind == "graph" else (),
    )
    table.done()
    return network


def _share(table: Table, key: str, default: float) -> float:
    value: float = table.fraction(key, default)
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
    if not LEAST_FACTOR <= factor <= 1:
        raise table.error(
            key,
            "must be at least 0.0001% and at most 100%; a link that carries nothing would stop the job for good",
        )
    fault = Fault(link, gpu, factor, table.time_ns("from", 0), table.time_ns("to", None), table.at)
    table.done()
    if fault.to_ns is not None and fault.to_ns <= fault.from_ns:
        raise table.error("to", "is not after `from`")
    return fault
