"""The training steps of a run, from the marks of one rank's optimizer.

Why it exists: people compare steps, and a run has a start, a warm-up and an end besides. Rule: a step
lasts from one update to the next, by the host's simulated clock, as a job's own log measures it; the
first ones are left out, because PyTorch allocates, compiles and, with DDP, replaces buckets in them.
The step's time is the mean: steps are not alike (a host's, or those that log), and the whole takes as long
as their sum.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

WARM_UP = 3
"""The most steps left out. Of short runs it is half."""
TOGETHER = 0.25
"""Updates are of one step when they are closer than this share of the mean distance: a job may have
several optimizers, or update in several parts (DeepSpeed)."""


class Mark(NamedTuple):
    """An entry of `steps` in hub.json: when an optimizer had stepped, and until then in all the time
    that the rank's GPU worked, its host worked, and its streams waited for communication; ns."""

    time_ns: int
    busy_ns: int
    host_ns: int
    exposed_ns: int
    flop: Sequence[int] = ()
    """By `Precision`, modulo 2^64."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a rank multiplied in its settled steps, in `time_ns`: `flop` by `Precision`."""

    steps: int
    time_ns: int
    flop: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """`count`: steps seen; the rest is of the `settled` ones after the warm-up, ns. `mean_ns`: of their
    time; `least_ns`, `most_ns`: the shortest and the longest. `busy_ns`, `host_ns`, `exposed_ns`: means of
    what GPU and host worked, and of what streams waited for communication."""

    rank: int
    count: int
    settled: int
    mean_ns: int
    least_ns: int
    most_ns: int
    busy_ns: int
    host_ns: int
    exposed_ns: int


def steps_of(rank: int, marks: Sequence[Sequence[Any]]) -> Steps | None:
    """The steps between a rank's marks (`Mark`, as JSON has it); None with fewer than two."""
    count, ends = _settled(marks)
    if not ends:
        return None
    lengths = [after.time_ns - before.time_ns for before, after in zip(ends, ends[1:])]
    mean_ns, busy_ns, host_ns, exposed_ns = (
        round((last - first) / len(lengths)) for first, last in zip(ends[0][:4], ends[-1][:4])
    )
    return Steps(
        rank,
        count,
        len(lengths),
        mean_ns,
        min(lengths),
        max(lengths),
        busy_ns,
        host_ns,
        exposed_ns,
    )


def done_of(marks: Sequence[Sequence[Any]]) -> Done | None:
    """What was multiplied between a rank's marks; None with fewer than two steps, or without sums."""
    _, ends = _settled(marks)
    if not ends or not all(mark.flop for mark in ends):
        return None
    steps = list(zip(ends, ends[1:]))
    flop = tuple(
        sum((after.flop[at] - before.flop[at]) % 2**64 for before, after in steps)
        for at in range(len(ends[0].flop))
    )
    return Done(len(steps), ends[-1].time_ns - ends[0].time_ns, flop)


def _settled(marks: Sequence[Sequence[Any]]) -> tuple[int, list[Mark]]:
    """How many steps there are, and the marks from the end of the warm-up on: one more than steps that
    count. No marks with fewer than two steps."""
    ends = _merged([Mark(*mark) for mark in marks])
    count = max(0, len(ends) - 1)
    return count, ends[min(WARM_UP, count // 2) :] if count >= 2 else []


def _merged(marks: list[Mark]) -> list[Mark]:
    """The last mark of each step."""
    if len(marks) < 3:
        return marks
    distances = [after.time_ns - before.time_ns for before, after in zip(marks, marks[1:])]
    least_ns = TOGETHER * statistics.fmean(distances[len(distances) // 2 :])
    kept = [mark for mark, after in zip(marks, distances) if after >= least_ns]
    return [*kept, marks[-1]]
