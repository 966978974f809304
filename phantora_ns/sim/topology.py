"""Why it exists: from a cluster to links that flows share, and from two GPUs to the links between
them.

A topology is a directed graph: GPUs, an NVSwitch per server, NICs, switches. A cable is two links,
one per direction. Link capacities are what a payload can use: the nominal bandwidth times an
efficiency (NVLink's packet headers cost 18 %, an RDMA network's about 3 %). Rules: building and
routing are deterministic; among equal paths one is chosen by a hash seeded by the cluster file
(ECMP); routes of generated networks are written down directly, in constant time, and only explicit
graphs are searched.

Vertices are named `node-N/gpu-G`, `node-N/nvswitch` (or `node-N/pcie`), `node-N/nic-K`, and as the
network calls its switches; a link is `A -> B`.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from phantora_ns.sim._fabric import Fabric, SearchedFabric, TieredFabric, TopologyError, mix

if TYPE_CHECKING:
    from phantora_ns.config import Cluster, Fault

__all__ = ["Topology", "TopologyError"]


class Topology:
    """Links and routes of one cluster. GPUs are numbered node * gpus_per_node + local; build with
    `Topology.build`."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.gpus_per_node = cluster.gpus_per_node
        self.world_size = cluster.world_size
        server, gpu, network = cluster.server, cluster.gpu_model, cluster.network
        self.nics_per_node = (
            0 if network.kind == "none" else -(-cluster.gpus_per_node // server.gpus_per_nic)
        )
        self.capacities: dict[int, float] = {}  # link id -> bytes per ns
        self.link_latency_ns: list[int] = []
        self.link_names: list[str] = []
        self._ends: list[tuple[str, str]] = []
        self._ids: dict[tuple[str, str], int] = {}
        self._routes: dict[tuple[int, int, int, int | None], tuple[int, ...]] = {}
        self.faults: list[
            tuple[int, int, int | None, float]
        ] = []  # link id, from_ns, to_ns (None: for good), factor
        self.slow_gpus: list[
            tuple[int, int, int | None, float]
        ] = []  # global GPU, from_ns, to_ns, factor

        self._switched = server.interconnect == "nvswitch"
        hub = "nvswitch" if self._switched else "pcie"
        pcie = server.pcie_bytes_per_ns or gpu.pcie_bytes_per_ns
        if self._switched:
            if gpu.nvlinks == 0:
                raise TopologyError(
                    "server.interconnect", f'a {gpu.name} has no NVLink; use "pcie"'
                )
            inside = (server.nvlink_bytes_per_ns or gpu.nvlink_bytes_per_ns) * gpu.nvlink_efficiency
            inside_latency = server.nvlink_latency_ns
        else:
            inside, inside_latency = pcie, server.pcie_latency_ns
        self._up: list[int] = []  # GPU -> link into the server's switch
        self._down: list[int] = []
        self._to_nic: list[int] = []
        self._from_nic: list[int] = []
        for node in range(cluster.nodes):
            for local in range(cluster.gpus_per_node):
                name = self.gpu_name(node * cluster.gpus_per_node + local)
                up, down = self._cable(name, f"node-{node}/{hub}", inside, inside_latency)
                self._up.append(up)
                self._down.append(down)
                if self.nics_per_node and self._switched:
                    out, back = self._cable(
                        name, self.nic_name(node, self.nic_of(local)), pcie, server.pcie_latency_ns
                    )
                    self._to_nic.append(out)
                    self._from_nic.append(back)
            if (
                not self._switched
            ):  # a GPU reaches its NIC through the PCIe switch that also joins the GPUs
                for nic in range(self.nics_per_node):
                    self._cable(f"node-{node}/{hub}", self.nic_name(node, nic), pcie, 0)
        self._fabric: Fabric = (SearchedFabric if network.kind == "graph" else TieredFabric)(
            self, cluster
        )
        for fault in cluster.faults:
            self._apply(fault)

    @classmethod
    def build(cls, cluster: Cluster) -> Topology:
        """The topology of `cluster`. O(links). Raises TopologyError (unconnected, or a name that
        does not exist)."""
        return cls(cluster)

    # ---- names ----

    def gpu_name(self, gpu: int) -> str:
        """`node-N/gpu-G` of a global GPU number."""
        return f"node-{gpu // self.gpus_per_node}/gpu-{gpu % self.gpus_per_node}"

    @staticmethod
    def nic_name(node: int, nic: int) -> str:
        """`node-N/nic-K`."""
        return f"node-{node}/nic-{nic}"

    def nic_of(self, local: int) -> int:
        """The NIC nearest to a GPU of the node, by its local ordinal."""
        return local // self.cluster.server.gpus_per_nic

    def vertices(self) -> set[str]:
        """All names."""
        return {name for pair in self._ends for name in pair}

    def link_ends(self, link: int) -> tuple[str, str]:
        """(from, to) of a link."""
        return self._ends[link]

    def link_id(self, a: str, b: str) -> int | None:
        """The link from `a` to `b`, None when there is none."""
        return self._ids.get((a, b))

    def link_up(self, gpu: int) -> int:
        """The link from a GPU into its server's switch."""
        return self._up[gpu]

    def link_down(self, gpu: int) -> int:
        """The link from its server's switch to a GPU."""
        return self._down[gpu]

    @property
    def nic_bytes_per_ns(self) -> float:
        """Nominal bandwidth of a NIC: the least that any of them is joined with; 0.0 where there
        are none."""
        if self.cluster.network.kind == "graph":
            return min(
                (
                    link.bytes_per_ns
                    for link in self.cluster.network.links
                    if "/nic-" in link.a + link.b
                ),
                default=0.0,
            )
        return self.cluster.network.nic_bytes_per_ns if self.nics_per_node else 0.0

    def _cable(self, a: str, b: str, capacity: float, latency_ns: int) -> tuple[int, int]:
        for ends in ((a, b), (b, a)):
            if ends in self._ids:
                raise TopologyError(
                    "network.link", f"{a!r} and {b!r} are joined twice; give one link with the sum"
                )
            self._ids[ends] = link = len(self._ends)
            self._ends.append(ends)
            self.capacities[link] = capacity
            self.link_latency_ns.append(latency_ns)
            self.link_names.append(f"{ends[0]} -> {ends[1]}")
        return link - 1, link

    # ---- routes ----

    def kind(self, src_gpu: int, dst_gpu: int) -> str:
        """ "self", "nvlink", "pcie" or "network"."""
        if src_gpu == dst_gpu:
            return "self"
        if src_gpu // self.gpus_per_node != dst_gpu // self.gpus_per_node:
            return "network"
        return "nvlink" if self._switched else "pcie"

    def route(
        self, src_gpu: int, dst_gpu: int, salt: int = 0, rail: int | None = None
    ) -> tuple[int, ...]:
        """Links from one GPU to another, in order; empty from a GPU to itself. `salt` tells flows
        of one pair apart for ECMP.

        Between nodes the flow leaves and enters by NIC `rail`; when it is None, by the receiver's
        NIC where the servers' GPUs can hand data to each other over NVLink (NCCL's PXN, which keeps
        traffic on one rail), else by each side's own. A NIC of another GPU is reached over NVLink
        and that GPU. Raises IndexError for a GPU or a rail that is not there.
        """
        key = (src_gpu, dst_gpu, salt, rail)
        known = self._routes.get(key)
        if known is None:
            known = self._routes[key] = self._find_route(*key)
        return known

    def _find_route(self, src: int, dst: int, salt: int, rail: int | None) -> tuple[int, ...]:
        if not (0 <= src < self.world_size and 0 <= dst < self.world_size):
            raise IndexError(f"GPUs {src} and {dst}: the cluster has {self.world_size}")
        if rail is not None and not 0 <= rail < max(self.nics_per_node, 1):
            raise IndexError(f"rail {rail}: a node has {self.nics_per_node} NICs")
        if src == dst:
            return ()
        (src_node, src_local), (dst_node, dst_local) = (
            divmod(src, self.gpus_per_node),
            divmod(dst, self.gpus_per_node),
        )
        if src_node == dst_node:
            return self._up[src], self._down[dst]
        own, theirs = self.nic_of(src_local), self.nic_of(dst_local)
        if rail is not None:
            own = theirs = rail
        elif self.cluster.nccl.pxn:
            own = theirs
        path = [
            *self._to_the_nic(src, own),
            *self._fabric.path((src_node, own), (dst_node, theirs), mix(src, dst, salt)),
            *self._from_the_nic(dst, theirs),
        ]
        return tuple(path)

    def _proxy(self, gpu: int, nic: int) -> int:
        """The GPU of the same node through which `gpu` reaches `nic`: itself when the NIC is its
        own."""
        node, local = divmod(gpu, self.gpus_per_node)
        if self.nic_of(local) == nic:
            return gpu
        return node * self.gpus_per_node + nic * self.cluster.server.gpus_per_nic

    def _to_the_nic(self, gpu: int, nic: int) -> list[int]:
        if not self._switched:
            node = gpu // self.gpus_per_node
            return [self._up[gpu], self._ids[f"node-{node}/pcie", self.nic_name(node, nic)]]
        proxy = self._proxy(gpu, nic)
        return [*((self._up[gpu], self._down[proxy]) if proxy != gpu else ()), self._to_nic[proxy]]

    def _from_the_nic(self, gpu: int, nic: int) -> list[int]:
        if not self._switched:
            node = gpu // self.gpus_per_node
            return [self._ids[self.nic_name(node, nic), f"node-{node}/pcie"], self._down[gpu]]
        proxy = self._proxy(gpu, nic)
        return [
            self._from_nic[proxy],
            *((self._up[proxy], self._down[gpu]) if proxy != gpu else ()),
        ]

    def latency_ns(self, src_gpu: int, dst_gpu: int, salt: int = 0, rail: int | None = None) -> int:
        """Sum of the links' latencies along `route`; 0 from a GPU to itself."""
        latencies = self.link_latency_ns
        return sum(latencies[link] for link in self.route(src_gpu, dst_gpu, salt, rail))

    # ---- faults ----

    def capacity_changes(self) -> list[tuple[int, int, float]]:
        """(at_ns, link, bytes per ns from then on) for every moment at which a fault begins or
        ends, in order of time.

        Faults of one link that overlap multiply.
        """
        changes = []
        for link in sorted({link for link, *_ in self.faults}):
            own = [
                (begin, end, factor) for other, begin, end, factor in self.faults if other == link
            ]
            moments = {begin for begin, _, _ in own} | {end for _, end, _ in own if end is not None}
            for at_ns in moments:
                rate = self.capacities[link]
                for begin, end, factor in own:
                    if begin <= at_ns and (end is None or at_ns < end):
                        rate *= factor
                changes.append((at_ns, link, rate))
        return sorted(changes)

    def _apply(self, fault: Fault) -> None:
        if fault.gpu is not None:
            names = {self.gpu_name(gpu): gpu for gpu in range(self.world_size)}
            if fault.gpu not in names:
                raise TopologyError(f"{fault.key}.gpu", self._unknown(fault.gpu, names))
            self.slow_gpus.append((names[fault.gpu], fault.from_ns, fault.to_ns, fault.factor))
            return
        for link in self._links_called(fault.link, f"{fault.key}.link"):
            self.faults.append((link, fault.from_ns, fault.to_ns, fault.factor))

    def _links_called(self, text: str, key: str) -> list[int]:
        """Links named `A -> B` (one direction), `A - B` (both), or `A` (all links of that vertex,
        both directions)."""
        known = self.vertices()
        one_way = " -> " in text
        parts = [part.strip() for part in text.split(" -> " if one_way else " - ")]
        for part in parts:
            if part not in known:
                raise TopologyError(key, self._unknown(part, known))
        if len(parts) == 1:
            return [link for link, ends in enumerate(self._ends) if parts[0] in ends]
        pairs = [tuple(parts)] if one_way else [tuple(parts), tuple(reversed(parts))]
        links = [self._ids.get(pair) for pair in pairs]
        if len(parts) != 2 or None in links:
            around = sorted({b for a, b in self._ends if a == parts[0]})
            raise TopologyError(
                key, f"no link {text!r}; {parts[0]} is joined to {', '.join(around[:12])}"
            )
        return links

    @staticmethod
    def _unknown(name: str, known) -> str:
        close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
        return f"nothing is called {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")

    def check(self) -> None:
        """Asserts every invariant: capacities positive, link ids dense, each cable two links of
        equal capacity."""
        assert list(self.capacities) == list(range(len(self._ends)))
        for link, (a, b) in enumerate(self._ends):
            assert a != b and self.capacities[link] > 0 and self.link_latency_ns[link] >= 0
            assert self.capacities[self._ids[b, a]] == self.capacities[link]
