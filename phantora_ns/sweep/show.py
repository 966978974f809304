"""What a person sees of a sweep: a live table on a terminal, plain lines in a log, a table at the end.

Why it exists: a terminal can be drawn over and a log cannot. Rule: rich draws; nothing is drawn where stderr
is no terminal, and stdout gets the table at the end alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from phantora_ns.launch.errors import say
from phantora_ns.sweep import table
from phantora_ns.sweep.judge import Row
from phantora_ns.sweep.point import Point
from phantora_ns.sweep.spec import Spec

WIDE = 240  # columns of a table that no terminal shows


class Watcher(Protocol):
    """Hears how a sweep gets on."""

    def started(self, point: Point, label: str, left_s: float | None) -> None:
        """The run of a point has begun. `left_s`: about how long all that is left takes; None: not known."""

    def finished(self, row: Row, label: str) -> None:
        """A point has a result."""

    def tick(self) -> None:
        """Some time has passed."""

    def close(self) -> None:
        """No run is left."""


class Quiet:
    """Says nothing."""

    def started(self, point: Point, label: str, left_s: float | None) -> None:
        """Nothing."""

    def finished(self, row: Row, label: str) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """For logs: a line for each point that starts, and for each that is finished. `done`: how many had a result
    before."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._begun, self._done = total, done, done

    def started(self, point: Point, label: str, left_s: float | None) -> None:
        """A line."""
        self._begun += 1
        left = "" if left_s is None else f"; {table.about(left_s)} left in all"
        # a point that is run once more, because its machine was lost, does not count twice
        at = min(self._begun, self._total)
        say(f"point {at} of {self._total} starts: {label}{left}")

    def finished(self, row: Row, label: str) -> None:
        """A line."""
        self._done += 1
        say(f"{self._done} of {self._total}: {table.line(row, label)}")

    def tick(self) -> None:
        """Says nothing."""

    def close(self) -> None:
        """Says nothing."""


class Live:
    """For terminals: a table that is drawn again as points start and end. `state` gives the rows so far,
    the runs as (label, seconds), and how far the sweep is in words."""

    def __init__(
        self, spec: Spec, state: Callable[[], tuple[list[Row], list[tuple[str, float]], str]]
    ) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._spec, self._state = spec, state
        self._console = Console(stderr=True)
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def started(self, point: Point, label: str, left_s: float | None) -> None:
        """Draws it."""
        self.tick()

    def finished(self, row: Row, label: str) -> None:
        """Draws it."""
        self.tick()

    def tick(self) -> None:
        """Draws everything again."""
        from rich.console import Group
        from rich.text import Text

        rows, running, text = self._state()
        room = max(1, self._console.height - len(running) - 6)
        ordered = table.in_order(rows)
        shown = make_table(self._spec, ordered[:room], one_line=True)
        lines = [Text(f"running {label} for {seconds:.0f} s") for label, seconds in running]
        if len(ordered) > room:
            lines.insert(0, Text(f"and {len(ordered) - room} more"))
        self._live.update(Group(shown, *lines, Text(text, style="bold")), refresh=True)

    def close(self) -> None:
        """Takes the table away; the one of the end follows."""
        self._live.stop()


def make_table(spec: Spec, rows: Sequence[Row], one_line: bool = False) -> Any:
    """The rows as rich's table. `one_line`: what is said of a row is cut off at the end of its line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = table.headings(spec)
    for at, name in enumerate(names):
        number = len(spec.varying) <= at < len(names) - 1
        cut = one_line and at == len(names) - 1
        made.add_column(
            name,
            justify="right" if number else "left",
            overflow="ellipsis" if cut else "fold",
            no_wrap=cut,
        )
    for row in rows:
        style = "bold green" if row.best else "red" if row.why else ""
        made.add_row(*map(Text, table.cells(spec, row)), style=style)
    return made


def print_end(spec: Spec, rows: Sequence[Row]) -> None:
    """The table and the answer, on stdout."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else WIDE, highlight=False)
    console.print(make_table(spec, table.in_order(rows)))
    for text in table.closing(spec, rows):
        console.print(text, markup=False, soft_wrap=True)
