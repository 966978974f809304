"""When a collective finishes, by NCCL's rings, trees and channels.

Why it exists: it turns a collective into flows over the topology's links, between two latency terms:

    end = start + before_ns, then every flow, then after_ns

NCCL's own formula picks the algorithm (_nccl_tuning.py). Its rings and trees give the flows' routes
(_nccl_layout.py). Measured constants give the latency per step and the rate that channels reach
(data/gpus/MODEL.toml [nccl]). Contention is not computed here: flows that share a link share its
capacity in the flow simulator. Pure: integer nanoseconds and bytes, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phantora_ns.model.gpu import GpuModel
from phantora_ns.model.nccl import NcclConstants
from phantora_ns.protocol import Collective
from phantora_ns.sim._nccl_layout import Layout
from phantora_ns.sim._nccl_tuning import PROTOCOL_NAMES, SIMPLE, Choice, PairChoice, Tuner
from phantora_ns.sim.topology import Topology

KINDS = Collective.LABELS
# Bytes on the wire per byte of data: LL sends a 4-byte flag with every 4 bytes, LL128 an 8-byte
# flag with every 120.
_WIRE = (2.0, 128 / 120, 1.0)


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """`count` equal flows over `links` (ids of the topology, in order), each of `size_bytes`, at
    most `rate_cap` bytes/ns."""

    links: tuple[int, ...]
    size_bytes: int
    rate_cap: float | None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """One collective: it ends at start + before_ns, then all flows, then after_ns."""

    flows: tuple[FlowSpec, ...]
    before_ns: int
    after_ns: int
    algorithm: str
    protocol: str
    channels: int


class CollectiveModel:
    """Plans for the communicators of one topology. Plans are cached: the same collective is planned
    once."""

    def __init__(self, topology: Topology, gpu: GpuModel):
        self.topology, self.gpu = topology, gpu
        self._constants = gpu.nccl.constants
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._tuners: dict[tuple[int, int, int], Tuner] = {}
        self._plans: dict[tuple[str, tuple[int, ...], int, int], Plan] = {}

    def use(self, constants: NcclConstants) -> None:
        """Plans from now on are those of another release of NCCL, until then of the one that the
        GPU model's times were measured with."""
        if constants != self._constants:
            self._constants = constants
            self._tuners.clear()
            self._plans.clear()

    def plan(
        self, kind: int, gpus: Sequence[int], count_bytes: int, dtype: int = 9, root: int = 0
    ) -> Plan:
        """The plan of one collective over `gpus` (global GPU of each rank).

        `kind` and `count_bytes` are those of OPS in docs/wire-protocol.md; `root` is a rank.
        `dtype` does not affect time so far (links bound NCCL's reductions). Raises ValueError for
        kinds 8 and 9 (use `plan_pairs`), an unknown kind, a negative size, a root that is not a rank,
        or two ranks on one GPU. O(ranks) the first time, then O(1).
        """
        if not 0 <= kind < len(KINDS) or KINDS[kind] in ("send", "recv"):
            raise ValueError(
                f"{kind} is not a collective's kind; sends and receives go through plan_pairs"
            )
        if count_bytes < 0:
            raise ValueError(f"a collective of {count_bytes} bytes")
        if not 0 <= root < len(gpus):
            raise ValueError(f"root {root} is not a rank of a communicator of {len(gpus)}")
        name = KINDS[kind]
        key = (
            name,
            tuple(gpus),
            count_bytes,
            root if name in ("broadcast", "reduce", "gather", "scatter") else 0,
        )
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) >= 65536:  # bounds the memory for sizes that never repeat
                self._plans.clear()
            known = self._plans[key] = self._plan(*key)
        return known

    def _plan(self, name: str, gpus: tuple[int, ...], count_bytes: int, root: int) -> Plan:
        layout = self._layout(gpus)
        if layout.ranks == 1:
            return self._alone(count_bytes)
        if name == "all_to_all":
            return self.plan_pairs([(a, b, count_bytes) for a in gpus for b in gpus])
        if name == "gather":
            return self.plan_pairs([(gpu, gpus[root], count_bytes) for gpu in gpus])
        if name == "scatter":
            return self.plan_pairs([(gpus[root], gpu, count_bytes) for gpu in gpus])
        total = (
            count_bytes * layout.ranks if name in ("all_gather", "reduce_scatter") else count_bytes
        )
        choice = self._tuner(layout).choose(name, total)
        if choice.algorithm in ("nvls", "nvls_tree"):
            return self._nvls(layout, name, total, choice)
        if choice.algorithm == "tree":
            return self._tree(layout, total, choice)
        if choice.algorithm == "pat":
            return self._pat(layout, total, choice)
        return self._ring(layout, name, total, choice, gpus[root])

    # ---- algorithms ----

    def _ring(self, layout: Layout, name: str, total: int, choice: Choice, root: int) -> Plan:
        times, protocol, ranks = (
            self.gpu.nccl.protocols[choice.protocol],
            choice.protocol,
            layout.ranks,
        )
        chain = name in ("broadcast", "reduce")
        if chain:
            sent, own, steps = total, 0, ranks - 1
            start, step = times.chain_start_ns, times.chain_step_ns
        else:
            passes = 2 if name == "all_reduce" else 1
            own = -(-total // ranks)
            sent, steps = passes * own * (ranks - 1), passes * (ranks - 1)
            start, step = times.start_ns, times.step_ns
        crossing = 0 if layout.nodes == 1 else steps * (layout.nodes - chain) // (ranks - chain)
        latency = (steps - crossing) * step + crossing * self._network_step_ns(
            layout, "ring", protocol, times.network_step_ns
        )
        # The same threads move the rank's own share, so it lowers the ring's rate instead of adding
        # a delay.
        pace = (
            sent / (sent / times.bytes_per_ns + own / times.copy_bytes_per_ns)
            if sent
            else times.bytes_per_ns
        )
        # Between servers the NICs are the limit, except for LL, where the hosts that poll its flags
        # are.
        between = times.network_bytes_per_ns
        if between is None:
            between = choice.bus_bytes_per_ns if protocol == 0 else pace
        flows = []
        # A chain is a ring without the edge back to its root.
        edges = layout.ring_edges(root if chain else None)
        for (a, b, rail), share in edges.items():
            if name == "reduce":
                a, b = b, a
            crossing_edge = self.topology.kind(a, b) == "network"
            flows.append(
                self._flow(
                    a,
                    b,
                    rail,
                    sent * share,
                    (min(pace, between) if crossing_edge else pace) * share,
                    protocol,
                )
            )
        return self._plan_of(flows, start, latency, "ring", choice)

    def _tree(self, layout: Layout, total: int, choice: Choice) -> Plan:
        times, protocol = self.gpu.nccl.protocols[choice.protocol], choice.protocol
        inside = max(len(found) for found in layout.members) - 1
        between = (layout.nodes.bit_length() - 1) if layout.nodes > 1 else 0
        step = self._network_step_ns(layout, "tree", protocol, times.network_tree_step_ns)
        latency = 2 * (inside * times.tree_step_ns + between * step)
        across = choice.bus_bytes_per_ns / 2
        if times.network_tree_bytes_per_ns is not None:
            across = times.network_tree_bytes_per_ns * self._tuner(layout).tree_correction(
                "tree", protocol, total
            )
        flows = []
        for (child, parent, rail), share in layout.tree_edges().items():
            rate = times.tree_bytes_per_ns
            if self.topology.kind(child, parent) == "network":
                rate = min(rate, across)
            for a, b in ((child, parent), (parent, child)):
                flows.append(self._flow(a, b, rail, total * share, rate * share, protocol))
        return self._plan_of(flows, times.tree_start_ns, latency, "tree", choice)

    def _pat(self, layout: Layout, total: int, choice: Choice) -> Plan:
        """Parallel aggregated trees: every rank sends all shards but its own, in log2(ranks)
        exchanges. The distance between partners doubles each time."""
        times, gpus, ranks = self.gpu.nccl.protocols[SIMPLE], layout.gpus, layout.ranks
        shard = -(-total // ranks)
        flows, distance, sent = [], 1, 0
        rate = choice.bus_bytes_per_ns
        while distance < ranks:
            blocks = min(distance, ranks - distance)
            share = blocks / (ranks - 1)
            for rank, gpu in enumerate(gpus):
                flows.append(
                    self._flow(
                        gpu,
                        gpus[(rank + distance) % ranks],
                        None,
                        blocks * shard,
                        rate * share,
                        SIMPLE,
                    )
                )
            sent += blocks
            distance *= 2
        rounds = (ranks - 1).bit_length()
        between = self._tuner(layout).network_latency_us("pat", SIMPLE)
        latency = round(1000 * (rounds * between / 3.5 + 2.8 * ranks))
        return self._plan_of(flows, times.start_ns, latency, "pat", choice)

    def _nvls(self, layout: Layout, name: str, total: int, choice: Choice) -> Plan:
        """The switch reduces and multicasts. So a GPU's link carries the buffer once, plus the GPU's
        own share of the result."""
        topology, constants, times = self.topology, self._constants, self.gpu.nccl.nvls
        latency = times.start_ns
        if latency is None:
            latency = round(1000 * constants.nvlink_latency["nvls"][SIMPLE])
        flows = []
        for found in layout.members:
            own = -(-total // len(found))
            passes = {
                "all_reduce": (total + own, total + own),
                "all_gather": (own, total),
                "reduce_scatter": (total, own),
            }[name]
            rate = times.bytes_per_ns or self._inside() * constants.nvls_efficiency
            for gpu in found:
                for link, size in zip((topology.link_up(gpu), topology.link_down(gpu)), passes):
                    flows.append(FlowSpec((link,), size, rate))
        if layout.nodes > 1:
            latency += (
                2
                * (layout.nodes.bit_length() - 1)
                * self._network_step_ns(layout, "nvls_tree", SIMPLE, times.network_step_ns)
            )
            across = times.network_bytes_per_ns or choice.bus_bytes_per_ns / 2
            for (child, parent, rail), share in layout.tree_edges().items():
                if rail is not None or topology.kind(child, parent) == "network":
                    for a, b in ((child, parent), (parent, child)):
                        flows.append(
                            self._flow(
                                a,
                                b,
                                rail,
                                total * share,
                                across * share,
                                SIMPLE,
                            )
                        )
        return self._plan_of(flows, 0, latency, choice.algorithm, choice)

    def _alone(self, count_bytes: int) -> Plan:
        """One rank: NCCL copies the buffer inside the GPU (read and written once), or does nothing
        if it is in place."""
        return Plan(
            (), self.gpu.nccl.local.start_ns, self._copy_ns(count_bytes), "copy", "Simple", 0
        )

    def _copy_ns(self, size_bytes: int) -> int:
        rate = self.gpu.memory_bytes_per_ns * self.gpu.nccl.local.share
        return round(2 * size_bytes / rate)

    def plan_pairs(self, pairs: Iterable[tuple[int, int, int]], ranks: int | None = None) -> Plan:
        """One launch of grouped sends and receives: (from GPU, to GPU, bytes) each. Equal GPUs mean a
        local copy.

        `ranks`: size of the communicator, which decides NCCL's channels per message; None means the
        number of GPUs that take part. Raises ValueError for a negative size. O(pairs).
        """
        pairs = list(pairs)
        gpus = tuple(sorted({gpu for a, b, _ in pairs for gpu in (a, b)}))
        if any(size < 0 for _, _, size in pairs):
            raise ValueError("a message of negative size")
        if not gpus:
            return Plan((), 0, 0, "pairs", "Simple", 0)
        layout = self._layout(gpus)
        times, tuner = self.gpu.nccl.pairs, self._tuner(layout)
        remote = [(a, b, size) for a, b, size in pairs if a != b]
        if not remote:
            return Plan(
                (),
                times.ll_start_ns,
                self._copy_ns(max(size for _, _, size in pairs)),
                "copy",
                "Simple",
                0,
            )
        out: dict[int, list[int]] = {}
        into: dict[int, list[int]] = {}
        for a, b, size in remote:
            out.setdefault(a, []).append(size)
            into.setdefault(b, []).append(size)
        flows: list[FlowSpec] = []
        channels = protocol = 0
        fill, crossing = 0.0, False
        for a, b, size in remote:
            choice = tuner.choose_pair(size, ranks)
            channels, protocol = max(channels, choice.channels), max(protocol, choice.protocol)
            crossing = crossing or self.topology.kind(a, b) == "network"
            if choice.protocol == SIMPLE:
                fill = max(fill, choice.chunk_bytes / times.fill_bytes_per_ns)
            if size == 0:
                continue
            busiest = max(out[a], into[b], key=sum)
            flows.append(self._message(a, b, size, choice, len(busiest), sum(busiest)))
        return self._plan_of_pairs(flows, layout, len(gpus), protocol, channels, fill, crossing)

    def plan_message(
        self,
        a: int,
        b: int,
        size_bytes: int,
        *,
        sent: tuple[int, int],
        received: tuple[int, int],
        gpus: int,
        members: Sequence[int],
    ) -> Plan:
        """One message from GPU `a` to GPU `b` within grouped launches. The plan equals that of
        `plan_pairs`, which sees the whole group.

        Ranks group sends and receives as they like, so nobody knows the whole group. `sent` is
        (messages, bytes) that a's launch sends to other GPUs, `received` the same for what b's launch
        receives; both include this message. `gpus` counts the GPUs that either launch names.
        `members`: the communicator's GPUs. Raises ValueError for a negative size. O(1).
        """
        if a == b or size_bytes < 0:
            return self.plan_pairs([(a, b, size_bytes)], len(members))
        layout = self._layout(tuple(members))
        choice = self._tuner(layout).choose_pair(size_bytes, len(members))
        fill = (
            choice.chunk_bytes / self.gpu.nccl.pairs.fill_bytes_per_ns
            if choice.protocol == SIMPLE
            else 0
        )
        busiest = max(sent, received, key=lambda load: load[1])
        flows = [self._message(a, b, size_bytes, choice, *busiest)] if size_bytes else []
        crossing = self.topology.kind(a, b) == "network"
        return self._plan_of_pairs(
            flows, layout, gpus, choice.protocol, choice.channels, fill, crossing
        )

    def _message(
        self, a: int, b: int, size: int, choice: PairChoice, messages: int, total_bytes: int
    ) -> FlowSpec:
        """A GPU's messages of one launch share its rate in proportion to their bytes, so they end
        together."""
        times = self.gpu.nccl.pairs
        if choice.protocol != SIMPLE:
            rate = times.ll_channel_bytes_per_ns
        elif times.network_channel_bytes_per_ns and self.topology.kind(a, b) == "network":
            rate = times.network_channel_bytes_per_ns
        else:
            rate = times.channel_bytes_per_ns
        whole = times.bytes_per_ns if messages == 1 else times.spread_bytes_per_ns
        return self._flow(
            a,
            b,
            None,
            size,
            min(rate * choice.channels, whole * size / total_bytes),
            choice.protocol,
        )

    def _plan_of_pairs(
        self,
        flows: list[FlowSpec],
        layout: Layout,
        gpus: int,
        protocol: int,
        channels: int,
        fill: float,
        crossing: bool,
    ) -> Plan:
        times = self.gpu.nccl.pairs
        start, doubling = (
            (times.ll_start_ns, times.ll_doubling_ns)
            if protocol == 0
            else (times.start_ns, times.doubling_ns)
        )
        latency = round(fill)
        if crossing:
            step = times.network_step_ns if protocol else times.ll_network_step_ns
            latency += self._network_step_ns(layout, "ring", protocol, step)
        half = latency // 2
        before = start + round(doubling * math.log2(gpus)) + half
        return Plan(
            tuple(flows), before, latency - half, "pairs", PROTOCOL_NAMES[protocol], channels
        )

    # ---- pieces ----

    def _plan_of(
        self, flows: list[FlowSpec], start_ns: int, latency_ns: int, algorithm: str, choice: Choice
    ) -> Plan:
        """A plan with half of the steps' latency before the bulk of the data and half after it,
        because a ring fills and drains."""
        half = latency_ns // 2
        return Plan(
            tuple(flows),
            start_ns + half,
            latency_ns - half,
            algorithm,
            PROTOCOL_NAMES[choice.protocol],
            choice.channels,
        )

    def _flow(
        self, a: int, b: int, rail: int | None, size: float, rate: float, protocol: int
    ) -> FlowSpec:
        """A flow of `size` bytes of data at `rate`, converted to bytes on the wire."""
        wire = _WIRE[protocol]
        return FlowSpec(self.topology.route(a, b, rail=rail), round(size * wire), rate * wire)

    def _network_step_ns(
        self, layout: Layout, algorithm: str, protocol: int, measured_ns: int | None
    ) -> int:
        """One step between servers: as measured, else NCCL's figure; plus the latency of this network
        beyond the usual one. 0 on one server."""
        if layout.nodes == 1:
            return 0
        first, second = layout.members[0][0], layout.members[1][0]
        added = self.topology.latency_ns(first, second) - self._constants.network_reference_ns
        if measured_ns is None:
            measured_ns = round(1000 * self._tuner(layout).network_latency_us(algorithm, protocol))
        return measured_ns + max(0, added)

    def _inside(self) -> float:
        """Payload bytes per ns of one GPU inside its server."""
        return self.topology.capacities[self.topology.link_up(0)]

    def _layout(self, gpus: tuple[int, ...]) -> Layout:
        known = self._layouts.get(gpus)
        if known is None:
            known = self._layouts[gpus] = Layout.of(self.topology, gpus)
        return known

    def _tuner(self, layout: Layout) -> Tuner:
        cluster = self.topology.cluster
        key = (layout.ranks, layout.nodes, len(layout.rails))
        known = self._tuners.get(key)
        if known is None:
            known = self._tuners[key] = Tuner(
                self._constants,
                *key,
                inside=self._inside(),
                nic=self.topology.nic_bytes_per_ns,
                nvlink=cluster.server.interconnect == "nvswitch",
                nvls=cluster.nccl.nvls,
                amd_host=cluster.nccl.amd_host,
                compute_capability=self.gpu.compute_major * 10 + self.gpu.compute_minor,
            )
        return known
