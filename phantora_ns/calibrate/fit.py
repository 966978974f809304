"""The fit: parameters with which the simulator takes as long as the logs say.

Why it exists: times depend on parameters through a simulator, not through a formula. So derivatives
are differences of simulations, and the least squares between them are numpy's (a damped Gauss-Newton
method: Levenberg 1944, Marquardt 1963; scipy has the same, but a user of this project would install
it for this command alone). Rules: errors are relative, since sizes differ by a factor of a million.
One strange row moves nothing (Huber 1964). The prior decides what the samples leave open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy

from phantora_ns.calibrate.parameters import Name, Parameter, apply, of_operation, starts
from phantora_ns.calibrate.samples import Sample
from phantora_ns.calibrate.simulate import Simulated, Simulator
from phantora_ns.model.cluster import Cluster
from phantora_ns.model.nccl import NcclConstants
from phantora_ns.sim.topology import Topology

NOISE = 0.03
"""The least relative scatter that measurements are taken to have."""
_STRANGE = 2.5
"""Beyond so many times the scatter, an error counts linearly."""
_STEP = 0.01
_FARTHER = (0.1, 0.3, 1.0)
_ROUNDS = 30
_ENOUGH = 1e-4
"""Relative improvement below which the fit ends."""
_FARTHEST = math.log(30)
"""No parameter moves by a larger factor."""


@dataclass(frozen=True)
class Fitted:
    """`values`: ns and bytes per ns. `uncertain`: relative standard deviations. `cost`: of the fitted
    samples, to compare fits of the same samples."""

    cluster: Cluster
    parameters: tuple[Parameter, ...]
    values: dict[Name, float]
    uncertain: dict[Name, float]
    cost: float


class _Model:
    """Predictions as a function of the parameters' logarithms."""

    def __init__(
        self, cluster: Cluster, constants: NcclConstants, samples: Sequence[Sample]
    ) -> None:
        self.cluster, self.constants, self.samples = cluster, constants, samples
        self._topologies: dict[float, Topology] = {}
        base = self._simulator(cluster)
        # What NCCL chooses does not depend on what is fitted.
        self.chosen = {sample: base.run(sample) for sample in samples}
        self.parameters = starts(cluster, constants, self.chosen)
        place = {parameter.name: j for j, parameter in enumerate(self.parameters)}
        self.users: list[list[int]] = [[] for _ in self.parameters]
        for i, sample in enumerate(samples):
            for name in of_operation(sample, self.chosen[sample]):
                if name in place:
                    self.users[place[name]].append(i)

    def _simulator(self, cluster: Cluster) -> Simulator:
        share = cluster.network.efficiency
        topology = self._topologies.get(share)
        if topology is None:
            if len(self._topologies) > 4:
                self._topologies.clear()
            topology = self._topologies[share] = Topology.build(cluster)
        return Simulator(cluster, self.constants, topology)

    def at(self, x: numpy.ndarray) -> Cluster:
        """The cluster with these parameters."""
        names = (parameter.name for parameter in self.parameters)
        return apply(self.cluster, dict(zip(names, map(float, numpy.exp(x)), strict=True)))

    def errors(self, x: numpy.ndarray, which: Iterable[int]) -> numpy.ndarray:
        """Logarithms of simulated over measured time, of samples by number."""
        simulator = self._simulator(self.at(x))
        samples = [self.samples[i] for i in which]
        return numpy.array(
            [math.log(simulator.run(one).ns / (1000 * one.us)) for one in samples], dtype=float
        )

    def derivatives(self, x: numpy.ndarray, errors: numpy.ndarray) -> numpy.ndarray:
        """Of each sample's error by each parameter. Downward: a NIC may already be at its limit."""
        found = numpy.zeros((len(self.samples), len(x)))
        for j, users in enumerate(self.users):
            found[users, j] = self._slope(x, errors[users], j, _STEP)
        return found

    def directions(self, x: numpy.ndarray, errors: numpy.ndarray) -> numpy.ndarray:
        """As `derivatives`, but of a rate that limits nothing, how samples change where it begins to,
        if that brings them closer. Else a fit could not leave a link that is too fast."""
        found = self.derivatives(x, errors)
        for j, users in enumerate(self.users):
            if self.parameters[j].is_time or numpy.any(found[:, j]):
                continue
            for step in _FARTHER:
                slope = self._slope(x, errors[users], j, step)
                if numpy.any(slope):
                    if numpy.dot(errors[users], slope) > 0:
                        found[users, j] = slope
                    break
        return found

    def _slope(self, x: numpy.ndarray, errors: numpy.ndarray, j: int, step: float) -> numpy.ndarray:
        moved = x.copy()
        moved[j] -= step
        return (errors - self.errors(moved, self.users[j])) / step


def fit(
    cluster: Cluster,
    constants: NcclConstants,
    samples: Sequence[Sample],
    tell: Callable[[str], None] = lambda _line: None,
) -> Fitted:
    """Parameters that reproduce the samples, starting from those of `cluster`. `tell` hears how far
    it is."""
    model = _Model(cluster, constants, samples)
    everyone = range(len(samples))
    start = numpy.log([parameter.start for parameter in model.parameters])
    prior = numpy.array([parameter.prior for parameter in model.parameters])
    most = numpy.log([min(parameter.most, 1e300) for parameter in model.parameters])
    low, high = start - _FARTHEST, numpy.minimum(start + _FARTHEST, most)

    def cost(x: numpy.ndarray, errors: numpy.ndarray) -> float:
        return float(numpy.sum(_huber(errors / NOISE)) + numpy.sum(((x - start) / prior) ** 2))

    x, errors = start, model.errors(start, everyone)
    now, damping = cost(x, errors), 1e-2
    for number in range(1, _ROUNDS + 1):
        middle = float(numpy.median(numpy.abs(errors)))
        tell(f"fitting {len(x)} parameters, round {number}: median error {middle:.1%}")
        slopes = model.directions(x, errors)
        before = now
        while damping < 1e6:
            tried = numpy.clip(x + _step(slopes, errors, x - start, prior, damping), low, high)
            found = model.errors(tried, everyone)
            there = cost(tried, found)
            if there < now:
                x, errors, now, damping = tried, found, there, damping / 10
                break
            damping *= 10
        if before - now <= _ENOUGH * before:
            break
    values = {p.name: float(value) for p, value in zip(model.parameters, numpy.exp(x), strict=True)}
    return Fitted(
        model.at(x),
        tuple(model.parameters),
        values,
        _uncertain(model, x, errors, prior),
        now,
    )


def _huber(scaled: numpy.ndarray) -> numpy.ndarray:
    size = numpy.abs(scaled)
    return numpy.where(size <= _STRANGE, size**2, _STRANGE * (2 * size - _STRANGE))


def _weights(errors: numpy.ndarray) -> numpy.ndarray:
    """Of the squares, so that their sum is Huber's."""
    size = numpy.abs(errors) / NOISE
    return numpy.sqrt(_STRANGE / numpy.maximum(size, _STRANGE)) / NOISE


def _step(
    slopes: numpy.ndarray,
    errors: numpy.ndarray,
    moved: numpy.ndarray,
    prior: numpy.ndarray,
    damping: float,
) -> numpy.ndarray:
    """Where linear least squares would go from here; the damping keeps it short."""
    weights = _weights(errors)
    pull = numpy.diag(1 / prior)
    rows = numpy.vstack([slopes * weights[:, None], pull, numpy.diag(_lengths(slopes, weights))])
    rows[-len(prior) :] *= math.sqrt(damping)
    wanted = numpy.concatenate([-errors * weights, -moved / prior, numpy.zeros(len(prior))])
    return numpy.linalg.lstsq(rows, wanted, rcond=None)[0]


def _lengths(slopes: numpy.ndarray, weights: numpy.ndarray) -> numpy.ndarray:
    return numpy.sqrt(numpy.sum((slopes * weights[:, None]) ** 2, axis=0) + 1)


def _uncertain(
    model: _Model, x: numpy.ndarray, errors: numpy.ndarray, prior: numpy.ndarray
) -> dict[Name, float]:
    """Relative standard deviations, from the curvature and the scatter that is left."""
    slopes = model.derivatives(x, errors)
    scatter = max(NOISE, 1.4826 * float(numpy.median(numpy.abs(errors))))
    information = slopes.T @ slopes / scatter**2 + numpy.diag(1 / prior**2)
    spread = numpy.sqrt(numpy.diag(numpy.linalg.inv(information)))
    return {p.name: float(value) for p, value in zip(model.parameters, spread, strict=True)}


def with_nvls(cluster: Cluster, on: bool) -> Cluster:
    """The cluster with NVLink SHARP on or off."""
    return replace(cluster, nccl=replace(cluster.nccl, nvls=on))


def chosen_by(
    cluster: Cluster, constants: NcclConstants, samples: Iterable[Sample]
) -> dict[Sample, Simulated]:
    """What the simulator takes for each sample, and what it chooses."""
    simulator = Simulator(cluster, constants)
    return {sample: simulator.run(sample) for sample in samples}
