"""How many runs at once: as many as cores and memory allow, by what the first ones used.

Why it exists: too few runs leave cores idle, too many are killed for lack of memory. Nobody knows beforehand
what a rank of a job needs. Rule: pure; the first run is alone and is measured, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SPARE = 1.1
"""A run may need so much more memory than those before it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of `ranks` ranks used: cores on average, and memory at its peak. `alone`: no other ran
    beside it, so its cores are what it can use."""

    ranks: int
    cores: float
    peak_bytes: int
    alone: bool


@dataclass(frozen=True, slots=True)
class Running:
    """A run now, and the memory that it has by now."""

    ranks: int
    bytes: int


def cores_of(ranks: int, measured: Sequence[Measured], cores: int) -> float:
    """How many cores a run of `ranks` ranks keeps busy, by those that ran alone."""
    each = max(one.cores / one.ranks for one in measured if one.alone)
    return min(float(cores), each * ranks)


def bytes_of(ranks: int, measured: Sequence[Measured]) -> float:
    """How much memory a run of `ranks` ranks needs, by the most that a rank has needed."""
    return SPARE * ranks * max(one.peak_bytes / one.ranks for one in measured)


def may_start(
    ranks: int,
    running: Sequence[Running],
    measured: Sequence[Measured],
    cores: int,
    free_bytes: int,
    most: int | None = None,
) -> bool:
    """Whether a run of `ranks` ranks may start now. `free_bytes`: what processes can still take. `most`: no
    more runs at once, whatever there is. A run starts beside others when half of the cores that it uses
    are left, and when its memory is, with what the others will still take."""
    if not running:
        return True
    if not any(one.alone for one in measured) or (most is not None and len(running) >= most):
        return False
    busy = sum(cores_of(one.ranks, measured, cores) for one in running)
    if busy + cores_of(ranks, measured, cores) / 2 > cores:
        return False
    still = sum(max(0.0, bytes_of(one.ranks, measured) - one.bytes) for one in running)
    return bytes_of(ranks, measured) + still <= free_bytes
