"""The clock at which runs recorded matrix products and calls of attention.

Why it exists: these times follow the GPU's clock, which its power limit makes different in each run
(docs/kernel-times.md). A GPU's data file has the clocks of the runs of the shipped database. A run that
somebody has recorded is in no such file. So it is compared with those that are: how much longer its
products took than theirs says how much lower its clock was.

Rules: a clock is inferred from LEAST shared products or more, by their median. Below the clock from which
on products gain nothing, it is that of attention too. Above, a call of attention that is shared says its
own. Kernels that are bound by the issue of instructions have the clock of attention.
Where nothing is shared, times count as recorded at the usual clock. A run whose data are all zeros
(values of collectives that a leader does not know) draws little power; its products come out short by more
than any clock explains, and this puts them right as well.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from phantora_ns.kernels import signature
from phantora_ns.kernels.database.database import Database
from phantora_ns.model.power import CLOCK_OF, Power
from phantora_ns.protocol import BoundBy

LEAST = 3
LEAST_NS = 50_000
"""Shorter products and calls of attention are bound by more than the clock."""
MOVES = 0.005
"""Times that a leader has measured stay as they are while their clock moves by less."""


Ratios = Mapping[int, Sequence[float]]
"""log(time at the usual clock / recorded time) of what is shared, by what bounds it."""


def counts(power: Power, bound_by: int, ns: float) -> bool:
    """Whether a time says something of the clock."""
    return ns >= LEAST_NS and bound_by in power.recorded_in


def shares(power: Power, ratios: Ratios) -> dict[int, float]:
    """What to multiply a run's times with, so that they are those at the clock `Power.recorded`, by
    what bounds them; nothing where the usual clock counts."""

    def limited(bound_by: int) -> float:
        """No clock is above the highest, or below half of the usual."""
        share = math.exp(median(ratios[bound_by]))
        return min(max(share, 0.5), power.highest / power.recorded[bound_by])

    found: dict[int, float] = {}
    clock = math.inf
    if len(ratios.get(BoundBy.COMPUTE, ())) >= LEAST:
        found[BoundBy.COMPUTE] = limited(BoundBy.COMPUTE)
        clock = found[BoundBy.COMPUTE] * power.recorded[BoundBy.COMPUTE]
    if clock < power.fastest[BoundBy.COMPUTE]:
        found[BoundBy.ATTENTION] = clock / power.recorded[BoundBy.ATTENTION]
    elif ratios.get(BoundBy.ATTENTION):
        found[BoundBy.ATTENTION] = limited(BoundBy.ATTENTION)
    for other, like in CLOCK_OF.items():
        if like in found:
            found[other] = power.share_at(other, found[like] * power.recorded[like])
    return found


class RunClocks:
    """What each run's times must be multiplied with. `bound_by(kind, fields)` of a signature."""

    def __init__(
        self, power: Power, databases: Sequence[Database], bound_by: Callable[[int, Any], int]
    ) -> None:
        self._power = power
        self._bound_by = bound_by
        named = {uid for clocks in power.recorded_in.values() for uid in clocks}
        known = [database for database in databases if named & database.run_uids()]
        self._shares: dict[str, dict[int, float]] = {}
        if known:
            for database in databases:
                if database not in known:
                    self._infer(database, known)

    def share(self, bound_by: int, uid: str) -> float:
        """What to multiply a time that the run `uid` recorded with, so that it is that at the clock
        `Power.recorded`."""
        inferred = self._shares.get(uid, {}).get(bound_by)
        return self._power.recorded_share(bound_by, uid) if inferred is None else inferred

    def _infer(self, database: Database, known: Sequence[Database]) -> None:
        ratios: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in database.observations():
            bound_by = self._bound_by(one.kind, one.fields)
            if counts(self._power, bound_by, one.median_ns):
                data = signature.encode(one.kind, one.fields)
                scale = partial(self._power.recorded_share, bound_by)
                found = (other.exact(data, scale) for other in known)
                expected_ns = next((ns for ns in found if ns is not None), None)
                if expected_ns is not None:
                    ratios[one.uid][bound_by].append(math.log(expected_ns / one.median_ns))
        self._shares |= {uid: shares(self._power, its) for uid, its in ratios.items()}


class LiveClock:
    """The same of a leader's GPU, while it measures."""

    def __init__(self, power: Power) -> None:
        self._power = power
        self._ratios: dict[int, dict[bytes, float]] = {}
        self._shares: dict[int, float] = {}

    def share(self, bound_by: int) -> float:
        """What to multiply a time with that the leader has measured."""
        return self._shares.get(bound_by, 1.0)

    def compare(
        self, bound_by: int, data: bytes, expected_ns: float, durations_ns: Sequence[int]
    ) -> bool:
        """Takes in samples of a signature of which `expected_ns` is recorded, at the usual clock.
        Returns whether a share has moved by MOVES or more."""
        measured_ns = median(durations_ns)
        if not counts(self._power, bound_by, measured_ns):
            return False
        self._ratios.setdefault(bound_by, {})[data] = math.log(expected_ns / measured_ns)
        found = shares(self._power, {which: [*its.values()] for which, its in self._ratios.items()})
        moved = any(abs(share / self.share(which) - 1) >= MOVES for which, share in found.items())
        if moved:
            self._shares = found
        return moved
