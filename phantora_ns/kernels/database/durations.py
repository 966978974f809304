"""Statistics of one signature's durations: collected one by one, in little memory, and combined over
runs.

Why it exists: a leader measures a kernel up to thousands of times in a run, and the database keeps
ten numbers. Counts, sums, squares, minimum and maximum are exact; median, percentiles and middle
mean are those of at most KEPT durations, which are all of them up to KEPT and a uniform sample of
them beyond (Li 1994, algorithm L). The sample is drawn by a counter-based generator seeded with the
signature's key, so that the same durations in the same order always give the same numbers. (Every
n-th duration would repeat exactly too, but a step launches a signature once per layer: it would
look at the same layers again and again.)

Runs are never pooled into one sample: each run is one context (its clocks, its cache state, its
neighbours). `combine` takes as the time of a signature the weighted median of its runs' medians,
each with the weight of its count, so that one run in an odd context does not shift it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KEPT = 256
"""Durations kept per signature and run while recording: the standard error of their median is 8 %
of their spread (1.25 / sqrt(256) of a standard deviation), for 2 KiB of memory."""
LOW, HIGH = 10, 90  # percentiles that are kept to tell the spread
LONGEST_NS = 1 << 40  # 18 minutes: a longer duration is nonsense, and would spoil a sum
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Statistics:
    """Durations of one signature in nanoseconds.

    `total`: their sum; `squares`: the sum of squared deviations from the mean; `low` and `high`:
    10th and 90th percentile; `middle`: the mean of what lies between those two, rounded.
    """

    count: int
    total: int
    squares: float
    median: float
    middle: int
    low: int
    high: int
    minimum: int
    maximum: int

    @classmethod
    def of(cls, durations: Iterable[int]) -> Statistics:
        """Statistics of measured durations, none left out. Raises ValueError when there are none,
        or one is no duration."""
        values = check(durations)
        if not values:
            raise ValueError("no durations")
        return _of(
            len(values),
            sum(values),
            sum(v * v for v in values),
            min(values),
            max(values),
            sorted(values),
        )

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def variance(self) -> float:
        """The sample variance, 0 for a single duration."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0

    def check(self) -> None:
        """Raises ValueError when these cannot be the statistics of any durations (a damaged or
        hand-made file)."""
        whole = (
            self.count,
            self.total,
            self.middle,
            self.low,
            self.high,
            self.minimum,
            self.maximum,
        )
        if not all(type(n) is int for n in whole) or not all(
            isinstance(x, (int, float)) for x in (self.squares, self.median)
        ):
            raise ValueError("statistics are not numbers")
        if not (
            self.count > 0
            and 0
            < self.minimum
            <= self.low
            <= self.median
            <= self.high
            <= self.maximum
            <= LONGEST_NS
            and self.low <= self.middle <= self.high
            and 0 <= self.squares < math.inf
            and self.total < 1 << 63
            and self.count * self.minimum <= self.total <= self.count * self.maximum
        ):
            raise ValueError("statistics contradict each other")


def check(durations: Iterable[int]) -> list[int]:
    """The durations as a list. Raises ValueError when one is no integer of 1 ns to LONGEST_NS."""
    values = list(durations)
    if values and not (
        set(map(type, values)) == {int} and 0 < min(values) and max(values) <= LONGEST_NS
    ):
        wrong = next(v for v in values if type(v) is not int or not 0 < v <= LONGEST_NS)
        raise ValueError(f"{wrong!r} is no duration in ns")
    return values


def _of(
    count: int, total: int, squares: int, minimum: int, maximum: int, ordered: Sequence[int]
) -> Statistics:
    """`total` and `squares` are sums over all durations; `ordered` are those that were kept,
    sorted."""
    kept = len(ordered)
    # count * squares - total^2 is exact in integers, where the same in floats would cancel.
    deviations = (count * squares - total * total) / count
    low = (kept * LOW + 99) // 100 - 1  # the smallest duration that at least a tenth do not exceed
    high = (kept * HIGH + 99) // 100 - 1
    half = kept // 2
    median = float(ordered[half]) if kept % 2 else (ordered[half - 1] + ordered[half]) / 2
    between = ordered[low : high + 1]
    return Statistics(
        count,
        total,
        deviations,
        median,
        round(sum(between) / len(between)),
        ordered[low],
        ordered[high],
        minimum,
        maximum,
    )


class Accumulator:
    """Durations of one signature as they come. `seed`: any integer that stays the same from run to
    run."""

    __slots__ = (
        "_draws",
        "_next",
        "_seed",
        "_width",
        "count",
        "kept",
        "maximum",
        "minimum",
        "squares",
        "total",
    )

    def __init__(self, seed: int):
        self._seed = seed & _MASK
        self._draws = 0
        # algorithm L: the state W, and the index of the next duration to keep
        self._width, self._next = (
            1.0,
            KEPT,
        )
        self.count = self.total = self.squares = self.maximum = 0
        self.minimum = LONGEST_NS
        self.kept = array("q")

    def extend(self, durations: Iterable[int]) -> int:
        """Takes durations, all or none; returns how many. Raises ValueError when one is no
        duration. O(1) for each."""
        values = check(durations)
        if not values:
            return 0
        self.total += sum(values)
        self.squares += sum([v * v for v in values])
        self.minimum = min(self.minimum, min(values))
        self.maximum = max(self.maximum, max(values))
        if self.count < KEPT:
            self.kept.extend(values[: KEPT - self.count])
        end = self.count + len(values)
        while self._next < end:
            if self._draws:
                self.kept[self._draw() % KEPT] = values[self._next - self.count]
            self._skip()
        self.count = end
        return len(values)

    def statistics(self) -> Statistics:
        """The statistics so far; there must be a duration. O(KEPT log KEPT)."""
        return _of(
            self.count, self.total, self.squares, self.minimum, self.maximum, sorted(self.kept)
        )

    def _skip(self) -> None:
        """Li's choice of the next duration that enters the sample: gaps are geometric, so most
        durations cost nothing."""
        if not self._draws:
            self._next -= (
                1  # the sample has just become full: the first gap counts from its last element
            )
        self._width *= math.exp(math.log(self._unit()) / KEPT)
        self._next += int(math.log(self._unit()) / math.log1p(-self._width)) + 1

    def _unit(self) -> float:
        """Uniform in (0, 1)."""
        return ((self._draw() >> 12) + 0.5) / (1 << 52)

    def _draw(self) -> int:
        """The next 64 random bits: splitmix64 (Steele, Lea, Flood 2014, figure 15)."""
        self._draws += 1
        z = (self._seed + self._draws * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)


def weighted_median(pairs: Iterable[tuple[float, int]]) -> float:
    """The value with half of the weight on either side, of (value, weight); the mean of two that
    share the middle.

    Raises ValueError when there are none. O(n log n).

    >>> weighted_median([(10, 1), (30, 5), (20, 1)]), weighted_median([(10, 2), (20, 2)])
    (30, 15.0)
    """
    ordered = sorted(pairs)
    if not ordered:
        raise ValueError("no values")
    whole, below = sum(weight for _, weight in ordered), 0
    for at, (value, weight) in enumerate(ordered):
        below += weight
        if 2 * below > whole:
            return value
        if 2 * below == whole:
            return (value + ordered[at + 1][0]) / 2 if ordered[at + 1][0] != value else value
    raise ValueError("weights must be positive")


def combine(runs: Sequence[Statistics]) -> Statistics | None:
    """Statistics of several runs' durations of a signature, whatever their order; None when there
    are none.

    Count, total, squares, minimum and maximum are those of all durations (squares by Chan, Golub,
    LeVeque 1979); median, middle, low and high the weighted medians of the runs' own.
    """
    if len(runs) <= 1:
        return runs[0] if runs else None
    count, total = sum(s.count for s in runs), sum(s.total for s in runs)
    mean = total / count
    squares = math.fsum(
        [*(s.squares for s in runs), *(s.count * (s.mean - mean) ** 2 for s in runs)]
    )

    def of_runs(name: str) -> float:
        return weighted_median((getattr(s, name), s.count) for s in runs)

    return Statistics(
        count,
        total,
        squares,
        float(of_runs("median")),
        round(of_runs("middle")),
        math.floor(of_runs("low")),
        math.ceil(of_runs("high")),
        min(s.minimum for s in runs),
        max(s.maximum for s in runs),
    )
