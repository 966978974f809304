"""How sure a step's time is: the interval in which 80 % of real runs are to be expected.

Why it exists: a time without its error invites more trust than it deserves. The law is below and
nowhere else. It takes what the run itself counted; its constants are errors on calibration runs and
on what was left out of fits, never on evaluation runs (docs/accuracy.md says which, and how often
real runs were inside).

The law. A step of length 1 consists of

    g  kernels of its GPU          x  waits for communication, of which `waiting` is for other ranks
    s  what communication beside compute stretches kernels by (STRETCH of the time it is beside them)
    r  the rest: the GPU waits for its host. A GPU whose work is queued is idle for GAPS of the step all the same,
       between kernels, and that is not the host's

Standard deviations of the step, as shares of it:

    kernels        (g + s + x * waiting) * sqrt(sum over classes of (sum over sources: share * error)^2)
                   Within a class errors have one cause (its model, the configuration's clock), so they
                   add up; classes have models of their own, so they add in quadrature. Waiting for
                   other ranks is their compute: it goes with ours.
    gpu            (g + s + x * waiting) * spread
                   A chip is faster or slower in all kernels at once. The clock's law adds nothing: in steps that the
                   power limit holds down, calibration rows differ by no more than chips do.
    communication  sqrt((x * (1 - waiting) * NETWORK)^2 + (beside * CONTENTION)^2)
    host           p * h
                   h = sqrt(HOSTS^2 + (UNKNOWN * share of host time that no record holds)^2), with TOLD in place
                   of HOSTS when the cluster file has its servers' CPU score
                   p = e / (e + 1 - u): the share of the step on which its host decides. The GPU waits for e of
                   the step, and the host, which works for u of it, for 1 - u
                   e = r + x * waiting * late: other ranks are late because of their hosts, as far as ours is
                   close to its limit; late = (u * (1 + Z * h) - 1) / (Z * h), 0 to 1

They have different causes, so they add in quadrature. 80 % of a normal distribution lie within Z
standard deviations. Two things are not symmetric. A host that works for the share u of the step has
1 - u in hand: on a slower one, Z * h slower, the step becomes host-bound and u * (1 + Z * h) long. On a faster one
it gets shorter by no more than the GPU waits, e.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

COVERAGE = 0.8
Z = 1.2816
"""Standard deviations on each side of the mean that hold 80 % of a normal distribution."""

FITTED = {
    "other": 0.076,
    "gemm": 0.026,
    "attention": 0.049,
    "convolution": 0.116,
    "copy": 0.098,
    "elementwise": 0.013,
    "reduction": 0.136,
    "optimizer": 0.079,
    "layout": 0.054,
    "triton": 0.228,
}
"""Error of a class's total time in a configuration that the models have not seen, and which others
have not measured: `python -m bench.accuracy.errors` on 2026-11-22, products and attention on 2026-11-30, with all times
at one clock. docs/accuracy.md says what it finds since."""
ESTIMATED = {
    "other": 0.7,
    "gemm": 0.048,
    "attention": 0.176,
    "convolution": 0.133,
    "copy": 0.218,
    "elementwise": 0.068,
    "reduction": 0.3,
    "optimizer": 0.25,
    "layout": 0.395,
    "triton": 0.202,
}
"""The same of the estimators alone, without a database."""
GUESSED = 1.0
"""Error of a time of which only the launch's size is known."""

STRETCH = 0.22
"""What communication beside them adds to kernels: 21 and 26 % in the calibration steps
(bench/contention/fit.py)."""
CONTENTION = 0.049
"""Error of kernels' time beside communication: +6.0 and +3.4 % in those steps."""
NETWORK = 0.08
"""Error of a collective's time, each size predicted without it: median 5.0 %, 95 % within 15.8 %
(bench/nccl/fit.py)."""
BETWEEN = 0.1
"""The same where servers are involved: each number of GPUs predicted without it, median 6.0 %, 95 %
within 19.8 %. Between servers there was nothing to measure on."""
HOSTS = 0.31
"""How much hosts differ from what they are charged with: `python -m bench.accuracy.bands`. They differ among
themselves by as much in one job (160M on one GPU 16 to 39 ms on seven servers, TP 2 112 to 233 ms on fourteen)."""
GAPS = 0.015
"""In traces of eight real calibration steps that the GPU decides: 0.8 to 2.7 % of the step."""
TOLD = 0.15
"""The same when the server's CPU score is told."""
UNKNOWN = 0.5
"""Error of host time that no record and no measurement holds."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a step. Times in ns, of one step of one rank; `work_ns` is GPU time by class
    and source, over any period; the others are shares."""

    step_ns: int
    busy_ns: int
    exposed_ns: int
    host_ns: int
    work_ns: Mapping[str, Mapping[str, int]]
    fitted: bool = True
    """A database of this GPU was there to fit models to."""
    waiting: float = 0.0
    """Of the waits for communication, the share before the last rank came."""
    beside: float = 0.0
    """Of the step, the share in which communication runs beside compute."""
    spread: float = 0.0
    """The standard deviation of speed between GPUs of the model."""
    unknown: float = 0.0
    """Of host time, the share that neither a record nor a measurement holds."""
    nodes: int = 1
    told: bool = False
    """Host time follows the CPU score of the cluster's servers."""


@dataclass(frozen=True, slots=True)
class Band:
    """`low_ns` to `high_ns` holds `coverage` of real runs; the terms are standard deviations as
    shares of the step."""

    low_ns: int
    high_ns: int
    coverage: float
    kernels: float
    gpu: float
    communication: float
    host: float

    def as_json(self) -> dict[str, Any]:
        """For the report; shares to four digits."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def band_of(evidence: Evidence) -> Band:
    """The band of a step. It always contains the step."""
    step = max(1, evidence.step_ns)
    busy = min(1.0, evidence.busy_ns / step)
    exposed = min(1.0 - busy, evidence.exposed_ns / step)
    beside = min(evidence.beside, busy)
    stretch = min(STRETCH * beside, 1.0 - busy - exposed)
    rest = max(0.0, 1.0 - busy - exposed - stretch - GAPS)
    compute = busy + stretch + exposed * evidence.waiting

    kernels = compute * kernels_error(evidence.work_ns, evidence.fitted)
    gpu = compute * evidence.spread
    rate = NETWORK if evidence.nodes == 1 else BETWEEN
    communication = math.hypot(
        exposed * (1 - evidence.waiting) * rate, beside * (1 + STRETCH) * CONTENTION
    )
    of_host = math.hypot(TOLD if evidence.told else HOSTS, UNKNOWN * evidence.unknown)
    works = min(1.0, evidence.host_ns / step)
    excess = max(0.0, works * (1 + Z * of_host) - 1)
    idle = rest + exposed * evidence.waiting * excess / (Z * of_host)
    host = idle / (idle + 1 - works) * of_host if idle else 0.0

    symmetric = math.hypot(kernels, gpu, communication)
    above = math.hypot(Z * symmetric, max(Z * host, excess))
    saved = min(idle, 1 - 1 / (1 + Z * host))
    below = math.hypot(Z * symmetric, 1 / (1 - saved) - 1)
    return Band(
        math.floor(step / (1 + below)),
        math.ceil(step * (1 + above)),
        COVERAGE,
        kernels,
        gpu,
        communication,
        host,
    )


def kernels_error(work_ns: Mapping[str, Mapping[str, int]], fitted: bool = True) -> float:
    """The standard deviation of the kernels' total time, as a share of it. Recorded times (`exact`)
    have none but their GPU's."""
    total = sum(ns for sources in work_ns.values() for ns in sources.values())
    if not total:
        return 0.0
    squares = 0.0
    for name, sources in work_ns.items():
        wrong_ns = sum(ns * _error(name, source, fitted) for source, ns in sources.items())
        squares += (wrong_ns / total) ** 2
    return math.sqrt(squares)


def _error(name: str, source: str, fitted: bool) -> float:
    if source == "exact":
        return 0.0
    if source == "guess":
        return GUESSED
    table = ESTIMATED if source == "roofline" or not fitted else FITTED
    return table[name]
