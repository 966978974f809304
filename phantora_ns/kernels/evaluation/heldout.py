"""The error of fitted and analytic times, on configurations that were left out of the fit.

Why it exists: a model is judged on runs that it has not seen. Each configuration is left out in
turn. A signature that the other configurations have measured exactly is no test, so it is not
judged.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from phantora_ns.kernels import signature
from phantora_ns.kernels.database.records import Observation
from phantora_ns.kernels.fitted.model import Estimator, FittedModels, usable
from phantora_ns.kernels.rates import Rates
from phantora_ns.model.power import Share, as_recorded


class Judged(NamedTuple):
    """One unseen signature of a left-out configuration; times in ns. `error` is the error that the
    model expected of itself. It is None where the model gave no answer and the analytic time
    stands."""

    family: str
    observation: Observation
    analytic_ns: float
    fitted_ns: float
    error: float | None


def leave_out(
    observations: Iterable[Observation],
    rates: Rates,
    estimate: Estimator,
    judged: Iterable[Observation] | None = None,
    keep: Callable[[str], bool] = lambda configuration: False,
    share: Share = as_recorded,
) -> list[Judged]:
    """Predicts every signature of every configuration from the other configurations alone. A
    configuration for which `keep` is true is never left out: all predictions learn from it, and it is not judged.
    With `judged`, predicts only those signatures, from all `observations`, and does not ask `keep`. Fits each family
    once per configuration. `share`: what a run's times are multiplied with, those that are learned from and those that
    are judged by (RunClocks.share)."""
    by_configuration: dict[str, list[Observation]] = defaultdict(list)
    for observation in usable(observations):
        by_configuration[observation.configuration].append(observation)
    if judged is not None:
        return _judge(
            [s for group in by_configuration.values() for s in group],
            list(usable(judged)),
            rates,
            estimate,
            share,
        )
    result = []
    for name, left in by_configuration.items():
        if keep(name):
            continue
        rest = [s for other, group in by_configuration.items() if other != name for s in group]
        result += _judge(rest, left, rates, estimate, share)
    return result


def _judge(
    known: list[Observation],
    left: list[Observation],
    rates: Rates,
    estimate: Estimator,
    share: Share,
) -> list[Judged]:
    models = FittedModels(known, rates, estimate, share)
    exact = {signature.encode(s.kind, [s.fields, s.context]) for s in known}
    result = []
    for observation in left:
        asked = observation.kind, observation.fields, observation.context
        if signature.encode(observation.kind, [observation.fields, observation.context]) in exact:
            continue
        analytic = estimate(*asked).duration_ns
        found, where = models.predict(*asked), models.point(*asked)
        family = where.family if where else "unreadable"
        if where:
            measured_ns = observation.median_ns * share(where.bound_by, observation.uid)
            observation = observation._replace(median_ns=measured_ns)
        fitted, error = (found.duration_ns, found.error) if found else (analytic, None)
        result.append(Judged(family, observation, analytic, fitted, error))
    return result


COLUMNS = (
    f"{'family':<26}{'signatures':>10}{'fitted':>8}  {'median':>7}{'mean':>7}{'p90':>7}{'time':>8}   "
    f"{'median':>7}{'mean':>7}{'p90':>7}{'time':>8}{'ms':>10}{'expected':>10}"
)


def _figures(rows: list[Judged], fitted: bool) -> str:
    times = [
        (r.fitted_ns if fitted else r.analytic_ns, r.observation.median_ns, r.observation.count)
        for r in rows
    ]
    errors = sorted(abs(t / real - 1) for t, real, _ in times)
    total = sum(real * count for _, real, count in times)
    whole = sum(t * count for t, _, count in times) / total - 1
    return (
        f"{statistics.median(errors):>7.1%}{statistics.fmean(errors):>7.1%}"
        f"{errors[math.ceil(0.9 * len(errors)) - 1]:>7.1%}"
        f"{whole:>+8.1%}"
    )


def table(judged: list[Judged], per_configuration: bool = False) -> list[str]:
    """Lines of a table, one per family (or configuration).

    Each has the number of unseen signatures and the share that the models answer. Then follow the
    median, mean and 90th percentile of the relative error and the error of the total time, fitted
    and analytic. Last come the measured time and the median of the error that the models expect.
    """
    groups: dict[str, list[Judged]] = defaultdict(list)
    for row in judged:
        groups[row.observation.configuration if per_configuration else row.family].append(row)
    lines = [
        f"{'':<36}{'':>8}  {'------ fitted ------':>29}   {'----- analytic -----':>29}",
        COLUMNS,
    ]
    for name, rows in [*sorted(groups.items()), ("all", judged)]:
        if not rows:
            continue
        answered = [r for r in rows if r.error is not None]
        expected = f"{statistics.median(r.error for r in answered):.1%}" if answered else "-"
        total = sum(r.observation.median_ns * r.observation.count for r in rows)
        lines.append(
            f"{name:<26}{len(rows):>10}{len(answered) / len(rows):>8.0%}  {_figures(rows, True)}   "
            f"{_figures(rows, False)}{total / 1e6:>10.2f}{expected:>10}"
        )
    return lines
