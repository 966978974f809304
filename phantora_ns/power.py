"""What a GPU model's file says of its power limit: the `[power]` table, as libintercept/work/power.c
wants it.

Why it exists: recorded kernel times are those of a GPU that its power limit holds back. A GPU that
waits for communication or its host a good part of the time runs compute-bound kernels at higher
clocks, and of several GPUs at their limits each reaches a clock of its own. docs/kernel-times.md
says how the numbers were found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from phantora_ns import units
from phantora_ns.config import ConfigError, GpuModel

CLASSES = ("memory", "compute", "attention")  # kernels/estimators/launch.py: 0, 1, 2
LOTS = 8  # GPUs of a node that are told apart
_SHARES = (
    "low",
    "full",
    "recorded",
    "spread",
    *(f"{what}_{name}" for what in ("weight", "gain") for name in CLASSES),
)


@dataclass(frozen=True)
class Power:
    """`low`, `full`: shares of full-power time below which clocks are free, above which kernels
    take their recorded times; between them it is linear. `weights`: power that kernels of each
    class draw, as a share of matrix products'. `gains`: how much shorter kernels of each class are
    at free clocks. `recorded`: how much longer compute-bound kernels take on the median GPU at its
    limit than on the one that was recorded; `spread`: standard deviation between GPUs. Shares in
    thousandths, `window_ns`: over how long demand counts."""

    low: int
    full: int
    window_ns: int
    weights: tuple[int, ...]
    gains: tuple[int, ...]
    recorded: int
    spread: int

    @classmethod
    def of(cls, gpu: GpuModel) -> Power:
        """From the GPU model's file; without a [power] table every kernel takes its recorded time.
        Raises ConfigError."""
        table = gpu.tables.get("power")
        file = f"{gpu.model}.toml"
        if table is None:
            return cls(0, 0, 1, (0,) * len(CLASSES), (0,) * len(CLASSES), 0, 0)
        unknown = sorted(table.keys() - {*_SHARES, "window"})
        if unknown:
            raise ConfigError(
                file,
                f"power.{unknown[0]}",
                f"is no such key; there are {', '.join((*_SHARES, 'window'))}",
            )
        share = {name: cls._share(table.get(name), name, file) for name in _SHARES}
        try:
            window_ns = units.time_ns(table.get("window"))
        except units.UnitError as error:
            raise ConfigError(file, "power.window", str(error)) from error
        if window_ns <= 0:
            raise ConfigError(file, "power.window", "is not longer than nothing")
        if not share["low"] < share["full"]:
            raise ConfigError(file, "power.full", "is not above power.low")
        return cls(
            share["low"],
            share["full"],
            window_ns,
            tuple(share[f"weight_{name}"] for name in CLASSES),
            tuple(share[f"gain_{name}"] for name in CLASSES),
            share["recorded"],
            share["spread"],
        )

    @staticmethod
    def _share(value: Any, name: str, file: str) -> int:
        try:
            share = units.fraction(value)
        except units.UnitError as error:
            raise ConfigError(
                file, f"power.{name}", f'{error}; write a share such as "15%"'
            ) from error
        if not 0 <= share <= 1:
            raise ConfigError(file, f"power.{name}", "is not between 0% and 100%")
        return round(1000 * share)

    def lots(self) -> list[int]:
        """How much slower than the recorded GPU each GPU of a node is at its limit, in thousandths:
        quantiles of a normal distribution in van der Corput's order, so that the first GPUs of a
        node are already spread like all of them."""
        places = [
            int(f"{index:b}"[::-1], 2) / (1 << index.bit_length()) for index in range(1, LOTS + 1)
        ]
        return [
            self.recorded + round(self.spread * NormalDist().inv_cdf(place)) for place in places
        ]

    def fields(self) -> Iterator[tuple[str, int]]:
        """(key, value) of device.conf, without "power."; nothing where the model says nothing."""
        if not self.full:
            return
        yield from (
            ("low_permille", self.low),
            ("full_permille", self.full),
            ("window_ns", self.window_ns),
        )
        for index in range(len(CLASSES)):
            yield f"weight_permille.{index}", self.weights[index]
            yield f"gain_permille.{index}", self.gains[index]
        yield from ((f"lot_permille.{index}", lot) for index, lot in enumerate(self.lots()))
