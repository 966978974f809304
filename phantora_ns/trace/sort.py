"""Sorts a trace's events by time in bounded memory.

Why it exists: importers need events in order, logs have them in the order of the calls, and a trace
of many steps does not fit into memory. So events are kept as lines that sort as text. When there are
too many, they go into sorted files that are merged.
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
    """Takes events in any order and returns them by time. At equal times the longest comes first, so
    that an enclosing event precedes its content. At equal times and lengths the text decides, so runs
    are reproducible."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where files go when there are too many events. They are unnamed and vanish with
        the process."""
        self._folder = folder
        self._lines: list[str] = []
        self._runs: list = []
        self.count = 0

    def add(self, begin_ns: int, duration_ns: int, text: str) -> None:
        """Adds one event, a line of JSON without line breaks. Raises OSError when the folder is
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
        """All events in order. May be called once."""
        self._lines.sort()
        for line in heapq.merge(*self._runs, self._lines) if self._runs else self._lines:
            yield line[_KEY:-1]

    def close(self) -> None:
        """Closes the files."""
        for run in self._runs:
            run.close()
