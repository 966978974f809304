"""PyTorch's memory over time, and what held its peak.

Why it exists: a peak alone does not say what to change. The trace has the allocator's figures at the
begin and the end of operators. Here they become a curve, and the peak is split into what was there
when its step began and what each operator added since. The parts add up to the peak exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from phantora_ns.report.held_part import by_kind, by_layer
from phantora_ns.trace.kineto import nanoseconds

MEMORY = "[memory]"
STEP = "ProfilerStep#"
MOST_POINTS = 1500
MOST_OPERATORS = 12
MOST_MODULES = 20
OUTSIDE = "outside of operators (Python frees or resizes)"
STATES = "states of the optimizer"
HELD = "weights, gradients and buffers that were there"
HELD_WITH_STATES = "weights, gradients, buffers and states of the optimizer that were there"
FORWARD, BACKWARD, UPDATE = "forward and what is around it", "backward", "the optimizer's step"
ZERO = "gradients that zero_grad gave back"
_AUTOGRAD = "(pt_autograd_"
"""In the name of the threads that run the backward pass, in PyTorch's torch/csrc/autograd/engine.cpp."""
_UPDATE = "Optimizer.step#"
_ZERO = "Optimizer.zero_grad#"


class HostStep(NamedTuple):
    """A training step between two times of the host."""

    number: int
    begin_ns: int
    end_ns: int


def memory_of(
    content: Mapping[str, Any], spans: Mapping[Any, Sequence[Any]]
) -> dict[str, Any] | None:
    """The memory of one rank's trace; None when it says nothing of it. `spans`: the outermost
    operators of each (process, thread) as (begin, duration, name), in order."""
    found = sorted(
        (event for event in content["traceEvents"] if event.get("name") == MEMORY),
        key=lambda event: event["args"]["Ev Idx"],
    )
    devices = Counter(event["args"]["Device Id"] for event in found)
    if not devices:
        return None
    device = devices.most_common(1)[0][0]
    records = [event for event in found if event["args"]["Device Id"] == device]
    points, latest_ns = [], 0
    for event in records:
        latest_ns = max(latest_ns, nanoseconds(event["ts"]))
        about = event["args"]
        points.append((latest_ns, about["Total Allocated"], about["Total Reserved"]))
    names = [_around(event, spans) for event in records]
    steps = _host_steps(content)
    return {
        "points": _thinned(points),
        "peak": _peak(records, points, names, steps)
        | {"phases": _phases(content, records, points, names, steps)},
    }


def _around(event: Mapping[str, Any], spans: Mapping[Any, Sequence[Any]]) -> str:
    """The outermost operator that had begun before a record and had not ended, else the operator
    that the record names. A change that is seen when an operator begins came before it."""
    thread = spans.get((event["pid"], event["tid"]), ())
    at_ns = nanoseconds(event["ts"])
    index = bisect_left(thread, at_ns, key=lambda span: span[0]) - 1
    if index >= 0 and thread[index][0] + thread[index][1] >= at_ns:
        return thread[index][2]
    return event["args"]["Operator"] or OUTSIDE


def _peak(
    records: Sequence[Mapping[str, Any]],
    points: Sequence[tuple[int, int, int]],
    names: Sequence[str],
    steps: Sequence[HostStep],
) -> dict[str, Any]:
    most, at, first = _place(records, points, steps)
    at_ns = points[at][0]
    step = _step_at(at_ns, steps)
    held = points[first - 1][1] if first else 0
    added: Counter[str] = Counter()
    before = held
    for index in range(first, at + 1):
        added[names[index]] += points[index][1] - before
        before = points[index][1]
    inside = most - before  # given back before the operator's end
    return {
        "bytes": most,
        "at_ns": at_ns,
        "step": None if step is None else step.number,
        "operator": names[at],
        "held_bytes": held,
        "added": _largest(added) + ([[f"within {names[at]}", inside]] if inside else []),
    }


def _place(
    records: Sequence[Mapping[str, Any]],
    points: Sequence[tuple[int, int, int]],
    steps: Sequence[HostStep],
) -> tuple[int, int, int]:
    """The peak, the record that first has it, and the first record of its step. What is seen at the
    moment when a step begins came before: the last operator of the step before has just ended. So did what the first
    record of a trace that begins with a later step has seen."""
    later = bool(steps) and steps[0].number > 0
    peaks = _peaks(records, points, later)
    most = max(peaks)
    at = peaks.index(most)
    step = _step_at(points[at][0], steps)
    if step is None:
        return most, at, 0
    begin_ns = step.begin_ns
    first = int(later)
    inside = (index for index in range(first, at) if points[index][0] > begin_ns)
    return most, at, next(inside, max(first, at))


def _peaks(
    records: Sequence[Mapping[str, Any]], points: Sequence[tuple[int, int, int]], later: bool
) -> list[int]:
    """The most that was allocated between each record and the one before. The allocator tells the peak since it was
    reset, so one that did not change is of an earlier record; of a trace that begins `later`, also the first."""
    told = [event["args"]["Peak Allocated"] for event in records]
    before = [told[0] if later else None, *told]
    return [
        point[1] if peak == old else peak
        for peak, old, point in zip(told, before, points, strict=False)
    ]


def _step_at(at_ns: int, steps: Sequence[HostStep]) -> HostStep | None:
    return next((one for one in steps if one.begin_ns <= at_ns < one.end_ns), None)


def _host_steps(content: Mapping[str, Any]) -> list[HostStep]:
    """Steps in the host's time, in order. The allocator works when the host does, which may be steps
    ahead of the GPU."""
    found = []
    for event in content["traceEvents"]:
        number = str(event.get("name", "")).removeprefix(STEP)
        if event.get("ph") == "X" and number.isdigit():
            begin_ns = nanoseconds(event["ts"])
            found.append(HostStep(int(number), begin_ns, begin_ns + nanoseconds(event["dur"])))
    return sorted(found, key=lambda step: step.begin_ns)


def _phase_of(content: Mapping[str, Any]) -> Callable[[Mapping[str, Any], str], str]:
    """What tells the phase of training of a record with the operator around it. Activations that are
    recomputed are backward's, since that is when they are there."""
    backward, updates = set(), dict[Any, list[tuple[int, int]]]()
    for event in content["traceEvents"]:
        lane = event.get("pid"), event.get("tid")
        if event.get("name") == "thread_name" and _AUTOGRAD in event["args"]["name"]:
            backward.add(lane)
        elif event.get("ph") == "X" and event["name"].startswith(_UPDATE):
            begin_ns = nanoseconds(event["ts"])
            updates.setdefault(lane, []).append((begin_ns, begin_ns + nanoseconds(event["dur"])))
    for found in updates.values():
        found.sort()

    def phase(event: Mapping[str, Any], around: str) -> str:
        if event["args"]["Operator"].startswith(_ZERO):  # it may take no time
            return ZERO
        lane, at_ns = (event["pid"], event["tid"]), nanoseconds(event["ts"])
        spans = updates.get(lane, [])
        index = bisect_left(spans, at_ns, key=lambda span: span[0]) - 1
        if index >= 0 and at_ns <= spans[index][1]:
            return UPDATE
        if lane in backward:
            return BACKWARD
        return OUTSIDE if around == OUTSIDE else FORWARD

    return phase


def _phases(
    content: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    points: Sequence[tuple[int, int, int]],
    names: Sequence[str],
    steps: Sequence[HostStep],
) -> list[list[Any]]:
    """The peak by category: what was there when the step began, and what its phases added net. What
    optimizers' steps left before are their states, if the trace has them all."""
    phase = _phase_of(content)
    most, at, first = _place(records, points, steps)
    held = points[first - 1][1] if first else 0
    added: Counter[str] = Counter()
    states = before = 0
    for index in range(at + 1):
        kind = phase(records[index], names[index])
        change, before = points[index][1] - before, points[index][1]
        if index >= first:
            added[kind] += change
        elif kind == UPDATE:
            states += change
    added[phase(records[at], names[at])] += most - before
    rows: list[list[Any]] = [[HELD_WITH_STATES, held]]
    if steps and steps[0].number == 0:
        rows = [[HELD, held - states], [STATES, states]]
    rows += [[name, added[name]] for name in (FORWARD, BACKWARD, UPDATE, ZERO, OUTSIDE)]
    return [row for row in rows if row[1]]


def _largest(added: Counter[str]) -> list[list[Any]]:
    """The operators that added or gave back most, and the others as one."""
    ordered = sorted(added.items(), key=lambda item: (-abs(item[1]), item[0]))
    rows: list[list[Any]] = [[name, count] for name, count in ordered[:MOST_OPERATORS] if count]
    rest = sum(count for _, count in ordered[MOST_OPERATORS:])
    return rows + ([["other operators", rest]] if rest else [])


def _thinned(points: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """At most about MOST_POINTS points: of each stretch of time the lowest and the highest."""
    if len(points) <= MOST_POINTS:
        return list(points)
    begin_ns, end_ns = points[0][0], points[-1][0] + 1
    kept: dict[int, list[tuple[int, int, int]]] = {}
    for point in points:
        bin_ = (point[0] - begin_ns) * (MOST_POINTS // 2) // (end_ns - begin_ns)
        held = kept.setdefault(bin_, [point, point])
        if point[1] < held[0][1]:
            held[0] = point
        if point[1] > held[1][1]:
            held[1] = point
    return [point for held in kept.values() for point in sorted(set(held))]


def held_shown(held: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What modules held the report's peak, for the page: by kind, and by layer with the least as one."""
    if held is None or held["held"] is None:
        return None
    layers = by_layer(held["held"])
    rest = layers[MOST_MODULES:]
    rows = [list(row) for row in layers[:MOST_MODULES]]
    if rest:
        count = sum(row.modules for row in rest)
        rows.append(["all kinds", "others", count, sum(row.bytes for row in rest)])
    return {"kinds": by_kind(held["held"]), "layers": rows}


def shown(memories: Iterable[tuple[int, Mapping[str, Any] | None]]) -> dict[str, Any] | None:
    """What the page shows: the rank with the highest peak among (rank, its memory)."""
    known = [(rank, memory) for rank, memory in memories if memory is not None]
    if not known:
        return None
    rank, memory = max(known, key=lambda one: (one[1]["peak"]["bytes"], -one[0]))
    return {"rank": rank} | dict(memory)
