"""Reads a Kineto trace into what an analysis needs: steps, and all GPU activity with the operator
that launched it.

Why it exists: traces of real runs (torch.profiler) and of simulated ones (`--trace`) have one form,
and every comparison must see the same things in both. Times are integer nanoseconds. Kineto writes
microseconds with three decimals, which are exact when they are read as decimals. So the parts of a
step add up to the step to the nanosecond.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Any

from phantora_ns.compressed import read_text

GPU_CATEGORIES = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
HOST_CATEGORIES = frozenset(("cuda_runtime", "cuda_driver"))
STEP = re.compile(r"ProfilerStep#(\d+)")
COMMUNICATION = "ncclDevKernel"
# what PyTorch calls a collective in `Collective name` -> what NCCL and nccl-tests call it
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "_allgather_base": "all_gather",
    "all_gather": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "send": "send",
    "recv": "recv",
    "gather": "gather",
    "scatter": "scatter",
}
KERNEL_COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "SendRecv": "send_recv",
    "AlltoAll": "all_to_all",
}
ITEM_BYTES = {
    "BFloat16": 2,
    "Half": 2,
    "Float": 4,
    "Double": 8,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
}


TOO_LARGE = 2**63
"""Times, in ns, and all other numbers are less: since 1970 there are 1.8e18 ns."""
MOST_SHOWN = 60  # characters of a wrong value


class TraceError(Exception):
    """A file that is not a Kineto trace with GPU activity; str() is one line that says which and
    why."""


@dataclass(frozen=True, slots=True)
class Collective:
    """`name` as NCCL has it. `size_bytes` as nccl-tests counts it (the whole buffer) and `members`,
    the number of ranks in the group, are None when the trace does not say."""

    name: str
    size_bytes: int | None
    members: int | None

    def bus_bytes(self) -> float | None:
        """Bytes that the busiest link carries: the size times nccl-tests' factor (its
        doc/PERFORMANCE.md)."""
        if self.size_bytes is None or self.members is None or self.members < 1:
            return None
        ring = (self.members - 1) / self.members
        factor = {
            "all_reduce": 2 * ring,
            "all_gather": ring,
            "reduce_scatter": ring,
            "all_to_all": ring,
        }.get(self.name, 1.0)
        return self.size_bytes * factor


@dataclass(frozen=True, slots=True)
class Activity:
    """One kernel, copy or fill on the GPU, from `start_ns` to `end_ns`.

    `launched_ns`: when the host call that launched it began, None when the trace does not say.
    `operator`: the innermost framework operator (or annotation) around that call, "" without one.
    `instance` tells the operator's calls apart. `shapes`: the dimensions of its inputs as text, ""
    when they were not recorded. `source`: where a simulated duration comes from (protocol.Source);
    None in a trace of a real GPU.
    """

    name: str
    category: str
    stream: int
    start_ns: int
    end_ns: int
    launched_ns: int | None = None
    operator: str = ""
    instance: int | None = None
    shapes: str = ""
    grid: tuple[int, ...] = ()
    collective: Collective | None = None
    source: int | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the job. `number` is ProfilerStep's; None when the trace has no steps and this is
    the whole trace.

    If all work launched in the host's ProfilerStep ends within it, the step is that span: the loop
    synchronises before the next step. If work continues beyond it, the host's borders are not the
    GPU's. A step then goes from the start of the first activity launched in it to the start of the
    first activity launched in the next one.
    """

    number: int | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Trace:
    """`activities` in the order in which they were launched; `steps` in time order, at least
    one. `endless`: the number of a last step that is left out of them, because its end is not known."""

    path: str
    rank: int | None
    steps: tuple[Step, ...]
    activities: tuple[Activity, ...]
    endless: int | None = None


def read_events(path: Path | str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The file's top level and its complete events (`ph` X), fractions as Decimal. Raises
    TraceError."""
    path = Path(path)
    try:
        content = json.loads(read_text(path), parse_float=Decimal)
        events = content["traceEvents"]
        complete = [event for event in events if event.get("ph") == "X"]
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise TraceError(f"{path}: not a Kineto trace: {type(error).__name__}: {error}") from error
    return content, complete


def nanoseconds(microseconds: int | float | str | Decimal) -> int:
    """Microseconds as whole nanoseconds, rounded. Raises ValueError when it is not a number, or when the
    result does not fit into 64 bits (signed)."""
    try:
        found = int((Decimal(microseconds) * 1000).to_integral_value())
    except (InvalidOperation, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{_shown(microseconds)} is no time") from error
    if abs(found) >= TOO_LARGE:
        raise ValueError(f"{_shown(microseconds)} us is no time of a trace")
    return found


def _shown(value: object) -> str:
    """The value as text for an error message, shortened so that the message stays one line."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."


def _number(value: Any, what: str) -> int:
    """Raises ValueError when `value` is no whole number of 64 bits."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{what} is {_shown(value)}, which is no number") from error
    if abs(found) >= TOO_LARGE:
        raise ValueError(f"{what} is {_shown(value)}, which is too large")
    return found


def _number_or_none(value: Any, what: str) -> int | None:
    return None if value is None else _number(value, what)


def _name(event: dict[str, Any]) -> str:
    """Raises ValueError when the event's name is no text."""
    name = event["name"]
    if not isinstance(name, str):
        raise ValueError(f"an event's name is {_shown(name)}")
    return name


def _span(event: dict[str, Any]) -> tuple[int, int]:
    start, length = nanoseconds(event["ts"]), nanoseconds(event.get("dur", 0))
    if length < 0:
        raise ValueError(f"{event.get('name')!r} takes {event['dur']} us")
    return start, start + length


def collective_of(name: str, arguments: dict[str, Any]) -> Collective:
    """What a communication kernel does: from its arguments if PyTorch wrote any, else from its
    name."""
    members = _number_or_none(arguments.get("Group size"), "Group size")
    stated = COLLECTIVES.get(str(arguments.get("Collective name", "")))
    if stated is None:
        match = re.match(rf"{COMMUNICATION}_([A-Za-z]+)", name)
        return Collective(
            KERNEL_COLLECTIVES.get(match[1], match[1]) if match else name, None, members
        )
    elements = max(
        _number(arguments.get(name, 0), name) for name in ("In msg nelems", "Out msg nelems")
    )
    item = ITEM_BYTES.get(str(arguments.get("dtype")))
    return Collective(stated, elements * item if item else None, members)


class _Operators:
    """Framework operators, found by their external id, or by thread and time for launches without an
    id."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.by_id: dict[int, tuple[str, int, str]] = {}
        threads: dict[tuple[Any, Any], list[tuple[int, int, int, str, str]]] = defaultdict(list)
        # Annotations first: an operator with the same id overwrites them, because it says more.
        for event in sorted(events, key=lambda e: e["cat"] == "cpu_op"):
            arguments = event.get("args", {})
            number = arguments.get("External id")
            name = _name(event)
            if STEP.match(name):
                continue
            start, end = _span(event)
            number = _number_or_none(number, "External id")
            shapes = arguments.get("Input Dims")
            text = json.dumps(shapes, default=str) if shapes else ""
            if number is not None:
                self.by_id[number] = (name, number, text)
            threads[event.get("pid"), event.get("tid")].append(
                (start, -end, -1 if number is None else number, name, text)
            )
        self.threads = {}
        for thread, spans in threads.items():
            spans.sort()
            self.threads[thread] = ([span[0] for span in spans], spans, self._parents(spans))

    @staticmethod
    def _parents(spans: list[tuple[int, int, int, str, str]]) -> list[int]:
        """For each span the index of the one around it (-1: none). Spans are sorted by start, the
        longest first."""
        parents, open_spans = [], []
        for index, (start, negative_end, *_rest) in enumerate(spans):
            while (
                open_spans
                and -spans[open_spans[-1]][1] < -negative_end
                or open_spans
                and -spans[open_spans[-1]][1] <= start
            ):
                open_spans.pop()
            parents.append(open_spans[-1] if open_spans else -1)
            open_spans.append(index)
        return parents

    def find(
        self, number: int | None, host: dict[str, Any] | None, at_ns: int | None
    ) -> tuple[str, int | None, str]:
        """(operator, instance, shapes): by id, else the innermost around the host call. ("", None,
        "") when there is none."""
        if number is not None and number in self.by_id:
            return self.by_id[number]
        thread = self.threads.get((host.get("pid"), host.get("tid"))) if host else None
        if thread is None or at_ns is None:
            return "", None, ""
        starts, spans, parents = thread
        index = bisect_right(starts, at_ns) - 1
        while index >= 0 and -spans[index][1] < at_ns:
            index = parents[index]
        if index < 0:
            return "", None, ""
        # Negative numbers, so that they never equal an external id.
        return (
            spans[index][3],
            -2 - index if spans[index][2] < 0 else spans[index][2],
            spans[index][4],
        )


def read_trace(path: Path | str) -> Trace:
    """The trace at `path` (.json, .json.gz or .json.xz). O(n log n) over its events.

    Raises TraceError when it is not a trace, or holds no GPU activity.
    """
    return trace_of(path, *read_events(path))


def trace_of(path: Path | str, content: dict[str, Any], events: list[dict[str, Any]]) -> Trace:
    """The trace in what `read_events` found at `path`, for callers that need the events as well.
    Raises TraceError as read_trace."""
    try:
        return _build(str(path), content, events)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{path}: damaged: {type(error).__name__}: {error}") from error


def _build(path: str, content: dict[str, Any], events: list[dict[str, Any]]) -> Trace:
    host_calls = {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat") in HOST_CATEGORIES and "correlation" in e.get("args", {})
    }
    operators = _Operators([e for e in events if e.get("cat") in ("cpu_op", "user_annotation")])
    activities = []
    for event in events:
        if event.get("cat") not in GPU_CATEGORIES:
            continue
        start, end = _span(event)
        arguments = event.get("args", {})
        host = host_calls.get(arguments.get("correlation"))
        launched = nanoseconds(host["ts"]) if host else None
        number = arguments.get("External id", host["args"].get("External id") if host else None)
        operator, instance, shapes = operators.find(
            _number_or_none(number, "External id"), host, launched
        )
        name = _name(event)
        activities.append(
            Activity(
                name,
                event["cat"],
                _number(arguments.get("stream", 0), "stream"),
                start,
                end,
                launched,
                operator,
                instance,
                shapes,
                tuple(_number(part, "grid") for part in arguments.get("grid", ())),
                collective_of(name, arguments) if name.startswith(COMMUNICATION) else None,
                _number_or_none(arguments.get("source"), "source"),
            )
        )
    if not activities:
        raise TraceError(f"{path}: no GPU activity in this trace")
    activities.sort(
        key=lambda a: (
            a.start_ns if a.launched_ns is None else a.launched_ns,
            a.start_ns,
            a.end_ns,
            a.name,
        )
    )
    rank = _number_or_none(content.get("distributedInfo", {}).get("rank"), "rank")
    steps, endless = _steps(events, activities)
    return Trace(path, rank, steps, tuple(activities), endless)


def _steps(
    events: list[dict[str, Any]], activities: list[Activity]
) -> tuple[tuple[Step, ...], int | None]:
    """The trace's steps (see Step), else one step from the first to the last GPU activity; and the number of
    the last one, if it is left out.

    If work outlasts the host's span, the end of the last step is not known. That step is left out
    unless it is the only one; it then ends with its work.
    """
    host = []
    for event in events:
        match = STEP.match(event["name"]) if event.get("cat") == "user_annotation" else None
        if match:
            host.append(Step(int(match[1]), *_span(event)))
    whole = Step(None, min(a.start_ns for a in activities), max(a.end_ns for a in activities))
    if not host:
        return (whole,), None
    host.sort(key=lambda step: step.start_ns)
    launched: list[list[Activity]] = [[] for _ in host]
    starts = [step.start_ns for step in host]
    for activity in activities:
        if activity.launched_ns is None:
            at, index = activity.start_ns, bisect_right(starts, activity.start_ns) - 1
        else:
            # On a border, the activity belongs to the step that ends there. Where the host takes no
            # time, everything that a step launches after its last wait has the time of its end.
            at, index = activity.launched_ns, max(0, bisect_left(starts, activity.launched_ns) - 1)
        if index >= 0 and starts[index] <= at <= host[index].end_ns:
            launched[index].append(activity)
    if not any(
        a.end_ns > step.end_ns for step, work in zip(host, launched, strict=True) for a in work
    ):
        return tuple(host), None
    busy = [
        (step.number, min(a.start_ns for a in work), max(a.end_ns for a in work))
        for step, work in zip(host, launched, strict=True)
        if work
    ]
    steps = [
        Step(one[0], one[1], following[1])
        for one, following in pairwise(busy)
        if following[1] > one[1]
    ]
    if steps:
        return tuple(steps), busy[-1][0]
    return (Step(*busy[0]),) if busy else (whole,), None
