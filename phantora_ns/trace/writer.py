"""Writes one rank's Kineto trace from its log and the final times of its nodes.

Why it exists: a simulated run should be looked at with the tools that real runs are looked at with:
PyTorch's own trace format, as Kineto writes it, with what Holistic Trace Analysis and Perfetto need
of it (docs/traces.md). Events go through a sorter and straight into the file, so that memory does
not grow with the run.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from phantora_ns.protocol import LogCall, LogComm, LogOperator, LogRecord, Moment, OperatorKind
from phantora_ns.trace.describe import Described, communication, describe
from phantora_ns.trace.log import Log, Signature, Work
from phantora_ns.trace.sort import EventSorter
from phantora_ns.trace.times import Times

COMPRESSION = 4  # a third of the time of 9 for a tenth more bytes
_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset")
_BATCH = 2000
_SMALL_PID = 64  # processes of nodes have small numbers, and GPUs' "processes" are numbered from 0
_SORT_GPU = 5_000_000  # Kineto shows GPUs below all processes


@dataclass(frozen=True)
class Gpu:
    """What a trace says of the GPUs; `properties` as Kineto's deviceProperties, without the id."""

    properties: dict[str, Any]
    count: int


@dataclass
class Written:
    """What became of one trace. Events whose time was never known (`unknown`) are left out;
    `squeezed` are pieces of GPU work that the graph would let begin before the one before them had
    ended, by `squeezed_ns` in all: they begin later."""

    path: Path
    events: int = 0
    unknown: int = 0
    squeezed: int = 0
    squeezed_ns: int = 0
    steps: int = 0
    busy_ns: Counter = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """For the trace itself, and for who has it written."""
        return {
            "events": self.events,
            "leftOutEvents": self.unknown,
            "squeezedKernels": self.squeezed,
            "squeezedNanoseconds": self.squeezed_ns,
            "steps": self.steps,
        }


def write_trace(
    log: Log, times: Times, path: Path, gpu: Gpu, steps: tuple[int, int | None] | None
) -> Written:
    """Writes the trace of `log` to `path` (.json.gz), whole or not at all; `steps` as in
    TraceOptions.

    Raises OSError; ValueError when the log is damaged, or the steps were not reached.
    """
    events = _Events(log, times, gpu, steps, path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        events.collect()
        with gzip.open(partial, "wt", compresslevel=COMPRESSION, encoding="utf-8") as file:
            batch: list[str] = []
            for text in events.texts():
                batch.append(text)
                if len(batch) >= _BATCH:
                    file.write("".join(batch))
                    batch.clear()
            file.write("".join(batch))
        partial.replace(path)
    finally:
        events.sorter.close()
        partial.unlink(missing_ok=True)
    return events.written


def _us(nanoseconds: int) -> str:
    """Microseconds with three decimals, as Kineto writes them; exact."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


class _Events:
    """The events of one trace on their way into the sorter."""

    def __init__(
        self, log: Log, times: Times, gpu: Gpu, steps: tuple[int, int | None] | None, path: Path
    ) -> None:
        self.log, self.times, self.gpu, self.steps = log, times, gpu, steps
        self.written = Written(path)
        self.sorter = EventSorter(path.parent)
        shift = 0 if log.start.pid >= _SMALL_PID else 1000
        self._pid, self._shift = log.start.pid + shift, shift
        self._texts: dict[int, str] = {}
        self._quoted: dict[int, str] = {0: '""'}
        self._work: dict[int, Described] = {0: Described("unknown work [simulated]", "kernel", "")}
        self._threads: dict[int, tuple[int, str]] = {}
        self._streams: dict[tuple[int, int], int] = {}  # (device, stream) -> end of its last work
        self._groups: dict[str, dict] = {}
        self._waiting: dict[
            int, list[Work]
        ] = {}  # by correlation: the call that launched it is logged when it ends
        self._last_call: dict[int, tuple[int, bool]] = {}
        self._first_ns: int | None = None
        self._last_ns = 0
        self._window = (0, None)

    # ---- collecting ----

    def collect(self) -> None:
        """Reads the log into the sorter."""
        marks = {
            number: (self._at(moment), thread)
            for number, (moment, thread) in self.log.steps().items()
        }
        if self.steps is not None:
            first, end = self.steps
            begins_ns = 0 if first == 0 else marks[first][0] if first in marks else None
            ends_ns = marks[end][0] if end is not None and end in marks else None
            if begins_ns is None:
                made = max(marks, default=0)
                raise ValueError(
                    f"step {first} was not reached: this rank made {made} step{'' if made == 1 else 's'}"
                )
            self._window = (begins_ns, ends_ns)
        take = {
            LogRecord.CALL: self._call,
            LogRecord.WORK: self._launched,
            LogRecord.COMM: self._communication,
            LogRecord.OPERATOR: self._operator,
            LogRecord.TEXT: self._text,
            LogRecord.SIGNATURE: self._signature,
            LogRecord.THREAD: self._thread,
        }
        for kind, thread, record in self.log.records():
            take[kind](thread, record)
        for works in self._waiting.values():  # killed inside the call
            for work in works:
                self._gpu_work(work)
        self._steps(marks)
        self.written.events = self.sorter.count

    def _text(self, _thread: int, text: tuple[int, str]) -> None:
        self._texts[text[0]] = text[1]
        self._quoted[text[0]] = json.dumps(text[1])

    def _signature(self, _thread: int, signature: Signature) -> None:
        described = describe(signature, self.gpu.properties["numSms"])
        self._work[signature.number] = Described(
            json.dumps(described.name),
            described.category,
            described.arguments,
            described.size_bytes,
        )

    def _thread(self, thread: int, named: tuple[int, str]) -> None:
        self._threads[thread] = (named[0] + self._shift, named[1])

    def _at(self, moment: Moment) -> int | None:
        time_ns = self.times.vertex(moment.vertex)
        return None if time_ns is None else max(0, time_ns + moment.offset)

    def _host_span(self, record: LogCall | LogOperator) -> tuple[int, int] | None:
        begin_ns, end_ns = self._at(record.begin), self._at(record.end)
        if begin_ns is None or end_ns is None:
            self.written.unknown += 1
            return None
        first, end = self._window
        if begin_ns < first or (end is not None and begin_ns >= end):
            return None
        self._seen(begin_ns, end_ns)
        return begin_ns, max(begin_ns, end_ns)

    def _seen(self, begin_ns: int, end_ns: int) -> None:
        self._first_ns = begin_ns if self._first_ns is None else min(self._first_ns, begin_ns)
        self._last_ns = max(self._last_ns, end_ns)

    def _add(
        self,
        category: str,
        quoted: str,
        where: tuple[int, int],
        span: tuple[int, int],
        arguments: str,
    ) -> None:
        begin_ns, end_ns = span
        self.sorter.add(
            begin_ns,
            end_ns - begin_ns,
            f'{{"ph": "X", "cat": "{category}", "name": {quoted}, "pid": {where[0]}, "tid": {where[1]}, '
            f'"ts": {_us(begin_ns)}, "dur": {_us(end_ns - begin_ns)}, "args": {{{arguments}}}}}',
        )

    def _flow(self, phase: str, number: int, where: tuple[int, int], at_ns: int) -> None:
        ends = ', "bp": "e"' if phase == "f" else ""
        self.sorter.add(
            at_ns,
            0,
            f'{{"ph": "{phase}", "id": {number}, "pid": {where[0]}, "tid": {where[1]}, '
            f'"ts": {_us(at_ns)}, "cat": "ac2g", "name": "ac2g"{ends}}}',
        )

    def _host(self, thread: int) -> tuple[int, int]:
        return self._pid, self._threads[thread][0]

    def _call(self, thread: int, call: LogCall) -> None:
        works = self._waiting.pop(call.correlation, ())
        span = self._host_span(call)
        self._last_call[thread] = (call.correlation, span is not None)
        if span is None:
            return
        name = self._texts[call.name]
        external = f'"External id": {call.external}, ' if call.external else ""
        self._add(
            "cuda_runtime" if name.startswith("cuda") else "cuda_driver",
            self._quoted[call.name],
            self._host(thread),
            span,
            f'{external}"correlation": {call.correlation}',
        )
        if name.startswith(_LAUNCHES):
            self._flow("s", call.correlation, self._host(thread), span[0])
        for work in works:
            self._gpu_work(work)

    def _operator(self, thread: int, operator: LogOperator) -> None:
        span = self._host_span(operator)
        if span is None:
            return
        quoted = self._quoted[operator.name]
        if operator.kind == OperatorKind.USER and quoted.startswith('"ProfilerStep#'):
            # steps are counted in one way, whether the job profiles itself or not
            quoted = f'"job: {quoted[1:]}'
        self._add(
            "user_annotation" if operator.kind == OperatorKind.USER else "cpu_op",
            quoted,
            self._host(thread),
            span,
            f'"External id": {operator.external}',
        )

    def _launched(self, _thread: int, work: Work) -> None:
        if work.logged.correlation:
            self._waiting.setdefault(work.logged.correlation, []).append(work)
        else:
            self._gpu_work(work)

    def _place(
        self, where: tuple[int, int], span: tuple[int, int] | None
    ) -> tuple[int, int] | None:
        """`span`, no sooner than the stream's work before it has ended; counts what had to be moved
        or left out."""
        if span is None:
            self.written.unknown += 1
            return None
        begin_ns, end_ns = span
        before_ns = self._streams.get(where, 0)
        if begin_ns < before_ns:
            self.written.squeezed += 1
            self.written.squeezed_ns += before_ns - begin_ns
            begin_ns, end_ns = before_ns, max(before_ns, end_ns)
        self._streams[where] = end_ns
        self._seen(begin_ns, end_ns)
        return begin_ns, end_ns

    def _gpu_event(
        self,
        category: str,
        quoted: str,
        where: tuple[int, int],
        span: tuple[int, int],
        external: int,
        correlation: int,
        arguments: str,
    ) -> None:
        head = f'"External id": {external}, ' if external else ""
        queued = '"queued": 0, ' if category == "kernel" else ""
        self._add(
            category,
            quoted,
            where,
            span,
            f'{head}{queued}"device": {where[0]}, "context": 1, "stream": {where[1]}, '
            f'"correlation": {correlation}{arguments}',
        )
        if correlation:
            self._flow("f", correlation, where, span[0])

    def _gpu_work(self, placed: Work) -> None:
        work = placed.logged
        where = (work.device, work.stream)
        span = self._place(where, self.times.span(placed.terms, work.duration, work.contention))
        if span is None:
            return
        described = self._work[work.signature]
        arguments = described.arguments
        if described.size_bytes and span[1] > span[0]:
            arguments += (
                f', "memory bandwidth (GB/s)": {described.size_bytes / (span[1] - span[0])}'
            )
        self._gpu_event(
            described.category,
            described.name,
            where,
            span,
            work.external,
            work.correlation,
            f'{arguments}, "alone (ns)": {work.duration}, "source": {work.source}',
        )
        self.written.busy_ns[where] += work.duration

    def _communication(self, thread: int, comm: LogComm) -> None:
        correlation, inside = self._last_call.get(thread, (0, True))
        if correlation == comm.correlation and not inside:
            return
        launch, end_ns = self.times.launch(comm.vertex), self.times.vertex(comm.vertex)
        where = (comm.device, comm.stream)
        if launch is None or end_ns is None:
            self.written.unknown += 1
            return
        span = self._place(where, (launch.reached_ns, end_ns))
        description = self._texts.get(comm.description, "")
        self._group(description)
        name, arguments = communication(comm, launch, description)
        self._gpu_event(
            "kernel", json.dumps(name), where, span, comm.external, comm.correlation, arguments
        )

    def _group(self, description: str) -> None:
        if not description or description in self._groups:
            return
        said = json.loads(f"{{{description}}}")
        self._groups[description] = {
            "pg_name": said["Process Group Name"],
            "pg_desc": said["Process Group Description"],
            "backend_config": "cuda:nccl",
            "pg_size": said["Group size"],
            "ranks": said["Process Group Ranks"],
        }

    def _steps(self, marks: dict[int, tuple[int | None, int]]) -> None:
        threads = {number: thread for number, (_, thread) in marks.items()}
        begins = {number: at_ns for number, (at_ns, _) in marks.items() if at_ns is not None}
        if not marks:
            if self._first_ns is not None and self._threads:
                self._step(
                    0,
                    min(self._threads),
                    (self._first_ns, self._last_ns),
                    "the whole run: no optimizer's step was seen",
                )
            return
        begins[0] = 0
        threads[0] = threads[min(threads)]
        first, end = self.steps or (0, None)
        for number in sorted(begins):
            if number + 1 in begins and first <= number and (end is None or number < end):
                self._step(
                    number,
                    threads[number],
                    (begins[number], begins[number + 1]),
                    "to the end of the optimizer's step",
                )

    def _step(self, number: int, thread: int, span: tuple[int, int], how: str) -> None:
        self._add(
            "user_annotation",
            f'"ProfilerStep#{number}"',
            self._host(thread),
            span,
            f'"step": "{how}"',
        )
        self.written.steps += 1

    # ---- writing ----

    def texts(self) -> Iterator[str]:
        """The whole file, in pieces."""
        start = self.log.start
        groups = {}
        for group in self._groups.values():
            ranks = group["ranks"]
            groups[group["pg_name"]] = group | {
                "ranks": ranks if "..." in ranks else json.loads(ranks)
            }
        top = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": device, **self.gpu.properties} for device in range(self.gpu.count)],
            # HTA finds the rank by a regular expression that wants the space after the colon
            "distributedInfo": {"backend": "nccl", "rank": max(start.rank, 0), "world_size": max(start.world_size, 1),
                                "pg_count": len(groups), "pg_config": list(groups.values()), "nccl_version": "2.28.9"},
            "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceName": self.written.path.name,
            "phantora-ns": self.written.summary(),
        }  # fmt: skip
        yield json.dumps(top)[:-1] + ', "traceEvents": [\n'
        between = ""
        for text in chain(self._metadata(), self.sorter.texts()):
            yield between + text
            between = ",\n"
        yield "\n]}\n"

    def _metadata(self) -> Iterator[str]:
        def event(what: str, pid: int, tid: int, **arguments) -> str:
            return json.dumps(
                {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": arguments}
            )

        start = self.log.start
        yield event(
            "process_name", self._pid, 0, name=f"rank {start.rank} on node-{max(start.node, 0)}"
        )
        yield event("process_labels", self._pid, 0, labels="CPU")
        yield event("process_sort_index", self._pid, 0, sort_index=self._pid)
        for device in sorted({device for device, _ in self._streams}):
            yield event(
                "process_name", device, 0, name=f"rank {start.rank} on node-{max(start.node, 0)}"
            )
            yield event("process_labels", device, 0, labels=f"GPU {device}")
            yield event("process_sort_index", device, 0, sort_index=_SORT_GPU + device)
        for device, stream in sorted(self._streams):
            yield event("thread_name", device, stream, name=f"stream {stream}")
            yield event("thread_sort_index", device, stream, sort_index=stream)
        for tid, name in sorted(self._threads.values()):
            yield event("thread_name", self._pid, tid, name=f"thread {tid} ({name})")
            yield event("thread_sort_index", self._pid, tid, sort_index=tid)
