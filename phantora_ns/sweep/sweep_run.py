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

from phantora_ns.launch.errors import EXIT_OURS, LaunchError, UsageError, say
from phantora_ns.launch.machine.limits import free_memory
from phantora_ns.launch.run.events import EventLoop
from phantora_ns.launch.run.outcome import signal_name
from phantora_ns.page.render import render_sweep
from phantora_ns.page.run_page import title
from phantora_ns.sweep import table
from phantora_ns.sweep.admission import Measured, may_start
from phantora_ns.sweep.judge import FAILED, OK, Row, judged, row_of
from phantora_ns.sweep.point import Point
from phantora_ns.sweep.point_run import PointRun
from phantora_ns.sweep.results import Results
from phantora_ns.sweep.show import Lines, Live, Watcher, print_end
from phantora_ns.sweep.spec import Spec

LOOK_S = 0.5  # between two looks at the memory of runs
END_S = 10.0  # for runs to end after a signal
EXIT_NONE = 1


@dataclass(frozen=True)
class SweepOptions:
    """`results`: the folder. `html`: the page; None: in the folder. `jobs`: at most so many runs at once.
    `again`: what is finished is run again too."""

    results: Path
    html: Path | None = None
    jobs: int | None = None
    again: bool = False


def run_sweep(spec: Spec, points: Sequence[Point], options: SweepOptions) -> int:
    """Runs what has no result yet; returns the exit code: 0, 1 when no point ended well, or 128 and a
    signal. Raises UsageError, LaunchError."""
    html = options.html or options.results / "sweep.html"
    if not os.path.isdir(html.absolute().parent) and options.html is not None:
        raise UsageError(
            f"--html: the folder {html.parent} does not exist; create it or choose another"
        )
    results = Results(options.results)
    try:
        sweep = Sweep(spec, points, options, results)
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
    say(f"page written; {html}; all numbers are in {options.results / 'results.csv'}")
    if code:
        say(
            f"{signal_name(code - 128)}: {len(rows)} of {len(points)} points are kept; the same command goes on"
        )
        return code
    return 0 if any(row.state == OK for row in rows) else EXIT_NONE


class Sweep:
    """A sweep. `run` may be called once."""

    def __init__(
        self, spec: Spec, points: Sequence[Point], options: SweepOptions, results: Results
    ) -> None:
        self._spec, self._options, self._results = spec, options, results
        self._loop = EventLoop()
        self._running: list[PointRun] = []
        self._kept: dict[int, tuple[Point, Mapping[str, Any]]] = {}
        for point in points:
            result = None if options.again else results.result(point)
            if result is not None:
                self._kept[point.number] = (point, result)
        self._todo = deque(point for point in points if point.number not in self._kept)
        self._total = len(points)
        self._most = options.jobs
        self._ended_by = 0
        self._cores = len(os.sched_getaffinity(0))
        self._watcher: Watcher | None = None

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
        if self._kept:
            say(
                f"{len(self._kept)} of {self._total} points have a result already; in {self._results.path}"
            )
        self._watcher = self._make_watcher()
        try:
            with self._loop.signals(self._on_signal):
                while self._running or (self._todo and not self._ended_by):
                    self._start_what_fits()
                    self._loop.after("look", LOOK_S, self._look)
                    self._loop.step()
        finally:
            for run in self._running:  # only after an error of ours
                run.send_signal(signal.SIGKILL)
            self._watcher.close()
        return 128 + self._ended_by if self._ended_by else 0

    def _make_watcher(self) -> Watcher:
        if os.isatty(2):
            return Live(self._spec, self._state)
        return Lines(self._total, len(self._kept))

    def _state(self) -> tuple[list[Row], list[tuple[str, float]], str]:
        rows = judged(self.rows())
        running = [(self._label(run.point), run.wall_s) for run in self._running]
        states = Counter(row.state for row in rows)
        return rows, running, table.progress(states, len(running), self._total)

    def _label(self, point: Point) -> str:
        return point.label(self._spec.varying)

    # ---- runs ----

    def _start_what_fits(self) -> None:
        while self._todo and not self._ended_by:
            point = self._todo[0]
            running = [run.running() for run in self._running]
            if not may_start(
                point.ranks, running, self._measured(), self._cores, free_memory(), self._most
            ):
                return
            self._todo.popleft()
            self._start(point)

    def _start(self, point: Point) -> None:
        assert self._watcher is not None
        run = PointRun(point, self._results.begin(point))
        self._running.append(run)
        if len(self._running) > 1:
            for one in self._running:
                one.alone = False
        self._loop.watch(run, lambda: self._ended(run))
        self._watcher.started(point)

    def _measured(self) -> list[Measured]:
        """What runs have used, those of an earlier sweep in this folder too."""
        return [Measured(**result["measured"]) for _, result in self._kept.values()]

    def _look(self) -> None:
        assert self._watcher is not None
        for run in self._running:
            run.look()
        self._watcher.tick()

    def _ended(self, run: PointRun) -> None:
        assert self._watcher is not None
        self._loop.unwatch(run)
        self._running.remove(run)
        result = run.finish()
        if self._ended_by:
            return
        if result["state"] == FAILED and run.memory_killed:
            result |= {"why": "this machine ran out of memory, and the kernel ended processes"}
            self._most = max(1, len(self._running))
            if not run.alone:  # once more, beside fewer
                self._todo.append(run.point)
                return
        elif result["exit_code"] != EXIT_OURS:  # other failures are the job's, and stay
            self._results.keep(run.point, result)
        self._kept[run.point.number] = (run.point, result)
        self._watcher.finished(self._row(run.point, result), self._label(run.point))

    # ---- signals ----

    def _on_signal(self, number: int) -> None:
        first, self._ended_by = not self._ended_by, self._ended_by or number
        for run in self._running:
            run.send_signal(signal.SIGINT if first else signal.SIGKILL)
        self._loop.after("kill", END_S, lambda: self._on_signal(number))
