"""NCCL's numbers: the tables of a GPU model's file, data/nccl.toml and data/nccl/*.toml, validated.

Why it exists: docs/clusters.md and the data files name their keys for people. `model/nccl.py` has
the fields that the simulator reads. Times are the GPU model's; choices are those of the job's NCCL.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from phantora_ns.config.toml_table import Table, read_toml
from phantora_ns.model.nccl import (
    PROTOCOLS,
    LocalTimes,
    NcclConstants,
    NcclTimes,
    NcclVersion,
    NvlsTimes,
    PairTimes,
    ProtocolTimes,
)

_DATA = Path(str(resources.files("phantora_ns"))) / "data"
_FILE = _DATA / "nccl.toml"
_FOLDER = _DATA / "nccl"
_LATENCIES = ("base", "nvlink", "pcie", "network")
_GENERATIONS = {8: "ampere", 9: "hopper", 10: "blackwell"}  # by major compute capability


PROTOCOL_KEYS = {
    "start": "start_ns",
    "step": "step_ns",
    "chain_start": "chain_start_ns",
    "chain_step": "chain_step_ns",
    "tree_start": "tree_start_ns",
    "tree_step": "tree_step_ns",
    "tree_bandwidth": "tree_bytes_per_ns",
    "bandwidth": "bytes_per_ns",
    "copy_bandwidth": "copy_bytes_per_ns",
    "network_step": "network_step_ns",
    "network_bandwidth": "network_bytes_per_ns",
    "network_tree_step": "network_tree_step_ns",
    "network_tree_bandwidth": "network_tree_bytes_per_ns",
}
PAIR_KEYS = {
    "start": "start_ns",
    "doubling": "doubling_ns",
    "ll_start": "ll_start_ns",
    "ll_doubling": "ll_doubling_ns",
    "ll_channel_bandwidth": "ll_channel_bytes_per_ns",
    "channel_bandwidth": "channel_bytes_per_ns",
    "bandwidth": "bytes_per_ns",
    "spread_bandwidth": "spread_bytes_per_ns",
    "fill_bandwidth": "fill_bytes_per_ns",
    "network_step": "network_step_ns",
    "ll_network_step": "ll_network_step_ns",
    "network_channel_bandwidth": "network_channel_bytes_per_ns",
}
NVLS_KEYS = {
    "nvls_start": "start_ns",
    "nvls_bandwidth": "bytes_per_ns",
    "nvls_network_step": "network_step_ns",
    "nvls_network_bandwidth": "network_bytes_per_ns",
}
"""Keys of a table, and the fields that they fill. Without the keys of what is between servers, NCCL's
own figure counts."""


def nccl_times(table: Table, compute_major: int) -> NcclTimes:
    """NCCL on one GPU model, from the `[nccl]` table of its file. Raises ConfigError."""
    protocols = tuple(_protocol_times(table.table(name)) for name in PROTOCOLS)
    pairs = _pair_times(table.table("pairs"))
    copies = table.table("local")
    local = LocalTimes(copies.time_ns("start"), copies.fraction("bandwidth"))
    copies.done()
    table.done()
    constants = nccl_constants(measured_version(), compute_major)
    return NcclTimes(protocols=protocols, pairs=pairs, local=local, constants=constants)


def calibrated(table: Table, times: NcclTimes) -> NcclTimes:
    """`times` with what the `[nccl]` table of a cluster file has of them. Raises ConfigError."""
    protocols = tuple(
        _protocol_times(table.table(name), known)
        for name, known in zip(PROTOCOLS, times.protocols, strict=True)
    )
    nvls = NvlsTimes(**_read(table, NVLS_KEYS, times.nvls))
    pairs = _pair_times(table.table("pairs"), times.pairs)
    return replace(times, protocols=protocols, pairs=pairs, nvls=nvls)


@functools.cache
def _content(path: Path) -> dict[str, Any]:
    """A file of ours, read once: the hub reads all of them before a rank depends on it."""
    return read_toml(path)


def nccl_versions() -> list[NcclVersion]:
    """The releases whose choices are known, in order."""
    releases = (Table(path, _content(path)).table("source") for path in _FOLDER.glob("*.toml"))
    return sorted(NcclVersion.parse(source.text("nccl")) for source in releases)


def measured_version() -> NcclVersion:
    """The release that the GPU models' times were measured with."""
    minor = Table(_FILE, _content(_FILE)).text("measured")
    return next(version for version in nccl_versions() if version.minor_text == minor)


def nearest_version(version: NcclVersion) -> NcclVersion:
    """The known release of the same minor version, else of the nearest one; of two, the newer."""
    return min(
        nccl_versions(),
        key=lambda known: (
            abs(known.major - version.major),
            abs(known.minor - version.minor),
            -known.minor,
        ),
    )


def _protocol_times(table: Table, known: ProtocolTimes | None = None) -> ProtocolTimes:
    times = ProtocolTimes(**_read(table, PROTOCOL_KEYS, known))
    table.done()
    return times


def _pair_times(table: Table, known: PairTimes | None = None) -> PairTimes:
    times = PairTimes(**_read(table, PAIR_KEYS, known))
    table.done()
    return times


def _read(table: Table, keys: Mapping[str, str], known: object) -> dict[str, Any]:
    """What the table says, else what is `known`. Without that, a table must say everything that is
    not between servers."""
    values = {}
    for key, field in keys.items():
        read = table.bytes_per_ns if field.endswith("bytes_per_ns") else table.time_ns
        if known is not None:
            values[field] = read(key, getattr(known, field))
        else:
            values[field] = read(key, None) if "network" in key else read(key)
    return values


def nccl_constants(version: NcclVersion, compute_major: int) -> NcclConstants:
    """What decides the choices of one of `nccl_versions()` on a GPU of compute capability
    `compute_major`. Raises ConfigError."""
    general = Table(_FILE, _content(_FILE))
    path = _FOLDER / f"{version.minor_text}.toml"
    top = Table(path, _content(path))
    top.raw("source")
    if compute_major not in _GENERATIONS:
        raise top.error(
            "generation",
            f"no tuning constants for compute capability {compute_major}.x; known: 8.x, 9.x and 10.x",
        )
    latency = top.table("latency")
    latencies = {place: _latencies(latency.table(place)) for place in _LATENCIES}
    latency.done()
    correction = top.table("tree_correction")
    tree_correction = tuple(correction.numbers(name, 23) for name in PROTOCOLS)
    correction.done()
    channels, across = top.table("channels"), top.table("ll_across_nodes")
    generations = top.table("generation")
    part = generations.table(_GENERATIONS[compute_major])
    constants = NcclConstants(
        base_latency=latencies["base"],
        nvlink_latency=latencies["nvlink"],
        pcie_latency=latencies["pcie"],
        network_latency=latencies["network"],
        tree_correction=tree_correction,
        ll_single_node=part.number("ll_single_node"),
        ll_intel=across.numbers("intel", 2),
        ll_amd=across.numbers("amd", 2),
        ring_ll128_per_nodes=part.numbers("ring_ll128_per_nodes", 3),
        tree_ll128_per_nodes=part.numbers("tree_ll128_per_nodes", 3),
        tree_per_nodes=part.numbers("tree_per_nodes", 3),
        network_reference_ns=general.time_ns("network_reference"),
        nvls_efficiency=part.number("nvls_efficiency"),
        intra_speeds=part.numbers("intra_speeds", 0),
        inter_speeds=part.numbers("inter_speeds", 0),
        nvls_channels=part.integer("nvls_channels"),
        max_channels=channels.integer("max"),
        pair_channels=channels.integer("pair"),
        pair_ll_bytes=channels.size_bytes("pair_ll_threshold"),
        pair_ll_per_message=channels.text("pair_ll_per", among=("peer", "message")) == "message",
        pair_network_bandwidth=channels.number("pair_network_bandwidth", default=0.0),
        pair_batch=channels.integer("pair_batch", default=0),
        pair_ll_chunk_bytes=channels.size_bytes("pair_ll_chunk"),
        pair_chunk_bytes=channels.size_bytes("pair_chunk"),
        pair_network_chunk_bytes=channels.size_bytes("pair_network_chunk"),
        thread_thresholds=channels.numbers("thread_thresholds", 3),
        threads=channels.numbers("threads", 3),
    )
    for table in (part, channels, across, top):
        table.done()
    return constants


def _latencies(table: Table) -> dict[str, tuple[float, ...]]:
    """Latencies by algorithm, each as (LL, LL128, Simple)."""
    latencies = {
        algorithm: table.numbers(algorithm, len(PROTOCOLS)) for algorithm in ("tree", "ring")
    } | {
        algorithm: (0.0, 0.0, table.number(algorithm)) for algorithm in ("nvls", "nvls_tree", "pat")
    }
    table.done()
    return latencies
