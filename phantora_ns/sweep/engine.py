"""Where the runs of a sweep are: what every engine offers, and the books of one machine.

Why it exists: a sweep does the same whether its runs are on this machine or on many. Rule: an engine decides
where a run starts and nothing else; results are the sweep's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from phantora_ns.launch.errors import EXIT_OURS
from phantora_ns.sweep.admission import Measured, Running, may_start
from phantora_ns.sweep.judge import FAILED
from phantora_ns.sweep.point import Point

LOOK_S = 0.5  # between two looks at the memory of runs
END_S = 10.0  # for runs to end after a signal


class Run(Protocol):
    """The run of a point somewhere. It has ended when `fileno` can be read. `alone`: no other was beside it
    on its machine; its engine keeps it."""

    @property
    def point(self) -> Point:
        """What runs."""

    alone: bool

    @property
    def wall_s(self) -> float:
        """Real seconds since the start."""

    @property
    def bytes(self) -> int:
        """The memory that it holds, as far as is known."""

    def fileno(self) -> int:
        """A descriptor that is readable when the run has ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: its result, and whether that is kept for later sweeps."""

    result: dict[str, Any]
    keep: bool


class Engine(Protocol):
    """A place for runs."""

    @property
    def running(self) -> Sequence[tuple[Run, str]]:
        """What runs now, with the name of its machine; "" for this one."""

    def start(self, point: Point, folder: Callable[[Point], Path]) -> Run | None:
        """Starts the point if there is room for it; None if not. `folder` makes the folder
        of its files.
        Raises OSError."""

    def look(self) -> None:
        """Takes note of what runs use; called every LOOK_S. Raises LaunchError when nothing can run any
        more."""

    def finish(self, run: Run) -> Ended | None:
        """Of a run that has ended. None: it has no result, and is to be run again. Raises LaunchError."""

    def stop(self, number: int) -> None:
        """Ends what runs, by a signal."""

    def close(self) -> None:
        """Frees what it holds; what still runs ends."""


class Machine:
    """What runs on one machine, and what runs have used there. `most`: no more at once."""

    def __init__(self, cores: int, measured: Sequence[Measured], most: int | None = None) -> None:
        self.cores, self.most = cores, most
        self.runs: list[Run] = []
        self._measured = list(measured)

    def has_room(self, ranks: int, free_bytes: int) -> bool:
        """Whether a run of so many ranks may start now."""
        running = [Running(run.point.ranks, run.bytes) for run in self.runs]
        return may_start(ranks, running, self._measured, self.cores, free_bytes, self.most)

    def begin(self, run: Run) -> None:
        """It has started."""
        self.runs.append(run)
        if len(self.runs) > 1:
            for one in self.runs:
                one.alone = False

    def end(self, run: Run, result: dict[str, Any] | None) -> Ended | None:
        """It has ended. None: it has no result, or was killed for lack of memory beside others, and is to be
        run once more."""
        self.runs.remove(run)
        if result is None:
            return None
        result["measured"]["alone"] = run.alone
        self._measured.append(Measured(**result["measured"]))
        if result["state"] != FAILED or not result["memory_killed"]:
            # other failures are the job's, and stay
            ours = result["exit_code"] == EXIT_OURS
            return Ended(result, keep=not ours and not result["ended_by"])
        self.most = max(1, len(self.runs))
        if not run.alone:
            return None
        why = f"{result['machine']} ran out of memory, and the kernel ended processes"
        return Ended(result | {"why": why}, keep=False)
