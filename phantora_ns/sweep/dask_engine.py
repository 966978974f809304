"""The engine of many machines: runs are tasks on the workers of a dask cluster.

Why it exists: a sweep of large jobs needs more cores and memory than one machine has. Dask and not Ray: its
scheduler and workers are plain Python processes that a user starts by ssh, Slurm or Kubernetes with what dask
has for these, and few packages come with it. Rule: every worker keeps its own books, as this machine does alone
(`engine.Machine`): its first run is alone and is measured. Dask's threads bound how many runs it gets. A task
is pinned to its worker; when the worker is lost, the point is run again elsewhere.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phantora_ns.launch.errors import LaunchError, UsageError, say
from phantora_ns.sweep.engine import Ended, Machine, Run
from phantora_ns.sweep.local import measured_on
from phantora_ns.sweep.point import Parse, Point

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_S = 10.0
ASK_S = 0.5  # between two questions to the scheduler
MOST_LOST = 3
"""A point whose workers were lost so often has failed: it may be what ends them."""


def connect(
    scheduler: str, results: Sequence[Mapping[str, Any]], most: int | None, parse: Parse
) -> DaskEngine:
    """The engine of the cluster whose scheduler has this address. Raises UsageError."""
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "--engine dask needs dask; it is not installed; pip install 'phantora-ns[dask]'"
        ) from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--scheduler: no dask scheduler answers; at {scheduler}; start one by 'dask scheduler', and "
            "workers by 'dask worker'"
        ) from error
    return DaskEngine(client, scheduler, results, most, parse)


class DaskRun:
    """A point's task on a worker."""

    def __init__(self, point: Point, folder: Path, worker: DaskWorker, future: Future) -> None:
        self.point, self.folder, self.worker, self.future = point, folder, worker, future
        self.alone = True
        self.lost = False
        self._start = time.monotonic()
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)
        self._open = threading.Lock()
        future.add_done_callback(lambda _: self._tell())

    @property
    def wall_s(self) -> float:
        """Real seconds since the start."""
        return time.monotonic() - self._start

    @property
    def bytes(self) -> int:
        """The memory that it held at its worker's last heartbeat."""
        return self.worker.bytes_of(self.future.key)

    def fileno(self) -> int:
        """A descriptor that is readable when the run has ended."""
        return self._ended

    def lose(self) -> None:
        """Its worker is gone."""
        self.lost = True
        self._tell()

    def close(self) -> None:
        """Gives the descriptor back."""
        with self._open:
            os.close(self._ended)
            self._ended = -1

    def _tell(self) -> None:
        with self._open:  # dask calls from a thread of its own
            if self._ended >= 0:
                os.eventfd_write(self._ended, 1)


class DaskWorker:
    """A worker. `joining`: the task that makes it tell its room, until that has ended."""

    def __init__(self, joining: Future) -> None:
        self.joining: Future | None = joining
        self.name = ""
        self.machine: Machine | None = None
        self.refused: str | None = None
        self._told: Mapping[str, Any] = {}

    def hear(self, metrics: Mapping[str, Any]) -> None:
        """What its heartbeat says."""
        from phantora_ns.sweep.dask_worker import METRIC

        self._told = metrics.get(METRIC) or {}

    @property
    def ready(self) -> bool:
        """Whether runs may be given to it."""
        return self.machine is not None and self.refused is None and bool(self._told)

    @property
    def free_bytes(self) -> int:
        """What its runs can still take."""
        return int(self._told.get("free_bytes", 0))

    def bytes_of(self, key: str) -> int:
        """What the run of a task holds."""
        return int(self._told.get("runs", {}).get(key, 0))


class DaskEngine:
    """`results`: of earlier runs. `most`: no more at once, on all workers together."""

    def __init__(
        self,
        client: Client,
        address: str,
        results: Sequence[Mapping[str, Any]],
        most: int | None,
        parse: Parse,
    ) -> None:
        self._client, self._address, self._most, self._parse = client, address, most, parse
        self._results = results
        self._workers: dict[str, DaskWorker] = {}
        self._runs: list[DaskRun] = []
        self._lost: Counter[int] = Counter()
        self._seen: Mapping[str, Any] = {}
        self._said_nobody = False
        self._closing = threading.Event()
        self._asking = threading.Thread(target=self._ask, daemon=True)
        self._asking.start()

    @property
    def running(self) -> list[tuple[Run, str]]:
        """What runs now, with the name of its machine."""
        return [(run, run.worker.name) for run in self._runs]

    # ---- workers ----

    def _ask(self) -> None:
        """Asks the scheduler for its workers, in a thread, because an answer may take long."""
        while not self._closing.wait(ASK_S):
            try:
                self._seen = dict(self._client.scheduler_info()["workers"])
            except Exception:  # look() says so when the connection is gone
                continue

    def look(self) -> None:
        """Notices workers that come and go. Raises LaunchError when nothing can run any more."""
        if self._client.status != "running":
            self._raise_gone()
        seen = self._seen
        for address in self._workers.keys() - seen.keys():
            gone = self._workers.pop(address)
            for run in self._runs:
                if run.worker is gone:
                    run.lose()
        for address, told in seen.items():
            worker = self._workers.get(address) or self._join(address)
            worker.hear(told["metrics"])
            if worker.joining is not None and worker.joining.done():
                self._joined(address, worker, told["nthreads"])
        self._say_who_is_missing()

    def _join(self, address: str) -> DaskWorker:
        from phantora_ns.sweep.dask_worker import join

        joining = self._client.submit(
            join, workers=[address], allow_other_workers=False, key=f"join-{uuid.uuid4().hex}"
        )
        worker = self._workers[address] = DaskWorker(joining)
        return worker

    def _joined(self, address: str, worker: DaskWorker, threads: int) -> None:
        assert worker.joining is not None
        joining, worker.joining = worker.joining, None
        if joining.status == "finished":
            worker.name = joining.result()
            measured = measured_on(worker.name, self._results)
            worker.machine = Machine(threads, measured, most=threads)
        elif joining.status == "error":
            self._refuse(address, worker, str(joining.exception()))

    def _refuse(self, address: str, worker: DaskWorker, why: str) -> None:
        if worker.refused is None:
            worker.refused = why
            say(f"a worker is left out: {why}; {address}")

    def _say_who_is_missing(self) -> None:
        if self._runs or not self._seen and self._said_nobody:
            return
        if not self._seen:
            self._said_nobody = True
            say(f"there is no worker yet; at {self._address}; start some by 'dask worker'")
        elif all(worker.refused is not None for worker in self._workers.values()):
            raise LaunchError(
                f"no worker can run the points; at {self._address}; make them as this machine is, and give "
                "the same command"
            )

    def _raise_gone(self) -> None:
        raise LaunchError(
            f"the connection to the scheduler is lost; {self._address}; finished points are kept: start it, "
            "and give the same command"
        )

    # ---- runs ----

    def start(self, point: Point, folder: Callable[[Point], Path]) -> Run | None:
        """Starts the point on the worker that has most room; None when none has."""
        from phantora_ns.sweep.dask_worker import Order, run_order

        if self._most is not None and len(self._runs) >= self._most:
            return None
        found = [
            (len(worker.machine.runs) / worker.machine.cores, address)
            for address, worker in self._workers.items()
            if worker.machine is not None
            and worker.ready
            and worker.machine.has_room(point.ranks, worker.free_bytes)
        ]
        if not found:
            return None
        _, address = min(found)
        worker = self._workers[address]
        assert worker.machine is not None
        future = self._client.submit(
            run_order,
            Order(point, self._parse),
            workers=[address],
            allow_other_workers=False,
            key=f"point-{uuid.uuid4().hex}",
        )
        run = DaskRun(point, folder(point), worker, future)
        self._runs.append(run)
        worker.machine.begin(run)
        return run

    def finish(self, run: Run) -> Ended | None:
        """Of a run that has ended. Raises LaunchError."""
        assert isinstance(run, DaskRun) and run.worker.machine is not None
        self._runs.remove(run)
        run.close()
        result = None
        status = "lost" if run.lost else run.future.status
        if status == "finished":
            answer = run.future.result()
            if answer.refused is not None:
                self._refuse(self._address_of(run.worker), run.worker, answer.refused)
            for name, content in (answer.files or {}).items():
                (run.folder / name).write_bytes(content)
            result = answer.result
        elif status == "error" and not _worker_died(run.future):
            self._refuse(
                self._address_of(run.worker),
                run.worker,
                f"a run failed: {run.future.exception()!r}",
            )
        elif (
            status != "cancelled"
        ):  # by `stop`, or because the scheduler is gone, which `look` says
            self._lost[run.point.number] += 1
        ended = run.worker.machine.end(run, result)
        self._client.cancel([run.future], force=True)
        if ended is None and self._lost[run.point.number] >= MOST_LOST:
            return Ended(
                _failed(run, f"{MOST_LOST} workers were lost while they ran it"), keep=False
            )
        return ended

    def _address_of(self, worker: DaskWorker) -> str:
        return next((a for a, one in self._workers.items() if one is worker), self._address)

    def stop(self, number: int) -> None:
        """Nobody waits for what runs any more, so workers end it."""
        self._client.cancel([run.future for run in self._runs], force=True)

    def close(self) -> None:
        """Leaves the cluster; what still runs ends."""
        self._closing.set()
        self._asking.join()
        self._client.close()


def _worker_died(future: Future) -> bool:
    from distributed import KilledWorker

    return isinstance(future.exception(), KilledWorker)


def _failed(run: DaskRun, why: str) -> dict[str, Any]:
    """The result of a point that no worker brought to an end."""
    from phantora_ns.sweep.point_run import result_of

    return result_of(None, 1) | {"why": why, "wall_s": round(run.wall_s, 3)}
