"""Sorts a trace's events by time in bounded memory.

Why it exists: importers want events in order, logs have them in the order of the calls, and a trace
of many steps does not fit into memory. So events are kept as lines that sort as text, and what is
too much goes through sorted files that are merged.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterator
from pathlib import Path

MOST_LINES = 200_000
"""Events kept in memory, about 100 MB of them."""
_KEY = 32
_LONGEST_NS = 1 << 60


class EventSorter:
    """Takes events in any order; gives them by time, at equal times the longest first, so that
    whatever encloses comes first. At equal times and lengths the texts decide: runs repeat."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where files go when there are too many events; they have no names and go with
        the process."""
        self._folder = folder
        self._lines: list[str] = []
        self._runs: list = []
        self.count = 0

    def add(self, begin_ns: int, duration_ns: int, text: str) -> None:
        """One event, as a line of JSON without line breaks. Raises OSError when the folder is
        full."""
        self._lines.append(f"{begin_ns:016x}{_LONGEST_NS - duration_ns:016x}{text}\n")
        self.count += 1
        if len(self._lines) >= MOST_LINES:
            self._lines.sort()
            run = tempfile.TemporaryFile("w+", dir=self._folder)
            run.writelines(self._lines)
            run.seek(0)
            self._runs.append(run)
            self._lines = []

    def texts(self) -> Iterator[str]:
        """All events in order; may be asked for once."""
        self._lines.sort()
        for line in heapq.merge(*self._runs, self._lines) if self._runs else self._lines:
            yield line[_KEY:-1]

    def close(self) -> None:
        """Lets go of the files."""
        for run in self._runs:
            run.close()
