"""The engine of one machine: runs are processes of the sweep.

Why it exists: most sweeps need no more than the machine at hand.
"""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phantora_ns.launch.machine.limits import free_memory
from phantora_ns.sweep.admission import Measured
from phantora_ns.sweep.engine import Ended, Machine, Run
from phantora_ns.sweep.point import Point
from phantora_ns.sweep.point_run import PointRun


def measured_on(machine: str, results: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """What runs of these results used on a machine of this name."""
    return [Measured(**one["measured"]) for one in results if one.get("machine") == machine]


class LocalEngine:
    """`results`: of earlier runs. `most`: no more at once."""

    def __init__(self, results: Sequence[Mapping[str, Any]], most: int | None) -> None:
        cores = len(os.sched_getaffinity(0))
        self._machine = Machine(cores, measured_on(platform.node(), results), most)
        self._runs: list[PointRun] = []

    @property
    def running(self) -> list[tuple[Run, str]]:
        """What runs now."""
        return [(run, "") for run in self._runs]

    def start(self, point: Point, folder: Callable[[Point], Path]) -> Run | None:
        """Starts the point if there is room for it. Raises OSError."""
        if not self._machine.has_room(point.ranks, free_memory()):
            return None
        run = PointRun(point, folder(point))
        self._runs.append(run)
        self._machine.begin(run)
        return run

    def look(self) -> None:
        """Takes note of the memory of runs."""
        for run in self._runs:
            run.look()

    def finish(self, run: Run) -> Ended | None:
        """Of a run that has ended."""
        assert isinstance(run, PointRun)
        self._runs.remove(run)
        return self._machine.end(run, run.finish())

    def stop(self, number: int) -> None:
        """Passes the signal on."""
        for run in self._runs:
            run.send_signal(number)

    def close(self) -> None:
        """Kills what is left, which is so after an error of ours alone."""
        self.stop(signal.SIGKILL)
