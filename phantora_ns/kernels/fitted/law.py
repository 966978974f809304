"""A law of time over work: a sum of terms that only grow, and a floor, fitted to the smallest
relative error.

Why it exists: a kernel's time is a fixed cost plus shares of what its work would take at the GPU's
limits: `max(floor, sum of w_i x term_i)`. Every w_i is >= 0, so that more work never takes less
time. The estimator's time is one of the terms; the law of a group with few measurements stays near
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

ESTIMATE, CONSTANT = 0, 1  # columns of the terms
# Weights of the estimator relative to one measurement. `_prior` chooses the one with the least error
# on left-out runs.
PRIORS = (0.3, 0.03, 0.003)
LEAST_TO_CHOOSE = 8  # measurements, from at least two runs; with fewer, the first prior is taken
MOST = 400  # measurements for one fit of nine weights, evenly spread over all of them
FOLDS = 4  # the runs are left out in this many parts
ROUNDS = 12  # of re-weighting towards the least absolute error
# A measurement with this relative error has weight 1. A smaller error raises the weight, a larger
# one lowers it.
TYPICAL_ERROR = 0.05
# Errors below this raise the weight no further. So clean measurements outweigh the estimator, and
# scattered ones do not.
SMALL_ERROR = 0.002
FLOOR_GAIN = 0.9  # a floor must reduce the error to this share of the error without one
FLOOR_SHARES = (0.1, 0.2, 0.3, 0.5)
EMPTY_NS = 2000.0  # time of a launch with almost no work: 1.5 to 3 us in every trace of an H200
EMPTY_WEIGHT = 0.5  # weight of EMPTY_NS relative to one measurement
FLOOR_LEAST = 8  # measurements; with fewer no floor is fitted


@dataclass(frozen=True)
class Law:
    """`max(floor_ns, terms @ weights)`, but at most `most` times the estimator's time. Terms and
    times in nanoseconds.

    `most` matters where every measured launch is large. Nothing then separates a constant cost from
    work, and a small launch would take as long as the smallest measured one.
    """

    weights: np.ndarray
    floor_ns: float
    most: float = math.inf

    def times(self, terms: np.ndarray) -> np.ndarray:
        """Nanoseconds, at least 1, for rows of terms."""
        lawful = np.maximum(terms @ self.weights, max(self.floor_ns, 1.0))
        return (
            np.maximum(np.minimum(lawful, self.most * terms[:, ESTIMATE]), 1.0)
            if self.most < math.inf
            else lawful
        )


def non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares with non-negative coefficients (Lawson and Hanson 1974, chapter 23).
    O(columns^2) solves at worst.

    >>> non_negative(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    aim = matrix.T @ target
    count = len(aim)
    found, active = np.zeros(count), np.zeros(count, dtype=bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(aim).max(initial=0.0)))
    for _ in range(4 * count):
        gradient = np.where(active, -np.inf, matrix.T @ (target - matrix @ found))
        best = int(np.argmax(gradient))
        if gradient[best] <= tolerance:
            break
        active[best] = True
        while True:
            trial = np.zeros(count)
            # The normal equations would square the condition number.
            trial[active] = np.linalg.lstsq(matrix[:, active], target, rcond=None)[0]
            if trial[active].min() > 0:
                break
            shrinking = active & (trial <= 0)
            steps = found[shrinking] / np.maximum(found[shrinking] - trial[shrinking], 1e-300)
            found = found + min(1.0, float(steps.min())) * (trial - found)
            active &= found > 1e-14
            if not active.any():
                return np.zeros(count)
        found = trial
    return found


def _weights(terms: np.ndarray, times: np.ndarray, prior: float) -> np.ndarray:
    """Non-negative weights of the terms with the least mean absolute relative error. They are drawn
    towards the estimator, and towards EMPTY_NS for a launch without work."""
    empty = np.zeros(terms.shape[1])
    empty[[ESTIMATE, CONSTANT]] = 1.0, 1.0 / EMPTY_NS
    relative = np.vstack([terms / times[:, None], empty])
    importance = np.append(np.ones(len(times)), np.sqrt(EMPTY_WEIGHT))
    scale = np.maximum(np.median(relative[:-1], axis=0), 1e-9)
    wanted = np.zeros(terms.shape[1])
    wanted[ESTIMATE] = 1.0
    pull = np.diag(scale) * np.sqrt(prior)
    weights = wanted
    for _ in range(ROUNDS):
        rows = importance * np.sqrt(
            TYPICAL_ERROR / np.maximum(np.abs(relative @ weights - 1), SMALL_ERROR)
        )
        new = non_negative(
            np.vstack([relative * rows[:, None], pull]), np.concatenate([rows, pull @ wanted])
        )
        if np.allclose(new, weights, rtol=1e-9, atol=1e-12):
            break
        weights = new
    return weights


def _prior(terms: np.ndarray, times: np.ndarray, runs: np.ndarray) -> float:
    """How far to trust the estimator: the prior with the least mean error on left-out runs. Among
    equals the largest wins."""
    numbers = {run: i % FOLDS for i, run in enumerate(np.unique(runs))}
    folds = np.array([numbers[run] for run in runs])
    if len(times) < LEAST_TO_CHOOSE or len(numbers) < 2:
        return PRIORS[0]
    errors = []
    for prior in PRIORS:
        total = 0.0
        for fold in np.unique(folds):
            out = folds == fold
            law = Law(_weights(terms[~out], times[~out], prior), 0.0)
            total += float(np.sum(np.abs(np.log(law.times(terms[out]) / times[out]))))
        errors.append(total)
    return PRIORS[int(np.argmin(errors))]


def fit(terms: np.ndarray, times: np.ndarray, runs: np.ndarray) -> Law:
    """The law of measured `times` (ns) over rows of `terms` (ns, each growing with the work).

    The first term is the estimator's own time, the second is constant. `runs` holds the number of
    the run that each time comes from. Deterministic; O(rows x terms^2) for each of a few hundred
    solves.
    """
    if len(times) > MOST:
        kept = np.linspace(0, len(times) - 1, MOST).round().astype(int)
        terms, times, runs = terms[kept], times[kept], runs[kept]
    prior = _prior(terms, times, runs)
    best = Law(_weights(terms, times, prior), 0.0)
    least = float(np.mean(np.abs(np.log(best.times(terms) / times))))
    # The largest ratio of a measured time to its estimate.
    most = float(np.max(times / terms[:, ESTIMATE]))
    if len(times) < FLOOR_LEAST:
        return replace(best, most=most)
    ordered = np.sort(times)
    for share in FLOOR_SHARES:
        floor = float(np.median(ordered[: max(2, int(share * len(ordered)))]))
        above = times > 1.02 * floor
        if above.sum() < 3:
            continue
        law = Law(_weights(terms[above], times[above], prior), floor)
        error = float(np.mean(np.abs(np.log(law.times(terms) / times))))
        if error < FLOOR_GAIN * least:
            best, least = law, error
    return replace(best, most=most)
