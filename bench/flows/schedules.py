"""The schedules on which the flow simulator is measured.

Why it exists: the same schedules must be given to this simulator and to others, so they are plain
data: capacities in bytes/ns and, for each step, the flows that start together, each a (route, size
in bytes).
"""

import random
from collections.abc import Iterator

GIGABIT = 0.125  # bytes/ns


def star(hosts: int, gigabits: float = 400) -> dict:
    """Each host with a link up and a link down, the switch between them without limit."""
    return {
        (direction, host): gigabits * GIGABIT
        for host in range(hosts)
        for direction in ("up", "down")
    }


def ring_steps(hosts: int, flows: int, size: int = 1 << 20) -> Iterator[list]:
    """Steps of a ring collective, `flows` in all: each host sends to the next; a step starts when
    the one before is complete."""
    step = [((("up", host), ("down", (host + 1) % hosts)), size) for host in range(hosts)]
    for _ in range(max(1, flows // hosts)):
        yield step


def fat_tree(
    leaves: int = 24, hosts_per_leaf: int = 18, spines: int = 18, gigabits: float = 400
) -> dict:
    """Two tiers without oversubscription: 432 hosts by default."""
    capacities = star(leaves * hosts_per_leaf, gigabits)
    for leaf in range(leaves):
        for spine in range(spines):
            capacities["rise", leaf, spine] = capacities["fall", leaf, spine] = gigabits * GIGABIT
    return capacities


def fat_tree_route(source: int, target: int, spine: int, hosts_per_leaf: int = 18) -> tuple:
    up, down = source // hosts_per_leaf, target // hosts_per_leaf
    middle = () if up == down else (("rise", up, spine), ("fall", down, spine))
    return (("up", source), *middle, ("down", target))


def all_to_all(hosts: int, equal: bool, seed: int = 1, spines: int = 18) -> list:
    """Every host to every other at once, spines chosen at random: sizes of 1 MiB, or from 0.5 to
    1.5 MB."""
    rng = random.Random(seed)
    return [
        (
            fat_tree_route(source, target, rng.randrange(spines)),
            1 << 20 if equal else rng.randrange(500_000, 1_500_000),
        )
        for source in range(hosts)
        for target in range(hosts)
        if source != target
    ]


def random_pairs(hosts: int, flows: int, span_ns: int, seed: int = 2, spines: int = 18) -> list:
    """(start, route, size) of flows between random hosts at random times, by start."""
    rng = random.Random(seed)
    found = []
    for _ in range(flows):
        source, target = rng.sample(range(hosts), 2)
        route = fat_tree_route(source, target, rng.randrange(spines))
        found.append((rng.randrange(span_ns), route, rng.randrange(1000, 1_000_000)))
    return sorted(found)
