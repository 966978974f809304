"""Who waits for whom: the rank that comes last to collectives, and how long the others wait for it.

Why it exists: a collective starts when its last member has reached it. A rank that is slower than the
others shows up in nobody's kernels, only in the waiting of everybody else.
Ranks that come last together share the waiting of the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Launches = Mapping[int, Sequence[Mapping[str, Any]]]
"""rank -> its launches of communication (excerpt.py)."""
NOTICEABLE = 0.05
"""A straggler is named when the others' mean wait for it is at least this share of the window."""


def waits(launches: Launches, begin_ns: int, end_ns: int) -> dict[str, Any]:
    """Waiting in communication that ends between `begin_ns` and `end_ns`. Collectives of which not
    every member is traced count as far as they are seen; `partly_seen` says how many."""
    arrivals: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    members: dict[tuple[int, int], int] = {}
    for rank, found in launches.items():
        for launch in found:
            if begin_ns <= launch["end_ns"] < end_ns:
                key = (launch["communicator"], launch["end_ns"])
                arrivals[key][rank] = max(launch["start_ns"], arrivals[key].get(rank, 0))
                members[key] = launch["members"]
    last: Counter[int] = Counter()
    waited: Counter[tuple[int, int]] = Counter()
    partly = collectives = 0
    for key, at in arrivals.items():
        partly += 2 <= len(at) < members[key]
        if len(at) < 2:
            continue
        latest_ns = max(at.values())
        late = sorted(rank for rank, at_ns in at.items() if at_ns == latest_ns)
        collectives += 1
        if len(late) < len(at):
            last.update(late)
        for rank, at_ns in at.items():
            share_ns, rest_ns = divmod(latest_ns - at_ns, len(late))
            for number, other in enumerate(late):
                waited[rank, other] += share_ns + (number < rest_ns)
    ranks = sorted(launches)
    caused = {late: sum(waited[rank, late] for rank in ranks) for late in ranks}
    return {
        "ranks": ranks,
        "window_ns": end_ns - begin_ns,
        "collectives": collectives,
        "partly_seen": partly,
        "last": [last[rank] for rank in ranks],
        "waited_ns": [[waited[rank, late] for late in ranks] for rank in ranks],
        "caused_ns": [caused[late] for late in ranks],
        "straggler": _straggler(caused, end_ns - begin_ns),
    }


def _straggler(caused: Mapping[int, int], window_ns: int) -> int | None:
    """The rank for which the others waited most, if it is noticeable and stands out: at least half
    again as much as for the next."""
    if len(caused) < 2 or window_ns <= 0:
        return None
    first, second = sorted(caused, key=lambda rank: -caused[rank])[:2]
    if caused[first] < NOTICEABLE * window_ns * (len(caused) - 1):
        return None
    return first if 2 * caused[first] >= 3 * caused[second] else None
