"""Profiles inside of the job: what PROFILE asks for.

Why it exists: the client has logged its calls and work from some byte of its log on, together with the
expressions that give their times. The vertices of these are in the event graph. The log is read here,
and the answer waits, as that of TIMES does, until their times are final.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phantora_ns.hub.decoding import BadMessage
from phantora_ns.hub.registry import Client
from phantora_ns.hub.requests import Profiling
from phantora_ns.hub.trace_times import times_of
from phantora_ns.sim.graph import EventGraph
from phantora_ns.trace.profile import ProfiledLog

FOLDERS = ("trace", "profile")
"""Where a process's log may be, under RUN_DIR: the first if it is traced."""


class Profiles:
    """The logs of the clients that profile themselves."""

    def __init__(self, run_dir: Path, graph: EventGraph, multiprocessors: int) -> None:
        self._run_dir = run_dir
        self._graph = graph
        self._multiprocessors = multiprocessors
        self._logs: dict[int, ProfiledLog] = {}

    def request(self, client: Client, number: int, since: int) -> Profiling:
        """The request for what `client` has logged since byte `since`. Raises BadMessage."""
        try:
            part = self._log(client).read(since)
        except (OSError, ValueError) as error:
            raise BadMessage(f"the log of a profile cannot be read: {error}", number) from None
        live = {vertex for vertex, _ in self._graph.vertices(client.number)}
        expressions = [
            self._graph.expression(client.number, [vertex, 0, 0])
            for vertex in sorted(part.vertices() & live)
        ]

        def rows() -> list[Any]:
            return part.rows([times_of(*one) for one in self._graph.known(client.number)])

        return Profiling(client, number, expressions, rows)

    def _log(self, client: Client) -> ProfiledLog:
        log = self._logs.get(client.number)
        if log is None:
            paths = [self._run_dir / folder / f"{client.shm}.log" for folder in FOLDERS]
            path = next((path for path in paths if path.exists()), paths[-1])
            log = self._logs[client.number] = ProfiledLog(path, self._multiprocessors)
        return log
