"""RUN_DIR/trace/<page>.times: the final times of the vertices on which one process's work depends.

Why it exists: processes log their work with the time expressions that place it
(libintercept/trace/trace_log.c), but only the event graph knows the times of their vertices. Times are
written as they become final, so that the hub stores nothing for them. The others are written when the
run ends.

Each line is a JSON array: `[vertex, time_ns]`, or for a launch of communication `[vertex, end_ns,
reached_ns, started_ns, algorithm, protocol, channels]`. `reached_ns`: when this process's stream
reached it; `started_ns`: when its last member had reached it. The last three are NCCL's choice for
the first operation of the launch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phantora_ns.sim.graph import EventGraph, LaunchEnd, TimeExpression, Transfer, Vertex

FLUSH_LINES = 4096
"""Lines kept per client before they are written. Files are not kept open, because a run may have
thousands of them."""


def traced(ranks: Sequence[Sequence[int]] | None, rank: int) -> bool:
    """Whether a process of this rank (-1: no rank) is traced. `ranks` are inclusive ranges as in
    run.json; None means all."""
    return ranks is None or any(first <= rank <= last for first, last in ranks)


def times_of(number: int, vertex: Vertex, reached: TimeExpression | None) -> list[Any]:
    """The array of a vertex whose time is known."""
    if reached is None:
        return [number, vertex.time_ns]
    assert isinstance(vertex, (Transfer, LaunchEnd))
    first = vertex if isinstance(vertex, Transfer) else vertex.transfers[0]
    course = first.course
    assert course is not None
    choice = [course.algorithm, course.protocol, course.channels]
    return [number, vertex.time_ns, reached.reached()[0], vertex.start_ns, *choice]


class _Client:
    """The lines of one client that are not written yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []

    def take(self, number: int, vertex: Vertex, reached: TimeExpression | None) -> None:
        """The callback of the event graph for each final time. Raises OSError."""
        self.lines.append(json.dumps(times_of(number, vertex, reached)) + "\n")
        if len(self.lines) >= FLUSH_LINES:
            self.flush()

    def flush(self) -> None:
        """Writes the lines taken so far. Raises OSError."""
        with open(self.path, "a") as file:
            file.writelines(self.lines)
        self.lines.clear()


class TraceTimes:
    """Writes the times of every client that is traced; `ranks` as in run.json."""

    def __init__(
        self, run_dir: Path, graph: EventGraph, ranks: Sequence[Sequence[int]] | None
    ) -> None:
        self._folder = run_dir / "trace"
        self._graph = graph
        self._ranks = ranks
        self._clients: list[_Client] = []
        self._failed = False

    def join(self, number: int, rank: int, name: str) -> None:
        """Adds a client; `name` is that of its rank statistics, and of its files."""
        if traced(self._ranks, rank):
            client = _Client(self._folder / f"{name}.times")
            self._clients.append(client)
            self._graph.follow(number, lambda *final: self._guard(client.take, *final))

    def finish(self) -> None:
        """Ends the run: writes all times that are known."""
        self._graph.finish_following()
        for client in self._clients:
            self._guard(client.flush)

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Runs `action`. A full disk costs the traces, not the run."""
        if self._failed:
            return
        try:
            action(*arguments)
        except OSError as error:
            self._failed = True
            print(
                f"phantora-ns: the traces end here: {error.strerror}; {error.filename}; free some space there",
                file=sys.stderr,
                flush=True,
            )
