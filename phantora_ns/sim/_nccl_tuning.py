"""NCCL's choice of algorithm, protocol and number of channels, by NCCL's own cost formula.

Why it exists: a collective's flows depend on what NCCL would choose.

Source: NCCL 2.27.5, 2.28.9, 2.29.7 and 2.30.7, src/graph/tuning.cc (bandwidths, latencies, time),
src/graph/search.cc (channels and speeds), src/graph/connect.cc (doubling), src/graph/paths.cc and
src/enqueue.cc (fewer channels for small sizes, channels of send and receive). What differs between
them is data (docs/nccl.md). The formula's times only decide the choice. The duration of the chosen
variant comes from measurements (collectives.py). Units as in NCCL: microseconds and GB/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from phantora_ns.model.nccl import ALGORITHMS, NcclConstants

PROTOCOL_NAMES = ("LL", "LL128", "Simple")
SIMPLE = 2


@dataclass(frozen=True)
class Choice:
    """What NCCL picked: an algorithm of ALGORITHMS, a protocol (index into PROTOCOL_NAMES),
    channels, its bus bandwidth."""

    algorithm: str
    protocol: int
    channels: int
    bus_bytes_per_ns: float


@dataclass(frozen=True)
class PairChoice:
    """How a message is sent: protocol, channels, and the bytes that a channel sends at once."""

    protocol: int
    channels: int
    chunk_bytes: int


@dataclass(frozen=True)
class Search:
    """Result of NCCL's search of the hardware: channels (before doubling) and the speed of each in
    GB/s."""

    channels: int
    speed: float
    tree_speed: float
    running: int  # channels of the communicator, after doubling


class Tuner:
    """NCCL's choice for one communicator shape.

    `rails`: NICs in use per node, each with bandwidth `nic`; `inside`: the bandwidth of a GPU inside
    the server. Both in GB/s (payload for NVLink). `nvlink`: whether the server uses NVLink inside.
    `compute_capability`: major * 10 + minor.
    """

    def __init__(
        self,
        constants: NcclConstants,
        ranks: int,
        nodes: int,
        rails: int,
        inside: float,
        nic: float,
        *,
        nvlink: bool = True,
        nvls: bool = False,
        amd_host: bool = False,
        compute_capability: int = 90,
    ):
        self.constants, self.ranks, self.nodes = constants, ranks, nodes
        self.nvlink, self.nvls, self.amd_host = (
            nvlink,
            nvls and nvlink and constants.nvls_channels > 0,
            amd_host,
        )
        self.compute_capability = compute_capability
        self.search = self._search(rails, inside, nic)
        running = self.search.running
        self.pair_channels = (
            constants.pair_channels if nodes == 1 else 1 << (running - 1).bit_length()
        )
        self._nic = nic
        self._per_nodes = min(nodes, 3) - 1  # NCCL's index: one node, two, more

    def _search(self, rails: int, inside: float, nic: float) -> Search:
        constants = self.constants
        if self.nodes > 1:
            speed = next(
                (s for s in constants.inter_speeds if s <= nic and s * rails <= inside),
                constants.inter_speeds[-1],
            )
            channels = rails
            if speed >= 25 and not (self.compute_capability > 80 and speed < 50 and channels > 4):
                channels, speed = channels * 2, speed / 2
            return Search(channels, speed, speed, channels * 2)
        best = (0, 0.0)
        first = 0.0
        for speed in constants.intra_speeds:
            channels = min(int(inside // speed), constants.max_channels // 2)
            if channels == 0:
                continue
            first = first or speed
            if speed < 0.49 * first:
                break
            if channels * speed >= best[0] * best[1]:
                best = (channels, speed)
        channels, speed = best if best[0] else (1, constants.intra_speeds[-1])
        return Search(channels, speed, self._tree_speed(channels, speed, inside), channels * 2)

    def _tree_speed(self, channels: int, speed: float, inside: float) -> float:
        """Speed of a tree's channel inside a server. A tree has one edge fewer than a ring, so with
        few ranks its channels can run faster.

        NCCL's search packs edges one by one. Beyond two ranks it finds only packings that leave a
        link free.
        """
        for faster in self.constants.intra_speeds:
            free = self.ranks * int(inside // faster) - (self.ranks - 1) * channels
            if faster > speed and free >= (0 if self.ranks == 2 else 1):
                return faster
        return speed

    def _bus_bandwidth(self, kind: str, algorithm: str, protocol: int) -> float:
        """GB/s of payload on the busiest link; 0 where NCCL does not offer the combination."""
        constants, search, index = self.constants, self.search, self._per_nodes
        bus = search.channels * search.speed
        if algorithm == "ring":
            if protocol == 0:
                if self.nodes == 1:
                    limit = constants.ll_single_node
                else:
                    limit = (constants.ll_amd if self.amd_host else constants.ll_intel)[index - 1]
                return min(limit, bus * 0.5)
            if protocol == 1:
                # LL128 needs 128-byte stores that arrive whole: NVLink inside the server.
                if not self.nvlink:
                    return 0.0
                return min(bus * 0.92, search.channels * constants.ring_ll128_per_nodes[index])
            return bus
        if algorithm == "tree":
            if kind != "all_reduce":
                return 0.0
            tree = min(
                search.channels * search.tree_speed * 0.92,
                search.channels * constants.tree_per_nodes[index],
            )
            if protocol == 0:
                limit = (
                    constants.ll_single_node
                    if self.nodes == 1
                    else (constants.ll_amd if self.amd_host else constants.ll_intel)[index - 1]
                )
                return min(tree / 3.8, limit)
            if protocol == 1:
                if not self.nvlink:
                    return 0.0
                return min(
                    tree * (7 / 9 if self.nodes == 1 else 120 / 128),
                    search.channels * constants.tree_ll128_per_nodes[index],
                )
            return tree
        if protocol != SIMPLE:
            return 0.0
        if algorithm == "pat":  # NCCL offers it with one GPU per node only
            return (
                bus * 0.75
                if kind in ("all_gather", "reduce_scatter") and 1 < self.nodes == self.ranks
                else 0.0
            )
        if not self.nvls or self.ranks // self.nodes < 2:
            return 0.0
        if algorithm == "nvls":
            offered = (
                kind == "all_reduce"
                and self.nodes == 1
                or kind in ("all_gather", "reduce_scatter")
                and self.nodes == 1
            )
            return bus * constants.nvls_efficiency * 1.5 if offered else 0.0
        return bus * constants.nvls_efficiency if kind == "all_reduce" and self.nodes > 1 else 0.0

    def _algorithm_bandwidth(self, kind: str, algorithm: str, protocol: int) -> float:
        """Bytes of the buffer per microsecond / 1000."""
        bus = self._bus_bandwidth(kind, algorithm, protocol)
        if algorithm == "ring":
            return bus * self.ranks / steps_of(kind, self.ranks)
        if algorithm in ("nvls", "nvls_tree"):
            return bus * 5 / 6
        return bus * 0.5

    def network_latency_us(self, algorithm: str, protocol: int) -> float:
        """One step between servers. With one rank per server, each GPU both sends and receives on
        the network, as in a tree."""
        table = self.constants.network_latency
        return table["tree" if self.ranks == self.nodes else algorithm][protocol]

    def _latency(self, kind: str, algorithm: str, protocol: int) -> float:
        """Microseconds."""
        constants, nodes, ranks = self.constants, self.nodes, self.ranks
        base = constants.base_latency[algorithm][protocol]
        inside = (constants.nvlink_latency if self.nvlink else constants.pcie_latency)[algorithm][
            protocol
        ]
        between = self.network_latency_us(algorithm, protocol)
        if algorithm == "ring":
            steps = steps_of(kind, ranks)
            if kind in ("broadcast", "reduce"):
                # All channels have one ring, so consecutive launches overlap.
                if nodes == 1 or self.search.channels <= 2:
                    return base + (between if nodes > 1 else inside)
                return base + steps * (
                    constants.network_latency["tree"][protocol] if protocol == SIMPLE else between
                )
            crossing = 0 if nodes == 1 else 2 * (nodes - 1) if kind == "all_reduce" else nodes - 1
            # Every step also launches network work: about 1 us, or 3 us for Simple.
            if nodes > 1:
                inside = max(inside, 3.0 if protocol == SIMPLE else 1.0)
            return base + (steps - crossing) * inside + crossing * between
        log2 = int(math.log2(nodes))
        if algorithm == "tree":
            return base + 2 * ((ranks // nodes - 1) * inside + log2 * between)
        if algorithm == "pat":
            return base + log2 * between / 3.5 + ranks * 2.8
        return inside + (2 * log2 * between if algorithm == "nvls_tree" else 0.0)

    def estimate_us(
        self, kind: str, algorithm: str, protocol: int, total_bytes: int
    ) -> float | None:
        """NCCL's own estimate in microseconds, None where the combination is not offered."""
        bandwidth = self._algorithm_bandwidth(kind, algorithm, protocol)
        if bandwidth <= 0:
            return None
        latency = self._latency(kind, algorithm, protocol)
        bandwidth *= self.tree_correction(algorithm, protocol, total_bytes)
        if (
            algorithm == "ring"
            and protocol == SIMPLE
            and self.nodes > 1
            and kind == "all_reduce"
            and total_bytes / (self.search.running * self.ranks) >= 64
        ):
            latency *= 1.4
        return latency + total_bytes / (1000 * bandwidth)

    def tree_correction(self, algorithm: str, protocol: int, total_bytes: int) -> float:
        """NCCL's factor on a tree's bandwidth at middle sizes; 1 for everything else."""
        power = (total_bytes >> 6).bit_length() - 1
        row = self.constants.tree_correction[protocol]
        return row[power] if algorithm == "tree" and 0 <= power < len(row) else 1.0

    def choose(self, kind: str, total_bytes: int) -> Choice:
        """NCCL's fastest choice by its own estimate; the first of equals. `total_bytes`: the whole
        buffer, on the gathered side."""
        best: tuple[float, str, int] | None = None
        for algorithm in ALGORITHMS:
            for protocol in range(3):
                time = self.estimate_us(kind, algorithm, protocol, total_bytes)
                if time is not None and (best is None or time < best[0]):
                    best = (time, algorithm, protocol)
        assert best is not None  # ring Simple is always offered
        _, algorithm, protocol = best
        return Choice(
            algorithm,
            protocol,
            self._channels(algorithm, protocol, total_bytes),
            self._bus_bandwidth(kind, algorithm, protocol)
            * self.tree_correction(algorithm, protocol, total_bytes),
        )

    def _channels(self, algorithm: str, protocol: int, total_bytes: int) -> int:
        if algorithm in ("nvls", "nvls_tree"):
            return self.constants.nvls_channels
        threshold = self.constants.thread_thresholds[protocol] * self.constants.threads[protocol]
        if algorithm == "ring" and protocol == 0:
            threshold *= self.ranks
        return max(1, min(self.search.running, int(total_bytes // threshold)))

    def choose_pair(self, size_bytes: int, ranks: int | None = None) -> PairChoice:
        """How one message of a grouped send and receive is sent, in a communicator of `ranks`
        (None: this one's)."""
        constants, ranks = self.constants, ranks or self.ranks
        most = self.pair_channels if self.nodes == 1 else self._channels_of_remote_peer(ranks)
        usual = most
        while usual * ranks > self.pair_channels and usual > 1:
            usual //= 2
        simple = (
            constants.pair_chunk_bytes if self.nodes == 1 else constants.pair_network_chunk_bytes
        )
        counted = most
        if constants.pair_ll_per_message:
            counted = self._channels_of_message(size_bytes, simple, usual, most)
        if size_bytes <= counted * constants.pair_ll_bytes:
            protocol, chunk = 0, constants.pair_ll_chunk_bytes
        else:
            protocol, chunk = SIMPLE, simple
        channels = counted
        if not constants.pair_ll_per_message:
            channels = self._channels_of_message(size_bytes, chunk, usual, most)
        return PairChoice(protocol, channels, min(-(-size_bytes // channels), chunk))

    def _channels_of_remote_peer(self, ranks: int) -> int:
        """The most channels that a peer on another node may have."""
        constants = self.constants
        if not constants.pair_network_bandwidth:
            # two per NIC, one when that would overload the channels
            return 2 if 2 * ranks <= 4 * self.pair_channels else 1
        needed = math.ceil(int(self._nic) / constants.pair_network_bandwidth)
        if not self.nvlink and self.ranks > self.nodes:
            needed = min(needed, 2)  # as many as a peer over PCIe has: all peers get equally many
        most = 1 << max(0, needed - 1).bit_length()
        while most * math.ceil(ranks / constants.pair_batch) > self.pair_channels and most > 1:
            most //= 2
        return most

    def _channels_of_message(self, size_bytes: int, chunk: int, usual: int, most: int) -> int:
        """`usual` channels, fewer for a small message, more for one that is large."""
        least, limit = (chunk // 8, chunk * 32) if self.nodes == 1 else (chunk // 2, chunk)
        channels = max(1, min(usual, -(-size_bytes // least)))
        while max(least, -(-size_bytes // channels)) > limit and channels <= most // 2:
            channels *= 2
        return channels


def steps_of(kind: str, ranks: int) -> int:
    """NCCL's count of ring steps."""
    if kind == "all_reduce":
        return 2 * (ranks - 1)
    return ranks - 1 if kind in ("all_gather", "reduce_scatter") else ranks
