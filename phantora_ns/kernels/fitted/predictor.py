"""Times of signatures that no database holds: from fitted models, or from another GPU's times.

Why it exists: it decides when such a time may be used, so that look-up and estimators need not know
each other's rules. Rule: every answer derives from measurements. If nothing similar to a signature
was measured, the estimators answer instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from phantora_ns.kernels.estimators import launch
from phantora_ns.kernels.estimators.launch import Estimate
from phantora_ns.kernels.fitted.kept import Keep, make_always
from phantora_ns.kernels.rates import Rates
from phantora_ns.model.power import Share, as_recorded
from phantora_ns.protocol import SignatureKind, Source

if TYPE_CHECKING:
    from phantora_ns.kernels.database.records import Observation
    from phantora_ns.kernels.fitted.model import FittedModels, Prediction

CHANGED_BY_PARAMETERS = 0.10
"""If the launch's parameters change an estimate by more than this share, they gave it a size that
the signature does not hold."""
CERTAIN = 0.20
"""Up to this expected error, a law fitted without parameters may be scaled by such a size."""
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


class FittedPredictor:
    """Models fitted to databases of the simulated GPU model. The files are read when the first
    signature is asked for."""

    def __init__(
        self,
        databases: Iterable[Measured],
        rates: Rates,
        estimate: Estimator,
        share: Share = as_recorded,
        keep: Keep = make_always,
    ):
        self._databases, self._rates, self._estimate = list(databases), rates, estimate
        self._share, self._keep = share, keep
        self._models: FittedModels | None = None

    def predict(
        self, kind: int, fields: Any, context: Any = None, parameters: bytes | None = None
    ) -> Prediction | None:
        """The time of a signature and its expected error. None when nothing similar was measured.
        None also when the launch's parameters give a size that the signature does not hold and the
        models are unsure of it."""
        if self._models is None:
            # Imported here because it needs numpy, which the launcher does without.
            from phantora_ns.kernels.fitted.model import FittedModels

            observations = (one for database in self._databases for one in database.observations())
            self._models = FittedModels(
                observations, self._rates, self._estimate, self._share, self._keep
            )
        if kind == SignatureKind.KERNEL and launch.scattered(fields, parameters):
            return None  # measurements hold no strides, so the models cannot account for them
        found = self._scaled(kind, fields, context, parameters)
        if found is None or kind != SignatureKind.KERNEL:
            return found
        # If every measured size fits into the cache, the law describes the cache.
        least = launch.least_ns(fields, context, parameters, self._rates)
        return replace(found, duration_ns=least) if found.duration_ns < least else found

    def _scaled(
        self, kind: int, fields: Any, context: Any, parameters: bytes | None
    ) -> Prediction | None:
        """The models' prediction, scaled by a size that only the parameters tell: of a launch without an operator, or
        of one that has some of an operator's tensors. For other launches the operator's inputs told the law the
        size; if the estimate differs with parameters, the law has already corrected it."""
        assert self._models is not None
        found = self._models.predict(kind, fields, context)
        if found is None or not parameters:
            return found
        without, with_sizes = (
            self._estimate(kind, fields, context, p).duration_ns for p in (None, parameters)
        )
        if abs(with_sizes / without - 1) <= CHANGED_BY_PARAMETERS:
            return found
        if found.error > CERTAIN:
            return None
        if launch.context_of(context) and not launch.is_part(fields):
            return found
        return replace(found, duration_ns=max(1.0, found.duration_ns * with_sizes / without))


def difference_ns(other_ns: float, own_estimate_ns: float, other_estimate_ns: float) -> float:
    """How much longer what takes `other_ns` on another GPU takes here, by the estimates for both. Where it is
    quicker than its estimate there, the difference counts in proportion."""
    return (own_estimate_ns - other_estimate_ns) * min(1, other_ns / other_estimate_ns)


class Scaled:
    """Another GPU's measured or fitted times, each changed by the difference of the two GPUs'
    estimates. By the data sheets, that is what the rate that limits the work takes more or less here:
    arithmetic by type, memory bandwidth, or multiprocessors x clock. What a kernel takes beyond its
    estimate is bound by something else, and stays; of what is quicker than its estimate (it finds its data in
    the cache) the difference counts in proportion. `share(kind, bound_by, fields)` of the difference is what both
    GPUs have shown, 1 where only one was measured (docs/kernel-times.md). `other` and `own` estimate for the
    other GPU and for this one."""

    def __init__(
        self, other: Estimator, own: Estimator, share: Callable[[int, int, Any], float]
    ) -> None:
        self._other, self._own, self._share = other, own, share

    def here(
        self, other_ns: float, kind: int, fields: Any, context: Any, parameters: bytes | None
    ) -> Estimate | None:
        """The time here of a signature that takes `other_ns` there; its source is never "exact". None where
        the estimate for the other GPU says nothing."""
        other, own = (e(kind, fields, context, parameters) for e in (self._other, self._own))
        if other.duration_ns <= 0:
            return None
        more_ns = difference_ns(other_ns, own.duration_ns, other.duration_ns)
        return Estimate(
            other_ns + self._share(kind, own.bound_by, fields) * more_ns,
            SOURCES.get(kind, own.source),
            own.bound_by,
        )
