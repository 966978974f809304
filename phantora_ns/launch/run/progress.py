"""The progress line: how far simulated time is, and how fast it passes.

Why it exists: a simulation that takes minutes must show that it gets on. While the line is on a
terminal, the job's output passes through here (terminal.py), so that neither spoils the other.
Rule: rich renders the line, and only on a terminal is rich imported. It does not place the line: its
live displays take what is printed meanwhile for text in whole lines, hide the cursor until they end,
and the job's bytes may end anywhere and mean anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from phantora_ns.launch.run.terminal import JobTerminal
from phantora_ns.protocol import RANK_STATS_FILE

INTERVAL_S = 0.25
_CLEAR = "\r\x1b[K"


def format_duration(nanoseconds: int) -> str:
    """A duration in a suitable unit, with three digits: 1.23 ms, 45.6 s, 12 min 05 s."""
    seconds = nanoseconds / 1e9
    if seconds >= 60:
        minutes, rest = divmod(int(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return (
                f"{seconds * factor:.3g} {unit}"
                if seconds * factor < 999.5
                else f"{seconds * factor:.0f} {unit}"
            )
    raise AssertionError("unreachable")


def format_line(clocks_ns: Iterable[int], real_s: float, world_size: int) -> str:
    """One line: simulated time over the ranks that are up, real time, slow-down (real over
    simulated), ranks up."""
    clocks = list(clocks_ns)
    real = format_duration(int(real_s * 1e9))
    if not clocks or not max(clocks):
        return f"simulated 0 | real {real} | {len(clocks)}/{world_size} ranks up"
    low, high = min(clocks), max(clocks)
    simulated = (
        format_duration(high)
        if low == high
        else f"{format_duration(low)} to {format_duration(high)}"
    )
    slower = f"{real_s * 1e9 / high:.3g}x"
    ranks = f"{len(clocks)}/{world_size} ranks up"
    return f"simulated {simulated} | real {real} | slow-down {slower} | {ranks}"


def render_line(text: str, columns: int) -> str:
    """The line as rich renders it for a terminal of so many columns, the last of which stays free. It has no
    styles: a reset after them would also end a colour that the job has set."""
    from rich.console import Console

    console = Console(color_system=None, force_terminal=True, width=max(1, columns - 1), height=1)
    with console.capture() as captured:
        console.print(text, end="", no_wrap=True, overflow="crop", markup=False, highlight=False)
    return captured.get()


def read_clocks(run_dir: Path) -> list[int]:
    """Host clocks, ns, of all clients that have rank statistics; those that are being made are left out."""
    from phantora_ns.report.rank_stats import read_rank_stats

    clocks = []
    for path in sorted((run_dir / RANK_STATS_FILE).iterdir()):
        try:
            clocks.append(read_rank_stats(path).clock_ns)
        except (OSError, ValueError):
            continue
    return clocks


class Progress:
    """The line on a terminal, and for `tell`, if there is one: who runs us may show it elsewhere. Does
    nothing when stderr is no terminal and nobody is to be told."""

    def __init__(
        self,
        run_dir: Path,
        ranks: int,
        wanted: bool,
        tell: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._ranks, self._now = run_dir, ranks, now
        self.terminal = JobTerminal() if wanted and os.isatty(2) else None
        self._tell = tell if wanted else None
        self._start = now()
        self._shown = False

    @property
    def active(self) -> bool:
        """Whether there is a terminal to draw on, or somebody to be told."""
        return self.terminal is not None or self._tell is not None

    def show(self) -> None:
        """Draws the line again, unless the job has left the cursor inside a line of its own."""
        drawn = self.terminal is not None and self.terminal.at_line_start
        if not drawn and self._tell is None:
            return
        text = format_line(read_clocks(self._run_dir), self._now() - self._start, self._ranks)
        if self._tell is not None:
            self._tell(text)
        if self.terminal is None or not drawn:
            return
        line = render_line(text, self.terminal.copy_size())
        self.terminal.write(f"{_CLEAR}{line}\r".encode())
        self._shown = True

    def pass_on(self) -> bool:
        """Writes what the job has printed to the terminal, in place of the line. False when there
        was nothing."""
        assert self.terminal is not None
        data = self.terminal.read()
        if data:
            self.clear()
            self.terminal.write(data)
            self.terminal.at_line_start = data.endswith(b"\n")
        return bool(data)

    def clear(self) -> None:
        """Removes the line, so that what is written next stands alone."""
        if self._shown and self.terminal is not None:
            self.terminal.write(_CLEAR.encode())
            self._shown = False

    def close(self) -> None:
        """Passes on the last of the job's output and removes the line. To be called once the job has
        ended."""
        if self.terminal is not None:
            self.terminal.close_job_end()
            while self.pass_on():
                pass
            self.clear()
            self.terminal.close()
            self.terminal = None
