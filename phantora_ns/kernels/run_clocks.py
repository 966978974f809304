"""The clock at which runs recorded matrix products and calls of attention.

Why it exists: these times follow the GPU's clock, which its power limit makes different in each run
(docs/kernel-times.md). A GPU's data file has the clocks of the runs of the shipped database. A run that
somebody has recorded is in no such file. So it is compared with those that are: how much longer its
products took than theirs says how much lower its clock was.

Rules: a clock is inferred from LEAST shared products or more, by their median. Below the clock from which
on products gain nothing, it is that of attention too. Above, a call of attention that is shared says its
own. Where nothing is shared, times count as recorded at the usual clock. A run whose data are all zeros
(values of collectives that a leader does not know) draws little power; its products come out short by more
than any clock explains, and this puts them right as well.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from phantora_ns.kernels import signature
from phantora_ns.kernels.database.database import Database
from phantora_ns.model.power import Power
from phantora_ns.protocol import BoundBy

LEAST = 3
LEAST_NS = 50_000
"""Shorter products and calls of attention are bound by more than the clock."""


class RunClocks:
    """What each run's times must be multiplied with. `bound_by(kind, fields)` of a signature."""

    def __init__(
        self, power: Power, databases: Sequence[Database], bound_by: Callable[[int, Any], int]
    ) -> None:
        self._power = power
        self._bound_by = bound_by
        named = {uid for clocks in power.recorded_in.values() for uid in clocks}
        known = [database for database in databases if named & database.run_uids()]
        self._shares: dict[tuple[int, str], float] = {}
        if known:
            for database in databases:
                if database not in known:
                    self._infer(database, known)

    def share(self, bound_by: int, uid: str) -> float:
        """What to multiply a time that the run `uid` recorded with, so that it is that at the clock
        `Power.recorded`."""
        inferred = self._shares.get((bound_by, uid))
        return self._power.recorded_share(bound_by, uid) if inferred is None else inferred

    def _infer(self, database: Database, known: Sequence[Database]) -> None:
        ratios: dict[tuple[int, str], list[float]] = defaultdict(list)
        for one in database.observations():
            if one.median_ns < LEAST_NS:
                continue
            bound_by = self._bound_by(one.kind, one.fields)
            if bound_by in self._power.recorded_in:
                data = signature.encode(one.kind, one.fields)
                scale = partial(self._power.recorded_share, bound_by)
                found = (other.exact(data, scale) for other in known)
                expected_ns = next((ns for ns in found if ns is not None), None)
                if expected_ns is not None:
                    ratios[bound_by, one.uid].append(math.log(expected_ns / one.median_ns))
        for uid in database.run_uids():
            products = ratios[BoundBy.COMPUTE, uid]
            clock = math.inf
            if len(products) >= LEAST:
                share = self._limited(BoundBy.COMPUTE, math.exp(median(products)))
                self._shares[BoundBy.COMPUTE, uid] = share
                clock = share * self._power.recorded[BoundBy.COMPUTE]
            if clock < self._power.fastest[BoundBy.COMPUTE]:
                share = clock / self._power.recorded[BoundBy.ATTENTION]
                self._shares[BoundBy.ATTENTION, uid] = share
            elif calls := ratios[BoundBy.ATTENTION, uid]:
                share = self._limited(BoundBy.ATTENTION, math.exp(median(calls)))
                self._shares[BoundBy.ATTENTION, uid] = share

    def _limited(self, bound_by: int, share: float) -> float:
        """No clock is above the highest, or below half of the usual."""
        return min(max(share, 0.5), self._power.highest / self._power.recorded[bound_by])
