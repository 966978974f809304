"""From a cluster to links that flows share, and from two GPUs to the links between them.

Why it exists: this is where a cluster's bandwidths become capacities. A topology is a directed
graph: GPUs, an NVSwitch per server, NICs, switches. A link's capacity is what a payload can use:
the nominal bandwidth times an efficiency (NVLink's packet headers cost 18 %, an RDMA network's about
3 %). Rules: building and routing are deterministic. Among equal paths, a hash seeded by the cluster
file chooses one (ECMP). Routes of generated networks follow directly from the numbers, in constant
time; only explicit graphs are searched.

Vertices are named `node-N/gpu-G`, `node-N/nvswitch` (or `node-N/pcie`) and `node-N/nic-K`; switches
have the names that the network gives them. A link is `A -> B`.
"""

from __future__ import annotations

from phantora_ns.model.cluster import Cluster, Fault
from phantora_ns.sim._fabric import make_fabric, mix, nic_name, nics_per_node
from phantora_ns.sim._links import Links, TopologyError, unknown

__all__ = ["Topology", "TopologyError"]


class Topology:
    """Links and routes of one cluster. GPUs are numbered node * gpus_per_node + local; build with
    `Topology.build`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.gpus_per_node = cluster.gpus_per_node
        self.world_size = cluster.world_size
        self.nics_per_node = nics_per_node(cluster)
        self._switched = cluster.server.interconnect == "nvswitch"
        self._hub = "nvswitch" if self._switched else "pcie"
        self._links = Links()
        self._up: list[int] = []  # GPU -> link into the server's switch
        self._down: list[int] = []
        self._to_nic: list[int] = []
        self._from_nic: list[int] = []
        self._routes: dict[tuple[int, int, int, int | None], tuple[int, ...]] = {}
        for node in range(cluster.nodes):
            self._add_server(node)
        self._fabric = make_fabric(self._links, cluster)
        # link or global GPU, from_ns, to_ns (None: until the end), factor
        self.faults: list[tuple[int, int, int | None, float]] = []
        self.slow_gpus: list[tuple[int, int, int | None, float]] = []
        for fault in cluster.faults:
            self._apply(fault)

    @classmethod
    def build(cls, cluster: Cluster) -> Topology:
        """The topology of `cluster`. O(links). Raises TopologyError for an unconnected graph, or a
        name that does not exist."""
        return cls(cluster)

    def _add_server(self, node: int) -> None:
        """The cables inside one server."""
        cluster, links = self.cluster, self._links
        server, gpu = cluster.server, cluster.gpu_model
        pcie = server.pcie_bytes_per_ns or gpu.pcie_bytes_per_ns
        if self._switched:
            if gpu.nvlinks == 0:
                raise TopologyError(
                    "server.interconnect", f'a {gpu.name} has no NVLink; use "pcie"'
                )
            inside = (server.nvlink_bytes_per_ns or gpu.nvlink_bytes_per_ns) * gpu.nvlink_efficiency
            latency_ns = server.nvlink_latency_ns
        else:
            inside, latency_ns = pcie, server.pcie_latency_ns
        switch = f"node-{node}/{self._hub}"
        for local in range(cluster.gpus_per_node):
            name = self.gpu_name(node * cluster.gpus_per_node + local)
            up, down = links.add_cable(name, switch, inside, latency_ns)
            self._up.append(up)
            self._down.append(down)
            if self.nics_per_node and self._switched:
                nic = nic_name(node, self.nic_of(local))
                out, back = links.add_cable(name, nic, pcie, server.pcie_latency_ns)
                self._to_nic.append(out)
                self._from_nic.append(back)
        if not self._switched:
            # A GPU reaches its NIC through the PCIe switch that also connects the GPUs.
            for local_nic in range(self.nics_per_node):
                links.add_cable(switch, nic_name(node, local_nic), pcie, 0)

    # ---- names and links ----

    @property
    def capacities(self) -> dict[int, float]:
        """Link -> bytes per ns."""
        return self._links.capacities

    @property
    def link_latency_ns(self) -> list[int]:
        """Latency in ns, by link."""
        return self._links.latency_ns

    @property
    def link_names(self) -> list[str]:
        """Name `A -> B`, by link."""
        return self._links.names

    def gpu_name(self, gpu: int) -> str:
        """`node-N/gpu-G` of a global GPU number."""
        return f"node-{gpu // self.gpus_per_node}/gpu-{gpu % self.gpus_per_node}"

    def nic_of(self, local: int) -> int:
        """The NIC nearest to a GPU of the node, by its local ordinal."""
        return local // self.cluster.server.gpus_per_nic

    def link_ends(self, link: int) -> tuple[str, str]:
        """(from, to) of a link."""
        return self._links.ends[link]

    def link_id(self, a: str, b: str) -> int | None:
        """The link from `a` to `b`, None when there is none."""
        return self._links.find(a, b)

    def link_up(self, gpu: int) -> int:
        """The link from a GPU into its server's switch."""
        return self._up[gpu]

    def link_down(self, gpu: int) -> int:
        """The link from its server's switch to a GPU."""
        return self._down[gpu]

    @property
    def nic_bytes_per_ns(self) -> float:
        """Nominal bandwidth of a NIC: the smallest of all NICs' connections; 0.0 without NICs."""
        network = self.cluster.network
        if network.kind == "graph":
            rates = (link.bytes_per_ns for link in network.links if "/nic-" in link.a + link.b)
            return min(rates, default=0.0)
        return network.nic_bytes_per_ns if self.nics_per_node else 0.0

    # ---- routes ----

    def kind(self, src_gpu: int, dst_gpu: int) -> str:
        """The kind of connection: "self", "nvlink", "pcie" or "network"."""
        if src_gpu == dst_gpu:
            return "self"
        if src_gpu // self.gpus_per_node != dst_gpu // self.gpus_per_node:
            return "network"
        return "nvlink" if self._switched else "pcie"

    def route(
        self, src_gpu: int, dst_gpu: int, salt: int = 0, rail: int | None = None
    ) -> tuple[int, ...]:
        """Links from one GPU to another, in order; empty from a GPU to itself. `salt` distinguishes
        flows of one pair for ECMP.

        Between nodes the flow leaves and enters by NIC `rail`. If `rail` is None and the servers'
        GPUs can pass data to each other over NVLink, the flow uses the receiver's NIC on both sides
        (NCCL's PXN, which keeps traffic on one rail). Otherwise each side uses its own NIC. A NIC of
        another GPU is reached over NVLink and that GPU. Raises IndexError for a GPU or a rail that
        does not exist.
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
        src_node, src_local = divmod(src, self.gpus_per_node)
        dst_node, dst_local = divmod(dst, self.gpus_per_node)
        if src_node == dst_node:
            return self._up[src], self._down[dst]
        own, theirs = self.nic_of(src_local), self.nic_of(dst_local)
        if rail is not None:
            own = theirs = rail
        elif self.cluster.nccl.pxn:
            own = theirs
        return (
            *self._route_to_nic(src, own),
            *self._fabric.path((src_node, own), (dst_node, theirs), mix(src, dst, salt)),
            *self._route_from_nic(dst, theirs),
        )

    def _proxy(self, gpu: int, nic: int) -> int:
        """The GPU of the same node through which `gpu` reaches `nic`: `gpu` itself when the NIC is
        its own."""
        node, local = divmod(gpu, self.gpus_per_node)
        if self.nic_of(local) == nic:
            return gpu
        return node * self.gpus_per_node + nic * self.cluster.server.gpus_per_nic

    def _route_to_nic(self, gpu: int, nic: int) -> list[int]:
        if not self._switched:
            node = gpu // self.gpus_per_node
            return [self._up[gpu], self._links.between(f"node-{node}/pcie", nic_name(node, nic))]
        proxy = self._proxy(gpu, nic)
        if proxy == gpu:
            return [self._to_nic[gpu]]
        return [self._up[gpu], self._down[proxy], self._to_nic[proxy]]

    def _route_from_nic(self, gpu: int, nic: int) -> list[int]:
        if not self._switched:
            node = gpu // self.gpus_per_node
            return [self._links.between(nic_name(node, nic), f"node-{node}/pcie"), self._down[gpu]]
        proxy = self._proxy(gpu, nic)
        if proxy == gpu:
            return [self._from_nic[gpu]]
        return [self._from_nic[proxy], self._up[proxy], self._down[gpu]]

    def latency_ns(self, src_gpu: int, dst_gpu: int, salt: int = 0, rail: int | None = None) -> int:
        """Sum of the links' latencies along `route`; 0 from a GPU to itself."""
        latencies = self.link_latency_ns
        return sum(latencies[link] for link in self.route(src_gpu, dst_gpu, salt, rail))

    # ---- faults ----

    def capacity_changes(self) -> list[tuple[int, int, float]]:
        """(at_ns, link, bytes per ns from then on) for every moment at which a fault begins or ends,
        in order of time.

        Overlapping faults of one link multiply.
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
                raise TopologyError(f"{fault.key}.gpu", unknown(fault.gpu, names))
            self.slow_gpus.append((names[fault.gpu], fault.from_ns, fault.to_ns, fault.factor))
        elif fault.link is not None:
            for link in self._links.called(fault.link, f"{fault.key}.link"):
                self.faults.append((link, fault.from_ns, fault.to_ns, fault.factor))

    def check(self) -> None:
        """Asserts every invariant of the links."""
        self._links.check()
