"""The part of a topology between the NICs: generated tiers of switches, or a graph from the file.

Why it exists: networks differ, servers inside do not. Rule: a fabric only adds links and answers
paths from NIC to NIC. It knows nothing about routes to GPUs.
"""

from __future__ import annotations

import difflib
import heapq
from typing import Protocol

from phantora_ns.model.cluster import Cluster, Network
from phantora_ns.sim._links import Links, TopologyError

Nic = tuple[int, int]  # node, NIC of the node


def nic_name(node: int, nic: int) -> str:
    """The NIC's name, `node-N/nic-K`."""
    return f"node-{node}/nic-{nic}"


def nics_per_node(cluster: Cluster) -> int:
    """How many NICs each server has; 0 without a network."""
    if cluster.network.kind == "none":
        return 0
    return -(-cluster.gpus_per_node // cluster.server.gpus_per_nic)


def mix(*values: int) -> int:
    """A 64-bit hash of integers, the same in every process (splitmix64's finaliser, Steele et al.,
    OOPSLA 2014)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ value) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


class Fabric(Protocol):
    """Adds its links on construction. `path` gives the links from one NIC to a NIC of a different
    node."""

    def path(self, src: Nic, dst: Nic, flow: int) -> list[int]:
        """The links, in order; the same ones for the same `flow`."""


def make_fabric(links: Links, cluster: Cluster) -> Fabric:
    """Adds the cluster's network to `links`. Raises TopologyError."""
    if cluster.network.kind == "graph":
        return SearchedFabric(links, cluster)
    return TieredFabric(links, cluster)


class TieredFabric:
    """One or two tiers of switches: `switch` (one tier), `rail` (one leaf per NIC position),
    `fat-tree`. The latter two have spines.

    A leaf serves `nodes_per_leaf` nodes (all of them when None): all of their NICs, or, in a rail
    network, the NICs of one position. Each leaf connects to every spine. Its uplinks together carry
    the bandwidth of its downlinks divided by `oversubscription`.
    """

    def __init__(self, links: Links, cluster: Cluster) -> None:
        network = cluster.network
        self._links, self._network, self._seed = links, network, network.seed
        self._nodes = cluster.nodes
        self._group = network.nodes_per_leaf or max(cluster.nodes, 1)
        self._ports: dict[Nic, tuple[str, int, int]] = {}  # NIC -> its leaf, link to and from it
        if network.kind == "none":
            return
        leaves = self._join_nics(nics_per_node(cluster))
        if len(leaves) == 1 or cluster.nodes == 1:
            return
        if network.spines == 0 and cluster.nccl.pxn and self._group >= cluster.nodes:
            return  # rails may stay separate: traffic changes rails over NVLink inside the servers
        if network.spines == 0:
            raise TopologyError(
                "network.spines",
                f"{len(leaves)} leaf switches and no spine joins them; add spines = 4, say",
            )
        full = self._group * (1 if network.kind == "rail" else nics_per_node(cluster))
        for leaf, ports in leaves.items():
            self._join_spines(network, leaf, max(full, ports))

    def _join_nics(self, nics: int) -> dict[str, int]:
        """Cables from every NIC to its leaf; returns the ports of each leaf."""
        network, leaves = self._network, dict[str, int]()
        for node in range(self._nodes):
            for nic in range(nics):
                leaf = self._leaf(node, nic)
                cable = self._links.add_cable(
                    nic_name(node, nic),
                    leaf,
                    network.nic_bytes_per_ns * network.efficiency,
                    network.nic_latency_ns,
                )
                self._ports[node, nic] = (leaf, *cable)
                leaves[leaf] = leaves.get(leaf, 0) + 1
        return leaves

    def _join_spines(self, network: Network, leaf: str, ports: int) -> None:
        """Cables from a leaf to every spine. A leaf that is not full has all of its uplinks too."""
        uplink = ports * network.nic_bytes_per_ns / network.oversubscription / network.spines
        for spine in range(network.spines):
            self._links.add_cable(
                leaf, f"spine-{spine}", uplink * network.efficiency, network.switch_latency_ns
            )

    def _leaf(self, node: int, nic: int) -> str:
        group = node // self._group
        if self._network.kind == "switch":
            return "switch"
        if self._network.kind == "rail":
            return f"rail-{nic}" if self._group >= self._nodes else f"group-{group}/rail-{nic}"
        return f"leaf-{group}"

    def path(self, src: Nic, dst: Nic, flow: int) -> list[int]:
        """O(1). Raises TopologyError when the path needs two rails that are not connected."""
        (leaf, out, _), (other, _, into) = self._ports[src], self._ports[dst]
        if leaf == other:
            return [out, into]
        if self._network.spines == 0:
            raise TopologyError(
                "network.spines",
                f"{leaf} and {other} are not joined; add spines, or nccl.pxn = true",
            )
        spine = f"spine-{mix(self._seed, flow) % self._network.spines}"
        return [out, self._links.between(leaf, spine), self._links.between(spine, other), into]


class SearchedFabric:
    """A graph from the file. Paths are the shortest by latency, then by number of links; among equal
    paths, ECMP decides at every branch."""

    def __init__(self, links: Links, cluster: Cluster) -> None:
        network = cluster.network
        self._links, self._seed = links, network.seed
        nics = [
            nic_name(node, nic)
            for node in range(cluster.nodes)
            for nic in range(nics_per_node(cluster))
        ]
        self._next: dict[str, list[tuple[str, int]]] = {}
        self._add_links(network, nics)
        # destination -> vertex -> (remaining latency, remaining links)
        self._toward: dict[str, dict[str, tuple[int, int]]] = {}
        if nics and cluster.nodes > 1:
            reached = self._distances(nics[0])
            for name in (*nics, *network.switches):
                if name not in reached:
                    raise TopologyError(
                        "network.link",
                        f"{name!r} and {nics[0]!r} are not connected; join their parts by a link",
                    )

    def _add_links(self, network: Network, nics: list[str]) -> None:
        joinable = {*network.switches, *nics}
        known = sorted(joinable | self._links.vertices())
        for number, link in enumerate(network.links, 1):
            key = f"network.link[{number}]"
            for side, name in (("a", link.a), ("b", link.b)):
                if name not in joinable:
                    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                    hint = f"; did you mean {close[0]!r}?" if close else ""
                    raise TopologyError(
                        f"{key}.{side}", f"no cable can join {name!r}: no such thing{hint}"
                    )
            if link.a == link.b:
                raise TopologyError(f"{key}.b", f"{link.a!r} is joined to itself")
            try:
                there, back = self._links.add_cable(
                    link.a, link.b, link.bytes_per_ns * network.efficiency, link.latency_ns
                )
            except TopologyError as error:
                raise TopologyError(key, error.problem) from None
            self._next.setdefault(link.a, []).append((link.b, there))
            self._next.setdefault(link.b, []).append((link.a, back))

    def _distances(self, destination: str) -> dict[str, tuple[int, int]]:
        """(latency, number of links) to `destination` from every vertex; cached. Dijkstra, O(links
        log links)."""
        known = self._toward.get(destination)
        if known is not None:
            return known
        done: dict[str, tuple[int, int]] = {}
        queue = [(0, 0, destination)]
        latencies = self._links.latency_ns
        while queue:
            latency, hops, name = heapq.heappop(queue)
            if name in done:
                continue
            done[name] = (latency, hops)
            # A cable has one latency for both directions, so the graph equals its reverse.
            for other, link in self._next.get(name, ()):
                if other not in done:
                    heapq.heappush(queue, (latency + latencies[link], hops + 1, other))
        self._toward[destination] = done
        return done

    def path(self, src: Nic, dst: Nic, flow: int) -> list[int]:
        """One of the shortest paths, the same one for the same `flow`."""
        vertex, end = nic_name(*src), nic_name(*dst)
        left = self._distances(end)
        links: list[int] = []
        while vertex != end:
            latency, hops = left[vertex]
            equal = [
                (other, link)
                for other, link in self._next[vertex]
                if left[other] == (latency - self._links.latency_ns[link], hops - 1)
            ]
            vertex, link = equal[mix(self._seed, flow, len(links)) % len(equal)]
            links.append(link)
        return links
