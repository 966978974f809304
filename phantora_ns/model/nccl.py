"""The numbers that the model of NCCL runs on, as types.

Why it exists: `NcclConstants` decides *which* algorithm NCCL picks (data/nccl/*.toml, facts of
NCCL's own tuning code, by version); `NcclTimes` says how long it then takes (data/gpus/MODEL.toml
[nccl], measured).
Rule: no number of NCCL's is written in code; each is in a data file with its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

PROTOCOLS = ("ll", "ll128", "simple")
ALGORITHMS = ("tree", "ring", "nvls", "nvls_tree", "pat")


class NcclVersion(NamedTuple):
    """A release of NCCL."""

    major: int
    minor: int
    patch: int

    @classmethod
    def of_code(cls, code: int) -> NcclVersion:
        """Of NCCL_VERSION_CODE, what `ncclGetVersion` answers: 22809 is 2.28.9. Until 2.8 the code
        had one digit for the minor version."""
        high, low = (10000, 100) if code >= 10000 else (1000, 100)
        return cls(code // high, code % high // low, code % low)

    @classmethod
    def parse(cls, text: str) -> NcclVersion:
        """Of "2.28.9". Raises ValueError."""
        major, minor, patch = map(int, text.split("."))
        return cls(major, minor, patch)

    @property
    def minor_text(self) -> str:
        """Without the patch level."""
        return f"{self.major}.{self.minor}"

    def __str__(self) -> str:
        return f"{self.minor_text}.{self.patch}"


@dataclass(frozen=True)
class ProtocolTimes:
    """Measured times of one protocol (LL, LL128, Simple) on one GPU model, inside a server.

    A ring of R ranks takes start + steps * step + wire / bandwidth + own / copy_bandwidth, with
    `wire` the bytes that each rank sends and `own` a rank's own share, which the same threads move.
    A chain (broadcast, reduce) takes chain_start + (R - 1) * chain_step + bytes / bandwidth: what
    each of several such launches in a row takes, which overlap. A tree takes tree_start + 2 * (R -
    1) * tree_step + bytes / tree_bandwidth.
    What begins with `network` is between servers, of a ring or of a tree: the time of a step, and
    what a rank sends (by a tree, at sizes where NCCL expects no loss). None: NCCL's own figure.
    """

    start_ns: int
    step_ns: int
    chain_start_ns: int
    chain_step_ns: int
    tree_start_ns: int
    tree_step_ns: int
    bytes_per_ns: float
    copy_bytes_per_ns: float
    tree_bytes_per_ns: float
    network_step_ns: int | None = None
    network_bytes_per_ns: float | None = None
    network_tree_step_ns: int | None = None
    network_tree_bytes_per_ns: float | None = None


@dataclass(frozen=True)
class PairTimes:
    """Measured times of grouped send and receive on one GPU model.

    A launch takes start + doubling * log2(GPUs) + bytes / rate + chunk / fill_bandwidth. The rate
    is that of the message's channels, of a GPU with one peer (bandwidth) or of a GPU with several
    (spread_bandwidth), whichever is least; the chunk, a channel's part but at most NCCL's chunk,
    fills the way before bytes flow (Simple only). Between servers it takes a network step more (None:
    NCCL's own figure), and Simple's channels may have a rate of their own.
    """

    start_ns: int
    doubling_ns: int
    ll_start_ns: int
    ll_doubling_ns: int
    ll_channel_bytes_per_ns: float
    channel_bytes_per_ns: float
    bytes_per_ns: float
    spread_bytes_per_ns: float
    fill_bytes_per_ns: float
    network_step_ns: int | None = None
    ll_network_step_ns: int | None = None
    network_channel_bytes_per_ns: float | None = None


@dataclass(frozen=True)
class LocalTimes:
    """A copy inside one GPU, which is all that a communicator of one rank does: start + the bytes
    read and written at `share` of the memory's bandwidth."""

    start_ns: int
    share: float


@dataclass(frozen=True)
class NvlsTimes:
    """Measured times of NVLink SHARP: what a launch takes beside its bytes, the rate of a GPU's link,
    and the same between servers. None: what NCCL's own formula says."""

    start_ns: int | None = None
    bytes_per_ns: float | None = None
    network_step_ns: int | None = None
    network_bytes_per_ns: float | None = None


@dataclass(frozen=True)
class NcclConstants:
    """Facts of one release's tuning code for one GPU generation; latencies in microseconds,
    bandwidths in GB/s, as NCCL has them.

    Triples are (LL, LL128, Simple); triples named `*_per_nodes` are for 1, 2 and 4 or more nodes.
    `pair_ll_bytes` counts for each channel that a peer may have, or (`pair_ll_per_message`) that the
    message uses. `pair_network_bandwidth`: what a NIC must have for each channel of a peer, 0 before
    2.29, which gives a peer two. `pair_batch`: how many peers then share a channel in one round.
    """

    base_latency: Mapping[str, tuple[float, ...]]
    nvlink_latency: Mapping[str, tuple[float, ...]]
    pcie_latency: Mapping[str, tuple[float, ...]]
    network_latency: Mapping[str, tuple[float, ...]]
    tree_correction: tuple[tuple[float, ...], ...]
    ll_single_node: float
    ll_intel: tuple[float, ...]
    ll_amd: tuple[float, ...]
    ring_ll128_per_nodes: tuple[float, ...]
    tree_ll128_per_nodes: tuple[float, ...]
    tree_per_nodes: tuple[float, ...]
    network_reference_ns: int
    nvls_efficiency: float
    intra_speeds: tuple[float, ...]
    inter_speeds: tuple[float, ...]
    nvls_channels: int
    max_channels: int
    pair_channels: int
    pair_ll_bytes: int
    pair_ll_per_message: bool
    pair_network_bandwidth: float
    pair_batch: int
    pair_ll_chunk_bytes: int
    pair_chunk_bytes: int
    pair_network_chunk_bytes: int
    thread_thresholds: tuple[float, ...]
    threads: tuple[float, ...]


@dataclass(frozen=True)
class NcclTimes:
    """All that `CollectiveModel` knows of NCCL on one GPU model; `protocols` in the order LL,
    LL128, Simple."""

    protocols: tuple[ProtocolTimes, ...]
    pairs: PairTimes
    local: LocalTimes
    constants: NcclConstants
    nvls: NvlsTimes = NvlsTimes()
