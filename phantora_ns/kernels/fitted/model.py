"""The fitted models of one GPU model.

Why it exists: a hub must start at once, so a family is fitted when one of its signatures is first
asked for, in a fraction of a second. The same observations always give the same models.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from phantora_ns.kernels.database.records import Observation
from phantora_ns.kernels.estimators import launch
from phantora_ns.kernels.fitted import law
from phantora_ns.kernels.fitted.kept import Keep, make_always
from phantora_ns.kernels.fitted.law import EMPTY_NS, ESTIMATE
from phantora_ns.kernels.fitted.points import Point, point
from phantora_ns.kernels.fitted.residual import CLOCKS, Inputs, Residual
from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import SignatureError
from phantora_ns.model.power import Share, as_recorded
from phantora_ns.protocol import Source

LEAST_FOR_LAW = 4
"""Measured points that a group needs for a law of its own; a smaller group keeps the estimator's
time."""
LEAST_IN_FAMILY = 8
"""Measured points that a family needs before it predicts a group that it has never seen."""
SCATTERED = 1.25
"""A strided launch whose time exceeds its estimate by this factor reads scattered elements. No recording
holds strides, but the times lie apart: 0.65 to 1.2 of the estimate, and 1.3 to 2.6."""
NAMELESS = {"kernel other", "call", "cudnn graph"}
"""Families whose groups have nothing in common."""
ERRORS = (SignatureError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError)

Estimator = Callable[[int, Any, Any], launch.Estimate]


def usable(found: Iterable[Observation]) -> Iterator[Observation]:
    """The observations with a time above zero; the models need its logarithm."""
    return (one for one in found if one.median_ns > 0 and one.count > 0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """`error`: the relative error to expect (one standard deviation of the logarithm); `source` and
    `bound_by` as in docs/wire-protocol.md; `family` for reports; `points`: how many of its group (one function,
    one type of operands) were measured."""

    duration_ns: float
    error: float
    source: int
    bound_by: int
    family: str
    points: int = 0


def _scattered(where: Point, time_ns: float) -> bool:
    """Whether a recorded launch shows by its time that its elements are far apart. The models answer for
    launches whose elements are not (FittedPredictor.predict)."""
    return where.family.startswith("kernel strided") and time_ns > SCATTERED * max(
        where.terms[ESTIMATE], EMPTY_NS
    )


Row = tuple[Point, float, str]
"""A measured point, its time in ns, and the run's configuration."""


class _Pools(NamedTuple):
    """The points of one kind of signature, by family, and how many could not be read."""

    families: dict[str, list[Row]]
    unreadable: int


class _Family:
    """Laws and residual of one family of points."""

    def __init__(self, rows: list[Row]):
        merged: dict[Point, list[tuple[float, str]]] = defaultdict(list)
        for where, time, configuration in rows:
            merged[where].append((math.log(time), configuration))
        points = sorted(merged, key=lambda p: (p.group, p.name, p.terms, p.position))
        values = np.array([math.fsum(v for v, _ in merged[p]) / len(merged[p]) for p in points])
        numbers = {name: i for i, name in enumerate(sorted({c for _, _, c in rows}))}
        # A point that several configurations have measured gets a fold of its own. Otherwise leaving
        # out one configuration would leave its exact time in.
        runs = [{c for _, c in merged[p]} for p in points]
        configurations = np.array(
            [numbers[min(r)] if len(r) == 1 else -1 - i for i, r in enumerate(runs)]
        )
        self.groups = {name: i for i, name in enumerate(sorted({p.group for p in points}))}
        self._names = {name: i for i, name in enumerate(sorted({p.name for p in points}))}
        terms = np.array([p.terms for p in points])
        self._laws: dict[str, law.Law] = {}
        run = CLOCKS if points[0].source in (Source.GEMM, Source.ATTENTION) else 0.0
        lawful = np.empty(len(points))
        numbered = np.array([self.groups[p.group] for p in points])
        for group, number in self.groups.items():
            mine = np.flatnonzero(numbered == number)
            if len(mine) >= LEAST_FOR_LAW:
                self._laws[group] = law.fit(terms[mine], np.exp(values[mine]), configurations[mine])
            lawful[mine] = self._lawful(group, terms[mine])
        self._residual = Residual(
            self._inputs(points), values - np.log(lawful), configurations, run
        )
        self.count = len(points)
        self.measured = Counter(p.group for p in points)

    def _lawful(self, group: str, terms: np.ndarray) -> np.ndarray:
        found = self._laws.get(group)
        return np.maximum(terms[:, 0], 1.0) if found is None else found.times(terms)

    def _inputs(self, points: list[Point]) -> Inputs:
        return Inputs(
            np.array([p.position for p in points]),
            np.array([self.groups.get(p.group, -1) for p in points]),
            np.array([self._names.get(p.name, -1) for p in points]),
        )

    def predict(self, where: Point) -> tuple[float, float]:
        """(nanoseconds, relative error)."""
        mean, deviation = self._residual.predict(self._inputs([where]))
        return float(
            self._lawful(where.group, np.array([where.terms]))[0] * math.exp(mean[0])
        ), float(deviation[0])


class FittedModels:
    """Models fitted to `observations` of the GPU that `rates` describes.

    `estimate(kind, fields, context)` is the analytic answer that they correct. Observations that the
    estimators cannot read are left out. `unreadable` counts them once their kind has been asked for.
    """

    def __init__(
        self,
        observations: Iterable[Observation],
        rates: Rates,
        estimate: Estimator,
        share: Share = as_recorded,
        keep: Keep = make_always,
    ):
        self._rates, self._estimate, self._share, self._keep = rates, estimate, share, keep
        self._observations = observations
        self._unread: dict[int, list[Observation]] | None = None
        self._pools: dict[int, _Pools] = {}
        self._families: dict[tuple[int, str], _Family] = {}

    @property
    def unreadable(self) -> int:
        """How many observations of the kinds that were asked for no estimator can read."""
        return sum(pools.unreadable for pools in self._pools.values())

    def _pools_of(self, kind: int) -> _Pools:
        """A kind's observations by family, read when the kind is first asked for: most jobs ask for
        matrix products long before they ask for every kernel."""
        if kind not in self._pools:
            self._pools[kind] = self._keep(f"pools of kind {kind}", lambda: self._read(kind))
        return self._pools[kind]

    def _read(self, kind: int) -> _Pools:
        if self._unread is None:
            self._unread = defaultdict(list)
            for observation in usable(self._observations):
                self._unread[observation.kind].append(observation)
        families: dict[str, list[Row]] = defaultdict(list)
        unreadable = 0
        for observation in self._unread.pop(kind, ()):
            where = self.point(observation.kind, observation.fields, observation.context)
            if where is None:
                unreadable += 1
            elif not _scattered(where, observation.median_ns):
                share = self._share(where.bound_by, observation.uid)
                row = where, observation.median_ns * share, observation.configuration
                families[where.family].append(row)
        return _Pools(dict(families), unreadable)

    def point(self, kind: int, fields: Any, context: Any = None) -> Point | None:
        """A signature as the models see it; None for one that they cannot read. `fields` of a kernel
        are the signature's 12."""
        try:
            where = point(kind, fields, context, self._estimate(kind, fields, context), self._rates)
        except ERRORS:  # sizes and nested lists come from a foreign process
            return None
        return (
            where
            if where is not None and all(map(math.isfinite, (*where.terms, *where.position)))
            else None
        )

    def predict(self, kind: int, fields: Any, context: Any = None) -> Prediction | None:
        """The time of a signature, or None when nothing similar was measured. Fits the signature's
        family on first use."""
        where = self.point(kind, fields, context)
        rows = None if where is None else self._pools_of(kind).families.get(where.family)
        if where is None or rows is None:
            return None
        family = self._families.get((kind, where.family))
        if family is None:
            family = self._keep(f"family of kind {kind}: {where.family}", lambda: _Family(rows))
            self._families[kind, where.family] = family
        if where.group not in family.groups and (
            where.family in NAMELESS or family.count < LEAST_IN_FAMILY
        ):
            return None
        duration, error = family.predict(where)
        points = family.measured[where.group]
        return Prediction(
            max(1.0, duration), error, where.source, where.bound_by, where.family, points
        )
