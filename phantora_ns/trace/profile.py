"""What a profiler inside of the job is told about a part of its process's log.

Why it exists: PyTorch's profiler stops while the job runs, and then wants to know when calls and GPU
work began and ended. Only the hub knows the times of vertices, and only this package knows what a log
means. So the hub asks here, and names and times are those of `--trace`. The reply goes to
libintercept/simulated/profiler/, which makes CUPTI's records of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phantora_ns.protocol import LogCall, LogComm, LogRecord, Moment
from phantora_ns.trace.describe import communication, describe, geometry
from phantora_ns.trace.log import Log, Signature, Work
from phantora_ns.trace.times import Times

KERNEL, COPY, FILL = 10, 1, 2
"""CUPTI's numbers of these kinds of activity."""
_CATEGORIES = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}
CALL_FIELDS, WORK_FIELDS = 3, 16
"""Integers per call (correlation, begin, end), and per piece of work (kind, correlation, name, device,
stream, begin, end, nine of `geometry`)."""
_GEOMETRY = WORK_FIELDS - 7


class ProfiledLog:
    """The log of one process, read on with each profile."""

    def __init__(self, path: Path, multiprocessors: int) -> None:
        self._path = path
        self._multiprocessors = multiprocessors
        self._read_to = 0
        self._texts: dict[int, str] = {}
        self._work: dict[int, tuple[int, str, tuple[int, ...]]] = {0: (KERNEL, "unknown work", ())}

    def read(self, since: int) -> Part:
        """The log from byte `since` to its end. Raises OSError, ValueError. O(records since the last
        call)."""
        log = Log(self._path)
        part = Part(self._texts, self._work)
        try:
            for kind, _thread, record in log.records(self._read_to):
                if kind == LogRecord.TEXT:
                    assert isinstance(record, tuple)
                    self._texts[record[0]] = record[1]
                elif isinstance(record, Signature):
                    described = describe(record, self._multiprocessors)
                    self._work[record.number] = (
                        _CATEGORIES[described.category],
                        described.name,
                        geometry(record),
                    )
                elif log.read_to > since and isinstance(record, (LogCall, Work, LogComm)):
                    part.records.append(record)
            self._read_to = max(self._read_to, log.read_to)
        finally:
            log.close()
        return part


class Part:
    """The calls, work and communication of one profile, in the order of the log."""

    def __init__(
        self, texts: dict[int, str], work: dict[int, tuple[int, str, tuple[int, ...]]]
    ) -> None:
        self.records: list[LogCall | Work | LogComm] = []
        self._texts, self._work = texts, work
        self._names: dict[str, int] = {}
        self._ends: dict[tuple[int, int], int] = {}

    def vertices(self) -> set[int]:
        """Every vertex that the part names."""
        named: set[int] = set()
        for record in self.records:
            if isinstance(record, LogCall):
                named.update((record.begin.vertex, record.end.vertex))
            elif isinstance(record, LogComm):
                named.add(record.vertex)
            else:
                named.update(term[0] for term in record.terms)
        return named

    def rows(self, known: Sequence[Sequence[Any]]) -> list[Any]:
        """[names, calls, work], as PROFILE's reply has them. `known`: the times of vertices, as in a
        times file. What has no time is left out. O(n log n)."""
        times = Times(known)
        calls: list[int] = []
        work: list[int] = []
        for record in self.records:
            if isinstance(record, LogCall):
                begin_ns, end_ns = _at(times, record.begin), _at(times, record.end)
                if begin_ns is not None and end_ns is not None:
                    calls += (record.correlation, begin_ns, max(begin_ns, end_ns))
            elif isinstance(record, LogComm):
                work += self._communication(times, record)
            else:
                work += self._piece(times, record)
        return [list(self._names), calls, work]

    def _piece(self, times: Times, work: Work) -> Sequence[int]:
        what = work.logged
        span = times.span(work.terms, what.duration, what.contention)
        kind, name, facts = self._work[what.signature]
        lane = what.device, what.stream
        return self._row(kind, what.correlation, name, lane, span, facts)

    def _communication(self, times: Times, comm: LogComm) -> Sequence[int]:
        launch, end_ns = times.launch(comm.vertex), times.vertex(comm.vertex)
        if launch is None or end_ns is None:
            return ()
        name, _ = communication(comm, launch, "")
        facts = 0, 0, 0, max(launch.channels, 1), 1, 1
        span = launch.reached_ns, end_ns
        return self._row(KERNEL, comm.correlation, name, (comm.device, comm.stream), span, facts)

    def _row(
        self,
        kind: int,
        correlation: int,
        name: str,
        lane: tuple[int, int],
        span: tuple[int, int] | None,
        facts: tuple[int, ...],
    ) -> Sequence[int]:
        if span is None:
            return ()
        # as collect.py: work never begins before the end of the work ahead of it on its stream
        begin_ns = max(span[0], self._ends.get(lane, 0))
        end_ns = self._ends[lane] = max(begin_ns, span[1])
        number = self._names.setdefault(name, len(self._names))
        facts = (facts + (0,) * _GEOMETRY)[:_GEOMETRY]
        return kind, correlation, number, *lane, begin_ns, end_ns, *facts


def _at(times: Times, moment: Moment) -> int | None:
    time_ns = times.vertex(moment.vertex)
    return None if time_ns is None else max(0, time_ns + moment.offset)
