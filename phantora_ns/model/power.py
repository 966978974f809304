"""How the power limit of a GPU model changes the times of its kernels.

Why it exists: recorded kernel times are those of a GPU that its power limit holds back. A GPU that
waits for communication or its host a good part of the time runs compute-bound kernels at higher
clocks. Several GPUs at their limits each reach a clock of their own. docs/kernel-times.md says how
the numbers were found; libintercept/time/power.c applies them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

BOUND_BY = ("memory", "compute", "attention")
"""What bounds a kernel, by the numbers 0, 1, 2 of kernels/estimators/launch.py."""
VARIATIONS = 8
"""GPUs of a node that differ from each other; further GPUs repeat them."""


@dataclass(frozen=True)
class Power:
    """Shares are in thousandths.

    `low`, `full`: below the first share of full-power time clocks are free, above the second
    kernels take their recorded times; between them it is linear. `window_ns`: the time over which
    that share counts. `weights`: the power that kernels of each class draw, as a share of matrix
    products'. `gains`: how much shorter kernels of each class are at free clocks. `recorded`: how
    much longer compute-bound kernels take on the median GPU at its limit than on the recorded one.
    `spread`: the standard deviation between GPUs.
    """

    low: int
    full: int
    window_ns: int
    weights: tuple[int, ...]
    gains: tuple[int, ...]
    recorded: int
    spread: int

    @classmethod
    def unlimited(cls) -> Power:
        """Of a GPU model about which nothing is known: every kernel takes its recorded time."""
        return cls(0, 0, 1, (0,) * len(BOUND_BY), (0,) * len(BOUND_BY), 0, 0)

    def variation(self) -> list[int]:
        """How much slower than the recorded GPU each GPU of a node is at its limit, in thousandths.

        The values are quantiles of a normal distribution in van der Corput's order, so that the
        first few GPUs of a node already have nearly the spread of all.
        """
        quantiles = [
            int(f"{index:b}"[::-1], 2) / (1 << index.bit_length())
            for index in range(1, VARIATIONS + 1)
        ]
        return [
            self.recorded + round(self.spread * NormalDist().inv_cdf(quantile))
            for quantile in quantiles
        ]

    def fields(self) -> Iterator[tuple[str, int]]:
        """(key, value) of device.conf, without "power."; nothing for `unlimited`."""
        if not self.full:
            return
        yield from (
            ("low_permille", self.low),
            ("full_permille", self.full),
            ("window_ns", self.window_ns),
        )
        for index in range(len(BOUND_BY)):
            yield f"weight_permille.{index}", self.weights[index]
            yield f"gain_permille.{index}", self.gains[index]
        for index, permille in enumerate(self.variation()):
            yield f"variation_permille.{index}", permille
