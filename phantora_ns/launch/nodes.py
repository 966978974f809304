"""Names, addresses and ports of the simulated nodes.

Why it exists: the command is checked against them, the environment and the sandbox are made of
them, and messages name them. Rule: pure.
"""

from __future__ import annotations

STATIC_PORT = 29500  # torchrun's default --master-port
C10D_PORT = 29400  # torchrun's default port of a c10d endpoint


def node_name(node: int) -> str:
    """Host name of a node, counted from 0."""
    return f"node-{node}"


def node_address(node: int, isolated: bool) -> str:
    """IPv4 address of a node: in the cluster's own /16, or on this machine's loopback when nodes
    are not isolated."""
    high, low = divmod(node + 1, 256)
    return f"10.77.{high}.{low}" if isolated else f"127.77.{high}.{low}"
