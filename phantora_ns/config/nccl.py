"""NCCL's numbers: the tables of a GPU model's file and data/nccl.toml, validated.

Why it exists: docs/clusters.md and the data files name their keys for people. `model/nccl.py` has
the fields that the simulator reads.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from phantora_ns.config.toml_table import Table, read_toml
from phantora_ns.model.nccl import PROTOCOLS, NcclConstants, NcclTimes, PairTimes, ProtocolTimes

_FILE = Path(str(resources.files("phantora_ns"))) / "data" / "nccl.toml"
_LATENCIES = ("base", "nvlink", "pcie", "network")
_GENERATIONS = {8: "ampere", 9: "hopper", 10: "blackwell"}  # by major compute capability


def nccl_times(table: Table, compute_major: int) -> NcclTimes:
    """NCCL on one GPU model, from the `[nccl]` table of its file. Raises ConfigError."""
    protocols = tuple(_protocol_times(table.table(name)) for name in PROTOCOLS)
    pairs = _pair_times(table.table("pairs"))
    table.done()
    return NcclTimes(protocols=protocols, pairs=pairs, constants=_nccl_constants(compute_major))


def _protocol_times(table: Table) -> ProtocolTimes:
    times = ProtocolTimes(
        start_ns=table.time_ns("start"),
        step_ns=table.time_ns("step"),
        chain_start_ns=table.time_ns("chain_start"),
        chain_step_ns=table.time_ns("chain_step"),
        tree_start_ns=table.time_ns("tree_start"),
        tree_step_ns=table.time_ns("tree_step"),
        tree_bytes_per_ns=table.bytes_per_ns("tree_bandwidth"),
        bytes_per_ns=table.bytes_per_ns("bandwidth"),
        copy_bytes_per_ns=table.bytes_per_ns("copy_bandwidth"),
    )
    table.done()
    return times


def _pair_times(table: Table) -> PairTimes:
    times = PairTimes(
        start_ns=table.time_ns("start"),
        doubling_ns=table.time_ns("doubling"),
        ll_start_ns=table.time_ns("ll_start"),
        ll_doubling_ns=table.time_ns("ll_doubling"),
        ll_channel_bytes_per_ns=table.bytes_per_ns("ll_channel_bandwidth"),
        channel_bytes_per_ns=table.bytes_per_ns("channel_bandwidth"),
        bytes_per_ns=table.bytes_per_ns("bandwidth"),
        spread_bytes_per_ns=table.bytes_per_ns("spread_bandwidth"),
        fill_bytes_per_ns=table.bytes_per_ns("fill_bandwidth"),
    )
    table.done()
    return times


def _nccl_constants(compute_major: int) -> NcclConstants:
    top = Table(_FILE, read_toml(_FILE))
    top.raw("source")
    if compute_major not in _GENERATIONS:
        raise top.error(
            "generation",
            f"no tuning constants for compute capability {compute_major}.x; known: 8.x, 9.x and 10.x",
        )
    latency = top.table("latency")
    latencies = {place: _latencies(latency.table(place)) for place in _LATENCIES}
    reference = latency.time_ns("network_reference")
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
        network_reference_ns=reference,
        nvls_efficiency=part.number("nvls_efficiency"),
        intra_speeds=part.numbers("intra_speeds", 0),
        inter_speeds=part.numbers("inter_speeds", 0),
        nvls_channels=part.integer("nvls_channels"),
        max_channels=channels.integer("max"),
        pair_channels=channels.integer("pair"),
        pair_ll_bytes=channels.size_bytes("pair_ll_threshold"),
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
