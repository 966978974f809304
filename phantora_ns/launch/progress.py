"""Why it exists: a simulation that takes minutes must show, on a terminal, that time passes in it, and how fast.

The line is written so that the cursor stays at its start: what the job prints next takes its place.
"""
from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

INTERVAL_S = 0.25
_CLEAR = "\r\x1b[K"


def format_duration(nanoseconds: int) -> str:
    """A duration with a unit that suits it, three digits or more: 1.23 ms, 45.6 s, 12 min 05 s."""
    seconds = nanoseconds / 1e9
    if seconds >= 60:
        minutes, rest = divmod(int(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 999.5 else f"{seconds * factor:.0f} {unit}"
    raise AssertionError("unreachable")


def format_line(clocks_ns: Iterable[int], real_s: float, world_size: int) -> str:
    """One line: simulated time over the ranks that are up, real time, slow-down (real over simulated), ranks up."""
    clocks = list(clocks_ns)
    real = format_duration(int(real_s * 1e9))
    if not clocks or not max(clocks):
        return f"simulated 0 | real {real} | {len(clocks)}/{world_size} ranks up"
    low, high = min(clocks), max(clocks)
    simulated = format_duration(high) if low == high else f"{format_duration(low)} to {format_duration(high)}"
    return f"simulated {simulated} | real {real} | slow-down {real_s * 1e9 / high:.3g}x | {len(clocks)}/{world_size} ranks up"


def read_clocks(run_dir: Path) -> list[int]:
    """Host clocks, ns, of all clients that have a page; a page that is being made is left out."""
    from phantora_ns.report.pages import read_page

    clocks = []
    for path in sorted((run_dir / "ranks").iterdir()):
        try:
            clocks.append(read_page(path).clock_ns)
        except (OSError, ValueError):
            continue
    return clocks


class Progress:
    """The line on a terminal; does nothing when stderr is none."""

    def __init__(self, run_dir: Path, world_size: int, wanted: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._world_size, self._now = run_dir, world_size, now
        self.active = wanted and sys.stderr.isatty()
        self._start = now()
        self._shown = False

    def show(self) -> None:
        """Draws the line anew."""
        if self.active:
            text = format_line(read_clocks(self._run_dir), self._now() - self._start, self._world_size)
            self._write(f"{_CLEAR}{text}\r")
            self._shown = True

    def clear(self) -> None:
        """Takes the line away; messages of ours and the job's last output stand alone."""
        if self._shown:
            self._write(_CLEAR)
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            self.active = False
