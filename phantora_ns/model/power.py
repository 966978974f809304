"""How the power limit of a GPU model decides the clock, and so the time of its kernels.

Why it exists: a GPU that trains draws what its limit allows, and its clock is what the mix of its
work leaves. Recorded times are those of another mix. docs/kernel-times.md says how the numbers were
found; libintercept/time/power.c applies them. Rule: only data and the law; no state.

The law: a kernel draws `drawn` W beyond the idle power at the highest clock, times (clock / highest)
to the power `exponent` at a lower one. Products take an energy per FLOP instead, times (clock / highest)
to the power `exponent` - 1: their time goes as one over the clock. Attention takes both, since its power
depends little on how fast it computes. Communication
draws `link` per byte that the GPU sends, and `awake` all the time while the last byte is no older than
`window`. The clock is the highest at which the mean over `window` stays within the limit. Of a
kernel's time, `follows` goes as one over the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from types import MappingProxyType

from phantora_ns.protocol import BoundBy

BOUND_BY = BoundBy.LABELS
"""What bounds a kernel, in the order of its numbers."""
Share = Callable[[int, str], float]
"""`Power.recorded_share`, bound to a GPU model."""
CLOCK_OF = {BoundBy.ISSUE: BoundBy.ATTENTION, BoundBy.MIXED: BoundBy.ATTENTION}
"""Whose clock in a run is also that of these kernels: attention's, since it follows nearly up to the highest."""
VARIATIONS = 8
"""GPUs of a node that differ from each other; further GPUs repeat them."""
STEPS, CLOCKS = 16, 33
"""Clocks are tabulated at demands of 1, 1 + 1/16, ... 3 times what is available
(libintercept/base/device.h)."""


def as_recorded(bound_by: int, uid: str) -> float:
    """The share of those who leave recorded times as they are."""
    return 1.0


@dataclass(frozen=True)
class Power:
    """Powers in W, clocks in MHz; by what bounds a kernel where there are tuples.

    `limit`: the mean power that the limiter holds. `idle`: without work, at the highest clock.
    `drawn`: by kernels beyond that, at the highest clock. `per_flop`: picojoules beyond idle per FLOP of
    products at the highest clock, by `Precision`, and `attention_per_flop` of attention, which draws
    `attention_base` W beside that; where 0, or where the FLOP are not known, a kernel draws `drawn`.
    `exponent`: of the clock in that power.
    `link`: nanojoules per byte sent. `awake`: of links in use. `window_ns`: the time over which the
    limit holds the mean. `highest`: the clock without a limit. `recorded`: the clock of recorded
    times. `fastest`: the clock above which kernels take no less time; 0: their time does not follow
    the clock. `follows`: the share of their recorded time that does. `spread`: the standard deviation
    of clocks between GPUs at their limits, as a share. `recorded_in`: the clock of such kernels in
    single runs of the kernel-time database, by what bounds them and the run's uid.
    """

    limit: float
    idle: float
    drawn: tuple[float, ...]
    per_flop: tuple[float, ...]
    attention_per_flop: float
    attention_base: float
    exponent: float
    link: float
    awake: float
    window_ns: int
    highest: float
    recorded: tuple[float, ...]
    fastest: tuple[float, ...]
    follows: tuple[float, ...]
    spread: float
    recorded_in: Mapping[int, Mapping[str, float]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    @classmethod
    def unlimited(cls) -> Power:
        """Of a GPU model about which nothing is known: every kernel takes its recorded time."""
        nothing = (0.0,) * len(BOUND_BY)
        return cls(0.0, 0.0, nothing, (), 0.0, 0.0, 1.0, 0.0, 0.0, 1, 0.0, *(nothing,) * 3, 0.0)

    @property
    def known(self) -> bool:
        """Whether this GPU model has a law."""
        return self.limit > 0

    def clock(self, demand: float) -> float:
        """The clock in MHz at which work stays within the limit that would draw `demand` times what
        is available, beyond idle, at the highest clock."""
        return float(self.highest * min(1.0, demand ** (-1 / self.exponent)))

    def variation(self, nodes: int = 1) -> list[int]:
        """How much lower than the median's the clock of each GPU of a node is at its limit, in
        thousandths. All `nodes` of a job are equal: each of their GPUs stands for the slowest of those
        in its place, because that is the one that others wait for.

        In one node the values are quantiles of a normal distribution in van der Corput's order, so
        that the first few GPUs already have nearly the spread of all. The largest of n is below the
        quantile q with the probability q^n, so among n nodes a place has the quantile q^(1/n).
        """
        quantiles = [
            int(f"{index:b}"[::-1], 2) / (1 << index.bit_length())
            for index in range(1, VARIATIONS + 1)
        ]
        return [
            round(1000 * self.spread * NormalDist().inv_cdf(q ** (1 / nodes))) for q in quantiles
        ]

    def share_at(self, bound_by: int, clock: float) -> float:
        """What to multiply a time that was recorded at `clock` with, so that it is that at the clock
        `recorded`: the inverse of what libintercept/time/power.c does at the clock of a simulated GPU, so
        that a run gets back its own times at its own clock."""
        return 1 / (1 + self.follows[bound_by] * (self.recorded[bound_by] / clock - 1))

    def recorded_share(self, bound_by: int, uid: str) -> float:
        """`share_at` the clock of the run `uid`; 1 if it is not known."""
        clock = self.recorded_in.get(CLOCK_OF.get(bound_by, bound_by), {}).get(uid)
        return 1.0 if clock is None else self.share_at(bound_by, clock)

    def fields(self, nodes: int = 1) -> Iterator[tuple[str, int]]:
        """(key, value) of device.conf of a job on `nodes`, without "power."; nothing for
        `unlimited`."""
        if not self.known:
            return
        yield from (
            ("available_uw", round(1e6 * (self.limit - self.idle))),
            ("link_fj", round(1e6 * self.link)),
            ("awake_uw", round(1e6 * self.awake)),
            ("window_ns", self.window_ns),
            ("highest_khz", round(1000 * self.highest)),
        )
        for index in range(len(BOUND_BY)):
            yield f"drawn_uw.{index}", round(1e6 * self.drawn[index])
            yield f"recorded_khz.{index}", round(1000 * self.recorded[index])
            yield f"fastest_khz.{index}", round(1000 * self.fastest[index])
            yield f"follows_permille.{index}", round(1000 * self.follows[index])
        for index, picojoules in enumerate(self.per_flop):
            yield f"flop_fj.{index}", round(1000 * picojoules)
        yield "attention_flop_fj", round(1000 * self.attention_per_flop)
        yield "attention_base_uw", round(1e6 * self.attention_base)
        for index in range(CLOCKS):
            yield f"clock_khz.{index}", round(1000 * self.clock(1 + index / STEPS))
        for index, permille in enumerate(self.variation(nodes)):
            yield f"variation_permille.{index}", permille
