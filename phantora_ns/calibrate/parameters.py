"""What of a cluster file is fitted: the rate of its NICs, and the times of NCCL's protocols.

Why it exists: the fit works on numbers, a cluster on fields. Rules: a parameter is the logarithm of
a time or a rate, so none becomes negative. It has a prior, the value of the cluster that one starts
from, so what logs say nothing about stays as it was. Which parameters an operation depends on follows
from what NCCL chose for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from phantora_ns.calibrate.samples import Sample
from phantora_ns.calibrate.simulate import Simulated
from phantora_ns.config import NVLS_KEYS, PAIR_KEYS, PROTOCOL_KEYS
from phantora_ns.model.cluster import Cluster
from phantora_ns.model.nccl import (
    PROTOCOLS,
    NcclConstants,
    NcclTimes,
    NvlsTimes,
    PairTimes,
    ProtocolTimes,
)

Name = tuple[str, str]
"""Table and key of a cluster file: ("nccl.simple", "step")."""

NIC: Name = ("network", "efficiency")
LL, SIMPLE = 0, 2
LEAST_NS = 100.0
"""A time of zero has no logarithm."""
_KNOWN_TIME, _KNOWN_RATE = 0.5, 0.2
_NETWORK_TIME, _NETWORK_RATE = 1.0, 0.7
"""Standard deviations of the prior, in logarithms. What is inside a server was measured on its GPU
model, or scaled by data sheets; of the network nothing is known but what it should be."""
_PROTOCOL = {"LL": "ll", "LL128": "ll128", "Simple": "simple"}


@dataclass(frozen=True)
class Parameter:
    """`start`: ns or bytes per ns. `most`: what it may not exceed, such as a NIC's own bandwidth."""

    name: Name
    start: float
    most: float = math.inf

    @property
    def is_time(self) -> bool:
        """A time; else a rate or a share."""
        return self.name[1].endswith(("start", "step", "doubling"))

    @property
    def prior(self) -> float:
        """The standard deviation of the logarithm."""
        if self.name == NIC or "network" in self.name[1]:
            return _NETWORK_TIME if self.is_time else _NETWORK_RATE
        return _KNOWN_TIME if self.is_time else _KNOWN_RATE


def of_operation(sample: Sample, chosen: Simulated) -> set[Name]:
    """What the time of an operation depends on."""
    across = sample.nodes > 1
    names = {NIC} if across else set()
    if chosen.algorithm == "pairs":
        return names | {("nccl.pairs", key) for key in _pair_keys(chosen.protocol, across)}
    if chosen.algorithm in ("nvls", "nvls_tree"):
        keys = list(NVLS_KEYS)[: 4 if across else 2]
        return names | {("nccl", key) for key in keys}
    table = f"nccl.{_PROTOCOL[chosen.protocol]}"
    if chosen.algorithm == "pat":
        return names | {(table, "start")}
    if chosen.algorithm == "tree":
        keys = ["tree_start", "tree_step", "tree_bandwidth"]
        keys += ["network_tree_step", "network_tree_bandwidth"] if across else []
    else:
        chain = sample.operation in ("broadcast", "reduce")
        keys = ["chain_start", "chain_step"] if chain else ["start", "step", "copy_bandwidth"]
        keys += ["bandwidth"]
        keys += ["network_step"] if across else []
        keys += ["network_bandwidth"] if across and chosen.protocol != "Simple" else []
    return names | {(table, key) for key in keys}


def _pair_keys(protocol: str, across: bool) -> list[str]:
    if protocol == "LL":
        keys = ["ll_start", "ll_doubling", "ll_channel_bandwidth"]
        return keys + (["ll_network_step"] if across else [])
    keys = ["start", "doubling", "channel_bandwidth", "bandwidth", "spread_bandwidth"]
    keys.append("fill_bandwidth")
    return keys + (["network_step", "network_channel_bandwidth"] if across else [])


def starts(
    cluster: Cluster, constants: NcclConstants, chosen: Mapping[Sample, Simulated]
) -> list[Parameter]:
    """The parameters that the samples depend on, in order, each with its value before the fit."""
    users: dict[Name, Sample] = {}
    for sample, simulated in chosen.items():
        for name in of_operation(sample, simulated):
            users.setdefault(name, sample)
    return [
        _parameter(name, cluster, constants, users[name])
        for name in sorted(users)
        if name != NIC or cluster.network.kind != "none"
    ]


def _parameter(name: Name, cluster: Cluster, constants: NcclConstants, user: Sample) -> Parameter:
    if name == NIC:
        return Parameter(name, cluster.network.efficiency, 1.0)
    part, field = _field(cluster.gpu_model.nccl, name)
    known = getattr(part, field)
    if known is None:
        known = _nccls_own(name, cluster, constants, user)
    plain = Parameter(name, known)
    return replace(plain, start=max(known, LEAST_NS)) if plain.is_time else plain


def _field(times: NcclTimes, name: Name) -> tuple[ProtocolTimes | PairTimes | NvlsTimes, str]:
    """The part of the times that has the parameter, and what it is called there."""
    table, key = name
    if table == "nccl":
        return times.nvls, NVLS_KEYS[key]
    if table == "nccl.pairs":
        return times.pairs, PAIR_KEYS[key]
    return times.protocols[_place(table)], PROTOCOL_KEYS[key]


def _place(table: str) -> int:
    return PROTOCOLS.index(table.removeprefix("nccl."))


def _nccls_own(name: Name, cluster: Cluster, constants: NcclConstants, user: Sample) -> float:
    """Where a fit begins for what only NCCL's own formula knows; bandwidths about as there."""
    table, key = name
    rails = len({gpu // cluster.server.gpus_per_nic for _, gpu in user.groups[0]})
    across = cluster.network.nic_bytes_per_ns * rails
    pairs = {"network_step": SIMPLE, "ll_network_step": LL}
    if table == "nccl.pairs":
        if key == "network_channel_bandwidth":
            return cluster.gpu_model.nccl.pairs.channel_bytes_per_ns
        return 1000 * constants.network_latency["ring"][pairs[key]]
    gpu = cluster.gpu_model
    own = {
        "nvls_start": 1000 * constants.nvlink_latency["nvls"][SIMPLE],
        "nvls_bandwidth": gpu.nvlink_bytes_per_ns
        * gpu.nvlink_efficiency
        * constants.nvls_efficiency,
        "nvls_network_step": 1000 * constants.network_latency["nvls_tree"][SIMPLE],
        "nvls_network_bandwidth": across / 2,
    }
    if table == "nccl":
        return own[key]
    place = _place(table)
    return {
        "network_step": 1000 * constants.network_latency["ring"][place],
        "network_bandwidth": min(constants.ll_intel[0], across / 2) if place == LL else across,
        "network_tree_step": 1000 * constants.network_latency["tree"][place],
        "network_tree_bandwidth": 0.46 * across / (3.8 if place == LL else 1),
    }[key]


def apply(cluster: Cluster, values: Mapping[Name, float]) -> Cluster:
    """The cluster with these values, in ns and bytes per ns."""
    times = cluster.gpu_model.nccl
    for name, value in values.items():
        if name == NIC:
            cluster = replace(cluster, network=replace(cluster.network, efficiency=value))
            continue
        part, field = _field(times, name)
        changed: Any = replace(
            part, **{field: round(value) if Parameter(name, value).is_time else value}
        )
        times = _with(times, name[0], changed)
    return replace(cluster, gpu_model=replace(cluster.gpu_model, nccl=times))


def _with(times: NcclTimes, table: str, part: Any) -> NcclTimes:
    if table == "nccl":
        return replace(times, nvls=part)
    if table == "nccl.pairs":
        return replace(times, pairs=part)
    protocols = list(times.protocols)
    protocols[_place(table)] = part
    return replace(times, protocols=tuple(protocols))
