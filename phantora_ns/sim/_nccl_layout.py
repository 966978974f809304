"""Who sends to whom in one communicator: NCCL's rings and trees over NVSwitch servers and rails.

Why it exists: the routes of a collective's flows follow from these rings and trees.

A communicator's *layout* is its ranks by node and the NICs ("rails") that connect the nodes. NCCL
builds one ring per NIC. Ring k enters a server by NIC k, at the GPU next to it, passes every GPU, and
leaves by NIC k again (over NVLink and NIC k's own GPU, NCCL's PXN). Rule: edges carry *shares* of the
data (of 1); collectives.py computes sizes and times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from phantora_ns.sim.topology import Topology

# From GPU, to GPU, rail. The rail is None inside a server, and where each side uses its own NIC.
Edge = tuple[int, int, int | None]


@dataclass(frozen=True)
class Layout:
    """A communicator on a topology. `members` lists the GPUs of each node, nodes in the order of
    their first rank."""

    topology: Topology
    gpus: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    rails: tuple[int | None, ...]

    @classmethod
    def of(cls, topology: Topology, gpus: Sequence[int]) -> Layout:
        """The layout of the communicator whose rank r is on GPU gpus[r]. Raises ValueError for a
        GPU named twice."""
        if len(set(gpus)) != len(gpus):
            raise ValueError("two ranks of a communicator are on one GPU; NCCL refuses that")
        by_node: dict[int, list[int]] = {}
        for gpu in gpus:
            by_node.setdefault(gpu // topology.gpus_per_node, []).append(gpu)
        members = tuple(tuple(found) for found in by_node.values())
        if len(members) == 1:
            rails: tuple[int | None, ...] = (None,)
        else:
            near = [
                sorted({topology.nic_of(gpu % topology.gpus_per_node) for gpu in found})
                for found in members
            ]
            same = all(nics == near[0] for nics in near)
            rails = tuple(near[0]) if same else (None,) * min(len(nics) for nics in near)
        return cls(topology, tuple(gpus), members, rails)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.gpus)

    @property
    def nodes(self) -> int:
        """Number of nodes that hold at least one rank."""
        return len(self.members)

    def _ordered(self, node: int, ring: int) -> tuple[int, ...]:
        """The node's GPUs in the order of ring `ring`: first the one next to the ring's NIC."""
        found, rail = self.members[node], self.rails[ring]
        start = 0
        if rail is not None:
            per_node = self.topology.gpus_per_node
            start = next(
                i for i, gpu in enumerate(found) if self.topology.nic_of(gpu % per_node) == rail
            )
        elif self.nodes > 1:
            start = ring % len(found)
        return found[start:] + found[:start]

    @cached_property
    def ring_order(self) -> tuple[int, ...]:
        """GPUs in the order of the first ring."""
        return tuple(gpu for node in range(self.nodes) for gpu in self._ordered(node, 0))

    def ring_edges(self, root: int | None = None) -> dict[Edge, float]:
        """Edge -> share of the data that passes it, over all rings. For a chain, the edge into
        `root` (a GPU) is left out."""
        share = 1.0 / len(self.rails)
        edges: dict[Edge, float] = {}
        for ring, rail in enumerate(self.rails):
            order = [self._ordered(node, ring) for node in range(self.nodes)]
            hops: list[Edge] = []
            for node, found in enumerate(order):
                hops += [(a, b, None) for a, b in zip(found, found[1:])]
                following = order[(node + 1) % self.nodes]
                if self.ranks > 1:
                    hops.append((found[-1], following[0], rail if self.nodes > 1 else None))
            for hop in hops:
                if hop[1] != root:
                    edges[hop] = edges.get(hop, 0.0) + share
        return edges

    def tree_edges(self) -> dict[Edge, float]:
        """Edge from child to parent -> share, over all channels. Data also passes each edge in the
        other direction.

        Inside a server the edges form a chain that ends at the GPU next to the channel's NIC. Between
        servers they form two binary trees, and every server is a leaf of at least one (double binary
        trees: Sanders, Speck, Traff, Parallel Computing 35, 2009).
        """
        share = 1.0 / len(self.rails)
        edges: dict[Edge, float] = {}
        for ring, rail in enumerate(self.rails):
            order = [self._ordered(node, ring) for node in range(self.nodes)]
            for found in order:
                for upper, lower in zip(found, found[1:]):
                    edges[lower, upper, None] = edges.get((lower, upper, None), 0.0) + share
            for parents in double_tree(self.nodes):
                for child, parent in enumerate(parents):
                    if parent is not None:
                        edge: Edge = (order[child][0], order[parent][0], rail)
                        edges[edge] = edges.get(edge, 0.0) + share / 2
        return edges


def binary_tree(size: int) -> list[int | None]:
    """Parents in a binary tree over 0..size-1 with root 0, in which odd numbers are leaves.

    A parent is its child's number with the lowest set bit cleared and the next higher bit set. If
    that is outside the tree, the lowest set bit is only cleared.
    """
    parents: list[int | None] = [None]
    for number in range(1, size):
        low = number & -number
        up = (number ^ low) | (low << 1)
        parents.append(up if up < size else number ^ low)
    return parents


def double_tree(size: int) -> tuple[list[int | None], list[int | None]]:
    """Two binary trees over the same servers; the second is the first mirrored (even size) or shifted
    by one (odd)."""
    first = binary_tree(size)
    second: list[int | None] = [None] * size
    for number, parent in enumerate(first):
        if size % 2 == 0:
            second[size - 1 - number] = None if parent is None else size - 1 - parent
        else:
            second[(number + 1) % size] = None if parent is None else (parent + 1) % size
    return first, second
