"""Runs a sweep: starts what fits beside what runs, keeps each result, and shows what came out.

Why it exists: a run may end, a signal may come, and memory may run short at any moment. Rule: a result is kept
as soon as it is there; what a signal ends has none and is run again by the next sweep.
"""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora_ns.launch.errors import LaunchError, UsageError, say
from phantora_ns.launch.run.events import EventLoop
from phantora_ns.launch.run.outcome import signal_name
from phantora_ns.page.render import render_sweep
from phantora_ns.page.run_page import title
from phantora_ns.sweep import table
from phantora_ns.sweep.engine import END_S, LOOK_S, Engine, Run
from phantora_ns.sweep.judge import OK, Row, judged, row_of
from phantora_ns.sweep.local import LocalEngine
from phantora_ns.sweep.point import Parse, Point
from phantora_ns.sweep.results import Results
from phantora_ns.sweep.show import Lines, Live, Quiet, Watcher, print_end
from phantora_ns.sweep.spec import Spec

EXIT_NONE = 1


@dataclass(frozen=True)
class SweepOptions:
    """`results`: the folder. `html`: the page; None: in the folder. `jobs`: at most so many runs at once.
    `again`: what is finished is run again too. `scheduler`: the address of dask's; None: runs are on this
    machine. `quiet`: nothing is said but the table at the end."""

    results: Path
    html: Path | None = None
    jobs: int | None = None
    again: bool = False
    scheduler: str | None = None
    quiet: bool = False


def run_sweep(spec: Spec, points: Sequence[Point], options: SweepOptions, parse: Parse) -> int:
    """Runs what has no result yet; returns the exit code: 0, 1 when no point ended well, or 128 and a
    signal. `parse`: of a run's options. Raises UsageError, LaunchError."""
    html = options.html or options.results / "sweep.html"
    if not os.path.isdir(html.absolute().parent) and options.html is not None:
        raise UsageError(
            f"--html: the folder {html.parent} does not exist; create it or choose another"
        )
    results = Results(options.results)
    try:
        sweep = Sweep(spec, points, options, results, parse)
        code = sweep.run()
        rows = judged(sweep.rows())
        data = table.as_json(
            spec, rows, len(points), title(list(spec.command), 1).partition(" on ")[0]
        )
        results.write_table(data, rows)
        results.write_page(render_sweep(data), html)
    except OSError as error:
        raise LaunchError(
            f"cannot write the results: {error.strerror}; {error.filename or options.results}; "
            "finished points are kept"
        ) from error
    finally:
        results.close()
    print_end(spec, rows)
    if not options.quiet:
        say(f"page written; {html}; all numbers are in {options.results / 'results.csv'}")
    if code:
        say(
            f"{signal_name(code - 128)}: {len(rows)} of {len(points)} points are kept; the same command goes on"
        )
        return code
    return 0 if any(row.state == OK for row in rows) else EXIT_NONE


def left_s(ended: Sequence[float], running: Sequence[float], waiting: int) -> float | None:
    """About how many seconds are left: `ended` took so long each, `running` run for so long by now, beside each
    other, and `waiting` have not begun. None: nothing has ended yet."""
    if not ended:
        return None
    each = sum(ended) / len(ended)
    rest = [max(0.0, each - seconds) for seconds in running]
    together = (sum(rest) + waiting * each) / max(1, len(running))
    return max([together, *rest])


class Sweep:
    """A sweep. `run` may be called once."""

    def __init__(
        self,
        spec: Spec,
        points: Sequence[Point],
        options: SweepOptions,
        results: Results,
        parse: Parse,
    ) -> None:
        """Raises UsageError when its engine cannot be had."""
        self._spec, self._options, self._results = spec, options, results
        self._loop = EventLoop()
        self._kept: dict[int, tuple[Point, Mapping[str, Any]]] = {}
        for point in points:
            result = None if options.again else results.result(point)
            if result is not None:
                self._kept[point.number] = (point, result)
        self._todo = deque(point for point in points if point.number not in self._kept)
        self._total = len(points)
        self._ended_by = 0
        self._engine = self._make_engine(parse)
        self._watcher: Watcher | None = None

    def _make_engine(self, parse: Parse) -> Engine:
        earlier = [result for _, result in self._kept.values()]
        if self._options.scheduler is None or not self._todo:
            return LocalEngine(earlier, self._options.jobs)
        from phantora_ns.sweep.dask_engine import connect

        return connect(self._options.scheduler, earlier, self._options.jobs, parse)

    def rows(self) -> list[Row]:
        """Of the points that have a result, in the sweep's order."""
        return [self._row(*self._kept[number]) for number in sorted(self._kept)]

    def _row(self, point: Point, result: Mapping[str, Any]) -> Row:
        fields = ("number", "settings", "gpus", "nodes", "gpu", "memory_bytes", "work")
        told = {name: getattr(point, name) for name in fields}
        told |= {"command": point.typed(), "folder": str(self._results.folder(point))}
        return row_of(told, result, self._spec.price)

    def run(self) -> int:
        """0, or 128 and the signal that ended it."""
        if self._kept and not self._options.quiet:
            say(table.kept(self.rows(), self._total, self._results.path))
        self._watcher = self._make_watcher()
        try:
            with self._loop.signals(self._on_signal):
                while self._engine.running or (self._todo and not self._ended_by):
                    self._start_what_fits()
                    self._loop.after("look", LOOK_S, self._look)
                    self._loop.step()
        finally:
            self._engine.close()
            self._watcher.close()
        return 128 + self._ended_by if self._ended_by else 0

    def _make_watcher(self) -> Watcher:
        if self._options.quiet:
            return Quiet()
        if os.isatty(2):
            return Live(self._spec, self._state)
        return Lines(self._total, len(self._kept))

    def _state(self) -> tuple[list[Row], list[tuple[str, float]], str]:
        rows = judged(self.rows())
        running = [
            (self._label(run.point) + (f" on {machine}" if machine else ""), run.wall_s)
            for run, machine in self._engine.running
        ]
        states = Counter(row.state for row in rows)
        return rows, running, table.progress(states, len(running), self._total, self._left_s())

    def _label(self, point: Point) -> str:
        return point.label(self._spec.varying)

    def _left_s(self) -> float | None:
        """About how long the rest takes."""
        ended = [result["wall_s"] for _, result in self._kept.values() if result["state"] == OK]
        running = [run.wall_s for run, _ in self._engine.running]
        return left_s(ended, running, len(self._todo))

    # ---- runs ----

    def _start_what_fits(self) -> None:
        assert self._watcher is not None
        started = []
        while self._todo and not self._ended_by:
            run = self._engine.start(self._todo[0], self._results.begin)
            if run is None:
                break
            started.append(self._todo.popleft())
            self._watch(run)
        for point in started:
            self._watcher.started(point, self._label(point), self._left_s())

    def _watch(self, run: Run) -> None:
        self._loop.watch(run, lambda: self._ended(run))

    def _look(self) -> None:
        assert self._watcher is not None
        self._engine.look()
        self._watcher.tick()

    def _ended(self, run: Run) -> None:
        assert self._watcher is not None
        self._loop.unwatch(run)
        ended = self._engine.finish(run)
        if self._ended_by:
            return
        if ended is None:
            self._todo.append(run.point)
            return
        if ended.keep:
            self._results.keep(run.point, ended.result)
        self._kept[run.point.number] = (run.point, ended.result)
        self._watcher.finished(self._row(run.point, ended.result), self._label(run.point))

    # ---- signals ----

    def _on_signal(self, number: int) -> None:
        first, self._ended_by = not self._ended_by, self._ended_by or number
        self._engine.stop(signal.SIGINT if first else signal.SIGKILL)
        self._loop.after("kill", END_S, lambda: self._on_signal(number))
