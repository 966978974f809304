"""What a law leaves over, learned from neighbours: a Gaussian process on the logarithm of measured
time over the law's time.

Why it exists: libraries choose kernels, tiles and splits by rules that no formula here knows. Their
effect is nearly the same at nearby sizes. The process has one part common to a family, one to the
launches of a group, one to the launches of a name, and one that fades with distance. So one
measurement of a kernel corrects all of its sizes a little and the near ones fully. Where nothing
similar was measured the law stands, with a wide error.

One more part is common to everything that one run measured: chips differ, and the clock that its times were put at
(run_clocks.py) is inferred. This part keeps a run's error from being taken for a property of the sizes that only this
run had. It is small. With a larger one, what a sweep says of its own kind of sizes would count as its run's error.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), section 2.2; leaving
points out without refitting: section 5.4.2, for several points at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# Standard deviations to start from: of a family, a group, a name, the near field, and noise.
START = (0.10, 0.10, 0.08, 0.12, 0.03)
CLOCKS = 0.01  # deviation between runs once all times are at one clock (docs/kernel-times.md)
# Factors tried on each deviation. The likeliest wins, the first among equals.
SCALES = (1.0, 0.25, 0.5, 2.0, 4.0, 8.0)
LEAST_CHANCE = 0.02  # medians of one signature in two runs differ by at least this
ROUNDS = 2  # in each of them, every deviation is chosen given the others
# Weight of a neighbour of the same group and another name, relative to one of the same name.
OTHER_NAME = 0.6
MOST = 300  # largest family that one system of equations covers, in measurements
NEAREST = 160  # measurements that a prediction uses in a larger family
OWN = 4  # so many measurements of a launch's group are enough; those of other groups are then left out
CHOSEN_ON = 120  # measurements that deviations are chosen on; more do not change the choice


@dataclass(frozen=True)
class Inputs:
    """Launches as the process sees them. `positions` has one row per launch, in units of the distance
    over which times stay similar. `groups` and `names` are numbers."""

    positions: np.ndarray
    groups: np.ndarray
    names: np.ndarray

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, which: np.ndarray) -> Inputs:
        """The chosen rows."""
        return Inputs(self.positions[which], self.groups[which], self.names[which])


def parts(first: Inputs, second: Inputs) -> np.ndarray:
    """Correlations without noise, one matrix for each thing that launches may have in common:
    [family, group, name, near field]. O(rows x columns)."""
    squares = (
        np.sum(first.positions**2, axis=1)[:, None] + np.sum(second.positions**2, axis=1)[None, :]
    )
    distance = np.sqrt(3 * np.maximum(squares - 2 * first.positions @ second.positions.T, 0.0))
    # Matern, 3/2: continuous, and no smoother than the dependence on tile sizes.
    near = (1 + distance) * np.exp(-distance)
    group = first.groups[:, None] == second.groups[None, :]
    name = group & (first.names[:, None] == second.names[None, :])
    return np.stack(
        [
            np.ones_like(near),
            group,
            name,
            near * np.where(name, 1.0, np.where(group, OTHER_NAME, 0.0)),
        ]
    )


class Residual:
    """The process given `values` (logarithms) at `inputs`. `configurations` holds the number of the
    run that each value comes from. Values of one run share a deviation of size `run`."""

    def __init__(self, inputs: Inputs, values: np.ndarray, configurations: np.ndarray, run: float):
        self._inputs, self._values, self._runs, self._run = inputs, values, configurations, run
        self._deviations = self._choose(_spread(len(inputs), CHOSEN_ON))
        chosen = _spread(len(inputs), MOST)
        system = self._system(chosen)
        self._inverse = np.linalg.inv(system) if len(inputs) <= MOST else None
        # Among equally near measurements the choice is by lot, and always the same.
        self._lots = np.random.default_rng(0).permutation(len(inputs))
        self.trust = _trust(system, values[chosen], configurations[chosen])

    def _choose(self, rows: np.ndarray) -> np.ndarray:
        """The likeliest deviations, chosen one at a time."""
        inputs, values, same = self._inputs.take(rows), self._values[rows], self._same_run(rows)
        every = np.concatenate([parts(inputs, inputs), np.eye(len(rows))[None]])
        deviations = np.array(START)
        for _ in range(ROUNDS):
            for part, start in enumerate(START):
                tried = []
                for scale in SCALES:
                    trial = deviations.copy()
                    trial[part] = max(start * scale, LEAST_CHANCE)
                    tried.append(
                        (_likelihood(np.tensordot(trial**2, every, 1) + same, values), trial)
                    )
                deviations = max(tried, key=lambda pair: pair[0])[1]
        return deviations

    def _same_run(self, rows: np.ndarray) -> np.ndarray:
        runs = self._runs[rows]
        return self._run**2 * (runs[:, None] == runs[None, :])

    def _covariance(self, first: Inputs, second: Inputs) -> np.ndarray:
        return np.tensordot(self._deviations[:4] ** 2, parts(first, second), 1)

    def _system(self, rows: np.ndarray) -> np.ndarray:
        """Covariance of the measurements at `rows`: of launches, of runs, and noise."""
        inputs = self._inputs.take(rows)
        return (
            self._covariance(inputs, inputs)
            + self._same_run(rows)
            + self._deviations[4] ** 2 * np.eye(len(rows))
        )

    def predict(self, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """(mean, standard deviation) of the logarithm at `inputs`.

        The deviation includes noise. It is widened by the factor that leaving configurations out
        has shown. O(rows x measurements); in a family of more than MOST measurements each row solves
        a system of NEAREST equations.
        """
        means, deviations = np.empty(len(inputs)), np.empty(len(inputs))
        cross = self._covariance(inputs, self._inputs)
        prior, noise = (
            float(np.sum(self._deviations[:4] ** 2)),
            self._run**2 + self._deviations[4] ** 2,
        )
        for row in range(len(inputs)):
            if self._inverse is not None:
                chosen: Any = slice(None)
                weights = self._inverse @ cross[row]
            else:
                chosen = self._nearest(cross[row], inputs.groups[row])
                weights = np.linalg.solve(self._system(chosen), cross[row, chosen])
            means[row] = weights @ self._values[chosen]
            variance = prior - float(weights @ cross[row, chosen])
            deviations[row] = np.sqrt(max(variance, 0.0) + noise) * self.trust
        return means, deviations

    def _nearest(self, covariances: np.ndarray, group: int) -> np.ndarray:
        """The measurements of a large family that a prediction uses, in their order: those that vary most with it. What
        the family has in common is little beside what a group's own measurements say, and the laws of other groups
        miss by more in the mean than in the median."""
        chosen = self._lots[np.argsort(-covariances[self._lots], kind="stable")[:NEAREST]]
        own = chosen[self._inputs.groups[chosen] == group]
        return np.sort(own if len(own) >= OWN else chosen)


def _spread(count: int, most: int) -> np.ndarray:
    """Indices of at most `most` rows, evenly spread."""
    return (
        np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)
    )


def _likelihood(prior: np.ndarray, values: np.ndarray) -> float:
    """Logarithm of the marginal likelihood, up to a constant."""
    lower = np.linalg.cholesky(prior)
    white = np.linalg.solve(lower, values)
    return -0.5 * float(white @ white) - float(np.log(np.diag(lower)).sum())


def _trust(system: np.ndarray, values: np.ndarray, configurations: np.ndarray) -> float:
    """The ratio of the errors on left-out configurations to the errors that the process expects, as
    root mean square, limited to [0.5, 4]."""
    inverse = np.linalg.inv(system)
    weighted = inverse @ values
    total, count = 0.0, 0
    for configuration in np.unique(configurations):
        out = np.flatnonzero(configurations == configuration)
        if len(out) == len(values):
            continue
        block = np.linalg.inv(inverse[np.ix_(out, out)])
        errors = block @ weighted[out]
        total += float(np.sum(errors**2 / np.maximum(np.diag(block), LEAST_CHANCE**2)))
        count += len(out)
    return float(np.clip(np.sqrt(total / count), 0.5, 4.0)) if count else 2.0
