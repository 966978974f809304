"""Durations that a leader measures while the job runs, for the simulated ranks of the same run.

Why it exists: what was measured a moment ago beats any model, and must be usable before a database
has been written. The first sample of a signature is taken with the GPU stopped before and after it,
so it serves only until there are later ones (docs/leading.md). A duration changes while samples
come in, and no longer once there are enough.
"""

from __future__ import annotations

import enum
import statistics

KEPT = 64
"""Samples that decide a signature's duration. It then stays, so that steps repeat. The standard
error of the median of 64 is 16 % of the samples' standard deviation (1.25 / sqrt(64))."""


class Learned(enum.Enum):
    """Whose answers change when a leader has measured something."""

    NOTHING = "nothing"
    THIS = "this signature"
    ALL = "all that it has measured"


class LiveTimes:
    """Medians of measured durations by a signature's canonical bytes."""

    def __init__(self) -> None:
        self._samples: dict[bytes, list[int]] = {}
        self._median_ns: dict[bytes, int] = {}
        self._first_only: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._median_ns)

    def add(self, data: bytes, durations_ns: list[int]) -> bool:
        """Takes samples in; returns whether the signature's duration has changed. O(KEPT log
        KEPT)."""
        if not durations_ns:
            return False
        samples = self._samples.get(data)
        if samples is None:
            samples = self._samples[data] = []
            self._first_only.add(data)
        elif data in self._first_only:
            self._first_only.discard(data)
            samples.clear()
        if len(samples) >= KEPT:
            return False
        samples.extend(durations_ns[: KEPT - len(samples)])
        before_ns = self._median_ns.get(data)
        self._median_ns[data] = round(statistics.median(samples))
        return self._median_ns[data] != before_ns

    def duration_ns(self, data: bytes) -> int | None:
        """The duration of a signature in ns; None when it was not measured."""
        return self._median_ns.get(data)
