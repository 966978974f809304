"""Max-min fair rates of a set of flows, by progressive filling.

Why it exists: this is where insertion order could change the times through float rounding. So the
function is separate and pure: flows and capacities in, rates out.

The result depends on nothing else. Filling one connected component gives the same bits as filling all
flows of the network at once. The reasons:

- All rates rise together. At each *level* the links with the smallest share, and the flows whose
  cap equals it, are frozen together. Ties are exact equality of floats, so the set frozen at a
  level does not depend on any order.
- A level takes `weight * level` from a link. The weight of all flows frozen on the link is summed
  first, in integers. So there is one product and one difference per link and level, in whatever
  order the flows are listed.
- A link's numbers change only at levels that freeze a flow on it. Such a flow belongs to the link's
  own component. Filling other components at the same time interleaves their levels, but inserts no
  operation between this component's own.
- A share may not fall below the level that has just been filled. Mathematically it cannot, but
  rounding could lower it. So levels never decrease, and ties that rounding has broken downwards are
  repaired. The level is the component's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

Entries = Sequence[tuple[int, int]]


def fair_rates(
    flows: Mapping[int, tuple[Entries, float]], capacity: Callable[[int], float]
) -> dict[int, float]:
    """Rates in bytes/ns of one member of each flow.

    `flows`: key -> (entries, cap). `entries` are (link, weight) pairs, each link once. The weight is
    how often a byte of the flow class crosses the link: the count of the class times how often its
    route lists the link. `cap` is in bytes/ns or inf. `capacity(link)`: bytes/ns, > 0. Every flow has
    a link or a finite cap. O(E log L) for E entries over L links, if each level touches few links.
    """
    if len(flows) == 1:
        ((key, (entries, cap)),) = flows.items()
        return {key: min([cap, *(capacity(link) / weight for link, weight in entries)])}
    members: dict[int, list[int]] = {}
    weights: dict[int, int] = {}
    for key, (entries, _) in flows.items():
        for link, weight in entries:
            if link in members:
                members[link].append(key)
                weights[link] += weight
            else:
                members[link] = [key]
                weights[link] = weight
    left = {link: capacity(link) for link in members}
    shares = {link: left[link] / weight for link, weight in weights.items()}
    heap = [(share, link) for link, share in shares.items()]
    heapify(heap)
    capped = sorted(
        ((cap, key) for key, (_, cap) in flows.items() if cap != float("inf")), reverse=True
    )
    rates: dict[int, float] = {}
    while len(rates) < len(flows):
        level, frozen = _next_level(heap, shares, capped, members, rates)
        for key in frozen:
            rates[key] = level
        _take(level, (flows[key][0] for key in frozen), left, weights, shares)
    return rates


def _next_level(
    heap: list[tuple[float, int]],
    shares: Mapping[int, float],
    capped: list[tuple[float, int]],
    members: Mapping[int, list[int]],
    rates: Mapping[int, float],
) -> tuple[float, set[int]]:
    """The next level and all flows that freeze at it. Heap keys may be out of date, and are then too
    low; they are renewed on the way."""
    while capped and capped[-1][1] in rates:
        capped.pop()
    while heap:
        share, link = heap[0]
        if link not in shares:
            heappop(heap)
        elif shares[link] != share:
            heapreplace(heap, (shares[link], link))
        else:
            break
    level = min(heap[0][0] if heap else float("inf"), capped[-1][0] if capped else float("inf"))
    frozen: set[int] = set()
    while heap and heap[0][0] <= level:
        share, link = heap[0]
        if link in shares and shares[link] != share:
            heapreplace(heap, (shares[link], link))
            continue
        heappop(heap)
        if link in shares:
            frozen.update(key for key in members[link] if key not in rates)
    while capped and capped[-1][0] == level:
        frozen.add(capped.pop()[1])
    return level, frozen.difference(rates)


def _take(
    level: float,
    routes: Iterable[Entries],
    left: dict[int, float],
    weights: dict[int, int],
    shares: dict[int, float],
) -> None:
    """Charges the frozen flows to their links. Links that no unfrozen flow crosses leave the
    filling."""
    taken: dict[int, int] = {}
    for entries in routes:
        for link, weight in entries:
            taken[link] = taken.get(link, 0) + weight
    for link, weight in taken.items():
        left[link] -= weight * level
        weights[link] -= weight
        if weights[link]:
            shares[link] = max(left[link] / weights[link], level)
        else:
            del shares[link]
