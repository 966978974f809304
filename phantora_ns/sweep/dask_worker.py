"""What a dask worker does for a sweep: runs points as processes, and says what room it has.

Why it exists: only the worker's machine knows what runs there use. Rule: a run ends when the sweep no longer
waits for it: after Ctrl-C, and after the sweep's death, which the scheduler notices. A run also ends with
its worker (`phantora-sandbox guard`). A point whose files or versions differ here is refused.
"""

from __future__ import annotations

import os
import platform
import signal
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Worker, get_worker

from phantora_ns.launch.errors import PhantoraError
from phantora_ns.launch.machine.limits import free_memory
from phantora_ns.launch.machine.software import own_version
from phantora_ns.sweep.engine import END_S, LOOK_S
from phantora_ns.sweep.point import Parse, Point, differences
from phantora_ns.sweep.point_run import PointRun
from phantora_ns.sweep.results import LOG, REPORT

METRIC = "phantora-ns"
_RUNS: dict[str, PointRun] = {}
_FOLDER = threading.Lock()  # the current folder is the process's


@dataclass(frozen=True)
class Answer:
    """What became of an order. `refused`: why the worker is of no use. `files`: of the run, by name. None
    and no result: nobody waits for it any more."""

    refused: str | None = None
    result: dict[str, Any] | None = None
    files: dict[str, bytes] | None = None


@dataclass(frozen=True)
class Order:
    """A point to run. `parse`: as for `differences`."""

    point: Point
    parse: Parse


def join() -> str:
    """A task: from now on the worker's heartbeats tell its room. Returns its machine's name."""
    get_worker().metrics[METRIC] = _room
    return platform.node()


def _room(worker: Worker) -> dict[str, Any]:
    """`free_bytes`: what runs can still take. `runs`: what each holds, by its task's key."""
    runs = {key: run.bytes for key, run in list(_RUNS.items())}
    free = free_memory()
    limit = worker.memory_manager.memory_limit
    if limit:
        free = max(0, min(free, limit - sum(runs.values())))
    return {"free_bytes": free, "runs": runs}


def run_order(order: Order) -> Answer:
    """A task: runs the point."""
    refused = _refusal(order)
    if refused is not None:
        return Answer(refused)
    worker = get_worker()
    key = worker.get_current_task()
    with tempfile.TemporaryDirectory(prefix="sweep-", dir=worker.local_directory) as name:
        folder = Path(name)
        run = _RUNS[key] = PointRun(order.point, folder)
        try:
            while not run.wait(LOOK_S):
                run.look()
                if not _wanted(worker, key):
                    _end(run)
                    return Answer()
        finally:
            del _RUNS[key]
            result = run.finish()
        kept = {file: folder / file for file in (LOG, REPORT)}
        return Answer(
            None, result, {file: path.read_bytes() for file, path in kept.items() if path.exists()}
        )


def _refusal(order: Order) -> str | None:
    """Why the point's result would not be the same here."""
    with _FOLDER:
        before = os.getcwd()
        try:
            os.chdir(order.point.cwd)
            found = differences(order.point, order.parse, own_version())
        except OSError as error:
            return f"the folder {order.point.cwd} cannot be used there: {error.strerror}"
        except PhantoraError as error:
            return f"a point cannot run there: {error}"
        finally:
            os.chdir(before)
    return f"it has another {', another '.join(found)}" if found else None


def _wanted(worker: Worker, key: str) -> bool:
    """Whether the scheduler still wants the task's result."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state == "executing"


def _end(run: PointRun) -> None:
    run.send_signal(signal.SIGINT)
    if not run.wait(END_S):
        run.send_signal(signal.SIGKILL)
        run.wait(END_S)
