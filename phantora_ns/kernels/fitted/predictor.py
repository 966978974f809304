"""Signatures that no database holds: models fitted to those that it does hold, or another GPU's
times by data sheet ratio.

Why it exists: it decides when a model may speak, so that look-up and estimators need not know of
each other's rules. Rule: it answers only from measurements; what nothing alike was measured of is
left to the estimators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from phantora_ns.kernels.estimators import launch
from phantora_ns.kernels.estimators.launch import Estimate
from phantora_ns.kernels.rates import Rates
from phantora_ns.protocol import SignatureKind, Source

if TYPE_CHECKING:
    from phantora_ns.kernels.database.records import Observation
    from phantora_ns.kernels.fitted.model import FittedModels, Prediction

# an estimate that changes by more than this when it sees the parameters has learned a size from
# them
TOLD = 0.10
# expected error up to which a law that has not seen the parameters may be scaled by what they tell
CERTAIN = 0.20
SOURCES = {
    SignatureKind.KERNEL: Source.LAW,
    SignatureKind.CALL: Source.LAW,
    SignatureKind.GEMM: Source.GEMM,
    SignatureKind.MEMORY: Source.COPY,
}

Estimator = Callable[..., Estimate]


class Measured(Protocol):
    """A database, as far as models need it (kernels/database/database.py)."""

    def observations(self) -> Iterable[Observation]: ...


class Fitted:
    """Models fitted to databases of this very GPU; nothing is read before the first question."""

    def __init__(self, databases: Iterable[Measured], rates: Rates, estimate: Estimator):
        self._databases, self._rates, self._estimate = list(databases), rates, estimate
        self._models: FittedModels | None = None

    def predict(
        self, kind: int, fields: Any, context: Any = None, parameters: bytes | None = None
    ) -> Prediction | None:
        """The time of a signature, with the error to expect; None when nothing alike was measured,
        or when the launch's parameters tell a size that its signature does not and that the models
        are unsure of."""
        if self._models is None:
            from phantora_ns.kernels.fitted.model import (
                FittedModels,  # numpy with it, which the launcher has no use for
            )

            observations = (one for database in self._databases for one in database.observations())
            self._models = FittedModels(observations, self._rates, self._estimate)
        if kind == SignatureKind.KERNEL and launch.scattered(fields, parameters):
            return None  # no measurement tells its strides, so the models do not know of them
        found = self._told(kind, fields, context, parameters)
        if found is None or kind != SignatureKind.KERNEL:
            return found
        # Where all that was measured fits into the cache, the law is the cache's.
        least = launch.least_ns(fields, context, parameters, self._rates)
        return replace(found, duration_ns=least) if found.duration_ns < least else found

    def _told(
        self, kind: int, fields: Any, context: Any, parameters: bytes | None
    ) -> Prediction | None:
        """What the models say, scaled by the sizes that parameters tell."""
        assert self._models is not None
        found = self._models.predict(kind, fields, context)
        if found is None or not parameters:
            return found
        blind, told = (
            self._estimate(kind, fields, context, p).duration_ns for p in (None, parameters)
        )
        if abs(told / blind - 1) <= TOLD:
            return found
        if found.error > CERTAIN:
            return None
        return replace(found, duration_ns=max(1.0, found.duration_ns * told / blind))


class Scaled:
    """Another GPU's measured or fitted times, each multiplied by the ratio of the two GPUs'
    estimates: that is the ratio of whichever rate limits the work (arithmetic by type, memory
    bandwidth, multiprocessors x clock), as the data sheets have it. `lookup` and `estimate` are the
    other GPU's."""

    def __init__(
        self, lookup: Callable[..., tuple[int, int, int]], other: Estimator, own: Estimator
    ):
        self._lookup, self._other, self._own = lookup, other, own

    def predict(
        self, kind: int, fields: Any, context: Any = None, parameters: bytes | None = None
    ) -> Estimate | None:
        """The time of a signature on this GPU, never called exact; None when the other GPU's is no
        more than an estimate."""
        duration_ns, source, _ = self._lookup(kind, fields, context, parameters)
        other, own = (e(kind, fields, context, parameters) for e in (self._other, self._own))
        if (source, duration_ns) == (
            other.source,
            max(1, round(other.duration_ns)),
        ) or other.duration_ns <= 0:
            return None
        return Estimate(
            duration_ns * own.duration_ns / other.duration_ns,
            SOURCES.get(kind, own.source),
            own.bound_by,
        )
