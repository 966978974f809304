"""Turns the log of one process's work into the events of its trace.

Why it exists: a log has records in the order of the calls. They refer to vertices, whose times are
known only after the run. Here each record gets its time, GPU work is put in order on its stream, and
calls, operators and GPU work are connected. Events go into a sorter, so that memory does not grow
with the run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora_ns.protocol import (
    LogCall,
    LogComm,
    LogMemory,
    LogOperator,
    LogRecord,
    Moment,
    OperatorKind,
)
from phantora_ns.trace.describe import Described, communication, describe
from phantora_ns.trace.events import (
    Lane,
    Span,
    add_arrow_end,
    add_event,
    add_gpu_event,
    add_instant,
)
from phantora_ns.trace.log import Log, Signature, Work
from phantora_ns.trace.sort import EventSorter
from phantora_ns.trace.times import Times

_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset")
_NONE = '""'
_SMALL_PID = 64
"""PIDs below this are shifted, because a trace numbers GPUs as "processes" 0, 1, ... Processes in
a PID namespace of their own have such small PIDs."""


@dataclass
class Written:
    """What became of one trace.

    `unknown`: events left out because their time was never known. `squeezed`: pieces of GPU work that
    would have begun before the previous work on their stream ended; they are moved behind it, by
    `squeezed_ns` in total.
    """

    path: Path
    events: int = 0
    unknown: int = 0
    squeezed: int = 0
    squeezed_ns: int = 0
    steps: int = 0
    busy_ns: Counter = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """For the trace itself, and for the launcher's message."""
        return {
            "events": self.events,
            "leftOutEvents": self.unknown,
            "squeezedKernels": self.squeezed,
            "squeezedNanoseconds": self.squeezed_ns,
            "steps": self.steps,
        }


class Collector:
    """Collects the events of one trace in `sorter`."""

    def __init__(
        self,
        log: Log,
        times: Times,
        multiprocessors: int,
        steps: tuple[int, int | None] | None,
        path: Path,
    ) -> None:
        """`steps` as in TraceOptions; `path`: where the trace goes. Temporary files go there too."""
        self.log, self.times = log, times
        self._multiprocessors, self._traced_steps = multiprocessors, steps
        self.written = Written(path)
        self.sorter = EventSorter(path.parent)
        shift = 0 if log.start.pid >= _SMALL_PID else 1000
        self.pid, self._shift = log.start.pid + shift, shift
        self._texts: dict[int, str] = {}
        self._quoted: dict[int, str] = {0: '""'}
        self._work: dict[int, Described] = {0: Described("unknown work [simulated]", "kernel", "")}
        self.threads: dict[int, tuple[int, str]] = {}
        """(number in the trace, name) of each thread."""
        self.streams: dict[Lane, int] = {}
        """When the last work of each stream ended, ns."""
        self.groups: dict[str, dict] = {}
        """Process groups, by PyTorch's description of them."""
        # Work waits here, by its correlation number, for the call that launched it, because a call is
        # logged when it ends.
        self._waiting: dict[int, list[Work]] = {}
        self._last_call: dict[int, tuple[int, bool]] = {}
        self._allocated = self._memories = 0
        self._first_ns: int | None = None
        self._last_ns = 0
        self._window: tuple[int, int | None] = (0, None)

    def collect(self) -> None:
        """Reads the log into the sorter."""
        marks = {
            number: (self._at(moment), thread)
            for number, (moment, thread) in self.log.steps().items()
        }
        self._set_window(marks)
        take = {
            LogRecord.CALL: self._call,
            LogRecord.WORK: self._launched,
            LogRecord.COMM: self._communication,
            LogRecord.OPERATOR: self._operator,
            LogRecord.MEMORY: self._memory,
            LogRecord.TEXT: self._text,
            LogRecord.SIGNATURE: self._signature,
            LogRecord.THREAD: self._thread,
        }
        for kind, thread, record in self.log.records():
            take[kind](thread, record)
        for pieces in self._waiting.values():  # the process was killed inside the call
            for work in pieces:
                self._gpu_work(work)
        self._steps(marks)
        self.written.events = self.sorter.count

    def _set_window(self, marks: Mapping[int, tuple[int | None, int]]) -> None:
        """Computes the time window of the traced steps; events outside it are dropped."""
        if self._traced_steps is None:
            return
        first, end = self._traced_steps
        begins_ns = 0 if first == 0 else marks[first][0] if first in marks else None
        ends_ns = marks[end][0] if end is not None and end in marks else None
        if begins_ns is None:
            made = max(marks, default=0)
            steps = f"{made} step{'' if made == 1 else 's'}"
            raise ValueError(f"step {first} was not reached: this rank made {steps}")
        self._window = (begins_ns, ends_ns)

    def _text(self, _thread: int, text: tuple[int, str]) -> None:
        self._texts[text[0]] = text[1]
        self._quoted[text[0]] = json.dumps(text[1])

    def _signature(self, _thread: int, signature: Signature) -> None:
        described = describe(signature, self._multiprocessors)
        self._work[signature.number] = Described(
            json.dumps(described.name),
            described.category,
            described.arguments,
            described.size_bytes,
        )

    def _thread(self, thread: int, named: tuple[int, str]) -> None:
        self.threads[thread] = (named[0] + self._shift, named[1])

    def _at(self, moment: Moment) -> int | None:
        time_ns = self.times.vertex(moment.vertex)
        return None if time_ns is None else max(0, time_ns + moment.offset)

    def _host_span(self, record: LogCall | LogOperator) -> Span | None:
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

    def _host(self, thread: int) -> Lane:
        return self.pid, self.threads[thread][0]

    def _call(self, thread: int, call: LogCall) -> None:
        pieces = self._waiting.pop(call.correlation, ())
        span = self._host_span(call)
        self._last_call[thread] = (call.correlation, span is not None)
        if span is None:
            return
        name = self._texts[call.name]
        external = f'"External id": {call.external}, ' if call.external else ""
        add_event(
            self.sorter,
            "cuda_runtime" if name.startswith("cuda") else "cuda_driver",
            self._quoted[call.name],
            self._host(thread),
            span,
            f'{external}"correlation": {call.correlation}',
        )
        if name.startswith(_LAUNCHES):
            add_arrow_end(self.sorter, "s", call.correlation, self._host(thread), span[0])
        for work in pieces:
            self._gpu_work(work)

    def _operator(self, thread: int, operator: LogOperator) -> None:
        span = self._host_span(operator)
        if span is None:
            return
        quoted = self._quoted[operator.name]
        if operator.kind == OperatorKind.USER and quoted.startswith('"ProfilerStep#'):
            # The trace has its own step marks, so that steps count the same with and without a
            # profiler in the job.
            quoted = f'"job: {quoted[1:]}'
        add_event(
            self.sorter,
            "user_annotation" if operator.kind == OperatorKind.USER else "cpu_op",
            quoted,
            self._host(thread),
            span,
            f'"External id": {operator.external}',
        )

    def _memory(self, thread: int, memory: LogMemory) -> None:
        at_ns = self._at(memory.at)
        first, end = self._window
        if at_ns is None:
            self.written.unknown += 1
            return
        before, self._allocated = self._allocated, memory.allocated
        self._memories += 1
        if at_ns < first or (end is not None and at_ns >= end):
            return
        add_instant(
            self.sorter,
            "[memory]",
            self._host(thread),
            at_ns,
            f'"Ev Idx": {self._memories}, "Device Type": 1, "Device Id": {memory.device}, '
            f'"Bytes": {memory.allocated - before}, '
            f'"Total Allocated": {memory.allocated}, "Total Reserved": {memory.reserved}, '
            f'"Peak Allocated": {memory.peak}, "Operator": {self._quoted.get(memory.name, _NONE)}',
        )

    def _launched(self, _thread: int, work: Work) -> None:
        if work.logged.correlation:
            self._waiting.setdefault(work.logged.correlation, []).append(work)
        else:
            self._gpu_work(work)

    def _in_order(self, lane: Lane, span: Span | None) -> Span | None:
        """`span`, moved behind the end of the stream's previous work. Counts work that was moved and
        work without a time."""
        if span is None:
            self.written.unknown += 1
            return None
        begin_ns, end_ns = span
        before_ns = self.streams.get(lane, 0)
        if begin_ns < before_ns:
            self.written.squeezed += 1
            self.written.squeezed_ns += before_ns - begin_ns
            begin_ns, end_ns = before_ns, max(before_ns, end_ns)
        self.streams[lane] = end_ns
        self._seen(begin_ns, end_ns)
        return begin_ns, end_ns

    def _gpu_work(self, placed: Work) -> None:
        work = placed.logged
        lane = (work.device, work.stream)
        span = self._in_order(lane, self.times.span(placed.terms, work.duration, work.contention))
        if span is None:
            return
        described = self._work[work.signature]
        arguments = described.arguments
        if described.size_bytes and span[1] > span[0]:
            arguments += (
                f', "memory bandwidth (GB/s)": {described.size_bytes / (span[1] - span[0])}'
            )
        add_gpu_event(
            self.sorter,
            described.category,
            described.name,
            lane,
            span,
            external=work.external,
            correlation=work.correlation,
            arguments=f'{arguments}, "alone (ns)": {work.duration}, "source": {work.source}',
        )
        self.written.busy_ns[lane] += work.duration

    def _communication(self, thread: int, comm: LogComm) -> None:
        correlation, inside = self._last_call.get(thread, (0, True))
        if correlation == comm.correlation and not inside:
            return
        launch, end_ns = self.times.launch(comm.vertex), self.times.vertex(comm.vertex)
        lane = (comm.device, comm.stream)
        if launch is None or end_ns is None:
            self.written.unknown += 1
            return
        span = self._in_order(lane, (launch.reached_ns, end_ns))
        description = self._texts.get(comm.description, "")
        self._group(description)
        name, arguments = communication(comm, launch, description)
        add_gpu_event(
            self.sorter,
            "kernel",
            json.dumps(name),
            lane,
            span,
            external=comm.external,
            correlation=comm.correlation,
            arguments=arguments,
        )

    def _group(self, description: str) -> None:
        if not description or description in self.groups:
            return
        about = json.loads(f"{{{description}}}")
        self.groups[description] = {
            "pg_name": about["Process Group Name"],
            "pg_desc": about["Process Group Description"],
            "backend_config": "cuda:nccl",
            "pg_size": about["Group size"],
            "ranks": about["Process Group Ranks"],
        }

    def _steps(self, marks: dict[int, tuple[int | None, int]]) -> None:
        threads = {number: thread for number, (_, thread) in marks.items()}
        begins = {number: at_ns for number, (at_ns, _) in marks.items() if at_ns is not None}
        if not marks:
            if self._first_ns is not None and self.threads:
                self._step(
                    0,
                    min(self.threads),
                    (self._first_ns, self._last_ns),
                    "the whole run: no optimizer's step was seen",
                )
            return
        begins[0] = 0
        threads[0] = threads[min(threads)]
        first, end = self._traced_steps or (0, None)
        for number in sorted(begins):
            if number + 1 in begins and first <= number and (end is None or number < end):
                self._step(
                    number,
                    threads[number],
                    (begins[number], begins[number + 1]),
                    "to the end of the optimizer's step",
                )

    def _step(self, number: int, thread: int, span: Span, how: str) -> None:
        add_event(
            self.sorter,
            "user_annotation",
            f'"ProfilerStep#{number}"',
            self._host(thread),
            span,
            f'"step": "{how}"',
        )
        self.written.steps += 1
