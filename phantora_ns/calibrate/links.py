"""The links of a cluster, before a fit: as fast as what was measured over them.

Why it exists: no fit of NCCL's times makes data faster than the links that it passes. Rule: a link is
what the cluster file says, unless more bytes passed than it can carry. A NIC is then the next one
that is sold. Bytes are those of NCCL's rings, and of all-reduce the least that any algorithm sends.
"""

from __future__ import annotations

from collections.abc import Iterable

from phantora_ns.calibrate.samples import Sample
from phantora_ns.model.cluster import Cluster

NICS_GBIT = (1, 10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200)
_HALF = 0.5


def changes(cluster: Cluster, samples: Iterable[Sample]) -> tuple[dict[str, str], list[str]]:
    """Settings of the cluster file, and what to say about them."""
    settings, notes = {}, []
    inside, across = 0.0, 0.0
    for sample in samples:
        rate = _rate(sample, cluster.server.gpus_per_nic)
        if sample.nodes == 1:
            inside = max(inside, rate)
        else:
            across = max(across, rate)
    key, nominal, share = _server_link(cluster)
    if inside > nominal * share:
        settings[f"server.{key}"] = f"{inside / share * 1.02:.4g} GB/s"
        notes.append(
            f"a GPU moved {inside:.4g} GB/s inside its server, and {cluster.name} has "
            f"{nominal * share:.4g}: {key} raised"
        )
    nic = cluster.network.nic_bytes_per_ns
    if cluster.network.kind in ("switch", "rail", "fat-tree") and across > nic:
        gbit = next_nic(across)
        settings["network.nic_bandwidth"] = f"{gbit:g} Gbit/s"
        notes.append(
            f"a NIC moved {across:.4g} GB/s, more than the {nic * 8:g} Gbit/s of {cluster.name}: "
            f"nic_bandwidth is {gbit:g} Gbit/s"
        )
    return settings, notes


def next_nic(bytes_per_ns: float) -> float:
    """Gbit/s of the slowest NIC that carries it."""
    return next((rate for rate in NICS_GBIT if rate / 8 >= bytes_per_ns), bytes_per_ns * 8)


def slow_nics(cluster: Cluster, share: float | None) -> list[str]:
    """What to say when the fit leaves NICs a small share of their bandwidth."""
    if share is None or share >= _HALF:
        return []
    nic = f"{cluster.network.nic_bytes_per_ns * 8:g} Gbit/s"
    return [
        f"data passes NICs at {share:.0%} of the {nic} that {cluster.name} has; if yours have less, say "
        "so: --set network.nic_bandwidth='200 Gbit/s'"
    ]


def _server_link(cluster: Cluster) -> tuple[str, float, float]:
    """Key, nominal bytes per ns, and the share that data can use."""
    server, gpu = cluster.server, cluster.gpu_model
    if server.interconnect == "nvswitch":
        nominal = server.nvlink_bytes_per_ns or gpu.nvlink_bytes_per_ns
        return "nvlink_bandwidth", nominal, gpu.nvlink_efficiency
    return "pcie_bandwidth", server.pcie_bytes_per_ns or gpu.pcie_bytes_per_ns, 1.0


def _rate(sample: Sample, gpus_per_nic: int) -> float:
    """Bytes per ns that one link carried at least: a GPU's inside a server, else a NIC's."""
    ranks, nodes, size = sample.ranks, sample.nodes, float(sample.size)
    moved = {
        "all_reduce": size,
        "all_gather": size * (ranks - 1) / ranks,
        "reduce_scatter": size * (ranks - 1) / ranks,
        "alltoall": size * (ranks - 1) / ranks,
        "broadcast": size,
        "reduce": size,
        "sendrecv": size,
    }.get(sample.operation, 0.0)
    if nodes > 1:
        rails = len({gpu // gpus_per_nic for _, gpu in sample.groups[0]})
        here = ranks / nodes
        moved = {
            "all_reduce": size / rails,
            "all_gather": size * (ranks - 1) / ranks / rails,
            "reduce_scatter": size * (ranks - 1) / ranks / rails,
            "alltoall": here * size * (ranks - here) / ranks / rails,
            "broadcast": size / rails,
            "reduce": size / rails,
            "sendrecv": size,
        }.get(sample.operation, 0.0)
    return moved / (1000 * sample.us)
