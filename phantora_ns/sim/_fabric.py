"""Why it exists: the part of a topology between the NICs: generated tiers of switches, or a graph
that a person drew.

Rule: a fabric only adds links to the topology and answers paths from NIC to NIC; it knows nothing
of GPUs' routes.
"""

from __future__ import annotations

import difflib
import heapq
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from phantora_ns.config import Cluster
    from phantora_ns.sim.topology import Topology

Nic = tuple[int, int]  # node, NIC of the node


class TopologyError(ValueError):
    """A cluster describes no usable graph; `key` is the place in the cluster file."""

    def __init__(self, key: str, problem: str):
        super().__init__(f"{key}: {problem}")
        self.key, self.problem = key, problem


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
    """Adds its links when made; `path` gives the links from one NIC to another of a different
    node."""

    def path(self, src: Nic, dst: Nic, flow: int) -> list[int]: ...


class TieredFabric:
    """One or two tiers of switches: `switch` (one), `rail` (one per NIC position), `fat-tree`, the
    latter two with spines.

    A leaf serves `nodes_per_leaf` nodes (all of them when None): every NIC of theirs, or, in a rail
    network, the NICs of one position. Each leaf is joined to every spine; its links up carry
    together the bandwidth of its links down divided by `oversubscription`.
    """

    def __init__(self, topology: Topology, cluster: Cluster):
        network = cluster.network
        self._topology, self._network, self._seed = topology, network, network.seed
        self._group = network.nodes_per_leaf or max(cluster.nodes, 1)
        self._ports: dict[
            Nic, tuple[str, int, int]
        ] = {}  # NIC -> its leaf, link to it, link from it
        if network.kind == "none":
            return
        downlinks: dict[str, int] = {}
        for node in range(cluster.nodes):
            for nic in range(topology.nics_per_node):
                leaf = self._leaf(node, nic, cluster.nodes)
                links = topology._cable(
                    topology.nic_name(node, nic),
                    leaf,
                    network.nic_bytes_per_ns * network.efficiency,
                    network.nic_latency_ns,
                )
                self._ports[node, nic] = (leaf, *links)
                downlinks[leaf] = downlinks.get(leaf, 0) + 1
        if len(downlinks) == 1 or cluster.nodes == 1:
            return
        if network.spines == 0 and cluster.nccl.pxn and self._group >= cluster.nodes:
            return  # rails need not be joined: NVLink changes rails inside the servers
        if network.spines == 0:
            raise TopologyError(
                "network.spines",
                f"{len(downlinks)} leaf switches and no spine joins them; add spines = 4, say",
            )
        for (
            leaf,
            ports,
        ) in downlinks.items():  # a leaf that is not full has its uplinks all the same
            full = self._group * (1 if network.kind == "rail" else topology.nics_per_node)
            uplink = (
                max(full, ports)
                * network.nic_bytes_per_ns
                / network.oversubscription
                / network.spines
            )
            for spine in range(network.spines):
                topology._cable(
                    leaf, f"spine-{spine}", uplink * network.efficiency, network.switch_latency_ns
                )

    def _leaf(self, node: int, nic: int, nodes: int) -> str:
        group = node // self._group
        if self._network.kind == "switch":
            return "switch"
        if self._network.kind == "rail":
            return f"rail-{nic}" if self._group >= nodes else f"group-{group}/rail-{nic}"
        return f"leaf-{group}"

    def path(self, src: Nic, dst: Nic, flow: int) -> list[int]:
        """O(1). Raises TopologyError when two rails are not joined."""
        (leaf, out, _), (other, _, into) = self._ports[src], self._ports[dst]
        if leaf == other:
            return [out, into]
        if self._network.spines == 0:
            raise TopologyError(
                "network.spines",
                f"{leaf} and {other} are not joined; add spines, or nccl.pxn = true",
            )
        spine = f"spine-{mix(self._seed, flow) % self._network.spines}"
        return [
            out,
            self._topology.link_id(leaf, spine),
            self._topology.link_id(spine, other),
            into,
        ]


class SearchedFabric:
    """A graph from the file: shortest path by latency, then by number of links; among equals, ECMP
    at every branch."""

    def __init__(self, topology: Topology, cluster: Cluster):
        network = cluster.network
        self._topology, self._seed = topology, network.seed
        inside = topology.vertices()
        nics = [
            topology.nic_name(node, nic)
            for node in range(cluster.nodes)
            for nic in range(topology.nics_per_node)
        ]
        known = set(network.switches) | set(nics) | inside
        declared = set(network.switches)
        self._next: dict[str, list[tuple[str, int]]] = {}
        for number, link in enumerate(network.links, 1):
            for side, name in (("a", link.a), ("b", link.b)):
                if name not in declared and name not in nics:
                    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
                    hint = f"; did you mean {close[0]!r}?" if close else ""
                    raise TopologyError(
                        f"network.link[{number}].{side}",
                        f"no cable can join {name!r}: no such thing{hint}",
                    )
            if link.a == link.b:
                raise TopologyError(f"network.link[{number}].b", f"{link.a!r} is joined to itself")
            try:
                there, back = topology._cable(
                    link.a, link.b, link.bytes_per_ns * network.efficiency, link.latency_ns
                )
            except TopologyError as error:
                raise TopologyError(f"network.link[{number}]", error.problem) from None
            self._next.setdefault(link.a, []).append((link.b, there))
            self._next.setdefault(link.b, []).append((link.a, back))
        self._toward: dict[
            str, dict[str, tuple[int, int]]
        ] = {}  # destination -> vertex -> (latency, links) still to go
        if nics:
            reached = self._distances(nics[0])
            for name in [*nics, *network.switches]:
                if name not in reached and cluster.nodes > 1:
                    raise TopologyError(
                        "network.link",
                        f"{name!r} and {nics[0]!r} are not connected; join their parts by a link",
                    )

    def _distances(self, destination: str) -> dict[str, tuple[int, int]]:
        """(latency, number of links) to `destination` from everywhere; Dijkstra, O(links log
        links), kept."""
        known = self._toward.get(destination)
        if known is not None:
            return known
        done: dict[str, tuple[int, int]] = {}
        queue = [(0, 0, destination)]
        while queue:
            latency, hops, name = heapq.heappop(queue)
            if name in done:
                continue
            done[name] = (latency, hops)
            for other, link in self._next.get(
                name, ()
            ):  # a cable has one latency, so the reverse graph is this one
                if other not in done:
                    heapq.heappush(
                        queue, (latency + self._topology.link_latency_ns[link], hops + 1, other)
                    )
        self._toward[destination] = done
        return done

    def path(self, src: Nic, dst: Nic, flow: int) -> list[int]:
        """One of the shortest paths, the same one for the same `flow`."""
        place, end = self._topology.nic_name(*src), self._topology.nic_name(*dst)
        left = self._distances(end)
        links: list[int] = []
        while place != end:
            latency, hops = left[place]
            equal = [
                (other, link)
                for other, link in self._next[place]
                if left[other] == (latency - self._topology.link_latency_ns[link], hops - 1)
            ]
            place, link = equal[mix(self._seed, flow, len(links)) % len(equal)]
            links.append(link)
        return links
