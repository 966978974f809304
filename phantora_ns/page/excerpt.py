"""What the page shows of one rank, taken from its trace.

Why it exists: a trace of ten steps has 200,000 events, far more than a page can hold. A rank's
excerpt has the parts of its steps, its kernels added up, its communication, and the rows of the
timeline. Excerpts of ranks are independent, so several processes make them. Integer nanoseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

from phantora_ns.page.memory import memory_of
from phantora_ns.protocol import Source
from phantora_ns.trace.activity_families import family, short
from phantora_ns.trace.breakdown import own
from phantora_ns.trace.kineto import (
    COMMUNICATION,
    ITEM_BYTES,
    Activity,
    Step,
    nanoseconds,
    read_events,
    trace_of,
)

Threads = dict[tuple[Any, Any], list[tuple[int, int, str]]]
"""(process, thread) -> (begin, duration, what), in order."""
IDLE = ("host", "queued", "unknown")
MOST_KERNELS = 200
"""Rows of kernels kept of one rank; the rest becomes one row."""
NAME_WIDTH = 100
SHORT_NS = 20_000
"""Operators on the host below this are joined in the timeline."""
SHORT_OPERATORS = "operator|operators below 20 us"
_WAITING = re.compile(r"^(cuda|cu)\w*Synchronize")
_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
_AUTOGRAD = "autograd::engine::evaluate_function: "


def excerpt(path: Path) -> dict[str, Any]:
    """The excerpt of the trace at `path`, as JSON data. Raises TraceError."""
    content, events = read_events(path)
    trace = trace_of(path, content, events)
    steps = [_step(trace.activities, step) for step in trace.steps]
    threads = _threads(events)
    return {
        "rank": trace.rank,
        "left_out_events": content.get("phantora-ns", {}).get("leftOutEvents", 0),
        "steps": steps,
        "endless_step": trace.endless,
        "kernels": _kernels(trace.activities, trace.steps),
        "communication": _communication(events),
        "rows": _gpu_rows(trace.activities) + _host_rows(threads),
        "memory": memory_of(content, _operators(threads)),
    }


def _step(activities: Iterable[Activity], step: Step) -> dict[str, Any]:
    """A step's parts, which add up to its length: `compute` by family, `exposed` by collective,
    `idle` by cause."""
    owned = own(list(activities), step)
    compute: Counter[str] = Counter()
    exposed: Counter[str] = Counter()
    for activity, owned_ns in zip(owned.activities, owned.owned_ns, strict=True):
        if activity.collective is not None:
            exposed[activity.collective.name] += owned_ns
            continue
        compute[family(activity.name, activity.operator, activity.category)] += owned_ns
    parts = owned.parts
    idle = {cause: getattr(parts, f"idle_{cause}_ns") for cause in IDLE}
    return {
        "number": step.number,
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
        "compute": _some(compute),
        "exposed": _some(exposed),
        "idle": _some(idle),
        "hidden_ns": parts.hidden_ns,
    }


def _some(parts: dict[str, int]) -> dict[str, int]:
    return {name: ns for name, ns in sorted(parts.items()) if ns}


def _kernels(activities: Iterable[Activity], steps: tuple[Step, ...]) -> list[dict[str, Any]]:
    """Compute by kernel, operator and source of its time, in the traced steps; longest first."""
    begin_ns, end_ns = steps[0].start_ns, steps[-1].end_ns
    groups: dict[tuple[str, str, str, int | None], list[int]] = {}
    for activity in activities:
        if activity.collective is not None or not begin_ns <= activity.start_ns < end_ns:
            continue
        kind = family(activity.name, activity.operator, activity.category)
        key = (activity.name, activity.operator, kind, activity.source)
        group = groups.setdefault(key, [0, 0])
        group[0] += 1
        group[1] += activity.duration_ns
    ordered = sorted(groups.items(), key=lambda item: (-item[1][1], str(item[0])))
    rows = [
        {
            "name": short(name, NAME_WIDTH),
            "operator": operator,
            "kind": kind,
            "source": None if source is None else Source.LABELS[source],
            "count": count,
            "gpu_ns": gpu_ns,
        }
        for (name, operator, kind, source), (count, gpu_ns) in ordered[:MOST_KERNELS]
    ]
    rest = [group for _, group in ordered[MOST_KERNELS:]]
    if rest:
        rows.append(
            {
                "name": f"{len(rest)} further kinds of kernels",
                "operator": "",
                "kind": "other",
                "source": None,
                "count": sum(count for count, _ in rest),
                "gpu_ns": sum(gpu_ns for _, gpu_ns in rest),
            }
        )
    return rows


def _communication(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every launch of communication, as the trace describes it."""
    found = []
    for event in events:
        if event.get("cat") != "kernel" or not event["name"].startswith(COMMUNICATION):
            continue
        about = event["args"]
        if "Communicator" not in about:
            continue  # the trace of a real GPU
        start = nanoseconds(event["ts"])
        operation, operations = about["Operation"], about["Operations"]
        send_bytes, receive_bytes = about["Send bytes"], about["Receive bytes"]
        if operation in ("send", "recv") and _ALL_TO_ALL.match(about.get("Collective name", "")):
            # PyTorch makes it of sends and receives, of which a trace describes the first
            item = ITEM_BYTES.get(str(about.get("dtype")), 0)
            operation, operations = "all_to_all", 1
            send_bytes = receive_bytes = int(about.get("In msg nelems", 0)) * item
        found.append(
            {
                "operation": operation,
                "operations": operations,
                "communicator": about["Communicator"],
                "member": about["Rank in communicator"],
                "members": about["Group size"],
                "send_bytes": send_bytes,
                "receive_bytes": receive_bytes,
                "group": about.get("Process Group Description", ""),
                "algorithm": about["Algorithm"],
                "protocol": about["Protocol"],
                "start_ns": start,
                "end_ns": start + nanoseconds(event["dur"]),
            }
        )
    return sorted(found, key=lambda launch: (launch["start_ns"], launch["end_ns"]))


def _gpu_rows(activities: Iterable[Activity]) -> list[dict[str, Any]]:
    """A row of the timeline for each stream: spans as (start, duration, name)."""
    streams: dict[int, list[tuple[int, int, str]]] = {}
    communicates = set()
    for activity in activities:
        kind = family(activity.name, activity.operator, activity.category)
        name = short(activity.name, NAME_WIDTH)
        if activity.collective is not None:
            kind, name = "communication", activity.collective.name
            communicates.add(activity.stream)
        elif activity.operator:
            name = f"{name} in {activity.operator}"
        spans = streams.setdefault(activity.stream, [])
        spans.append((activity.start_ns, activity.duration_ns, f"{kind}|{name}"))
    return [
        {
            "row": f"stream {stream}" + (" (NCCL)" if stream in communicates else ""),
            "spans": sorted(streams[stream]),
        }
        for stream in sorted(streams)
    ]


def _threads(events: list[dict[str, Any]]) -> Threads:
    """Operators, ranges of the user, and the calls that wait for a GPU, of each thread; those that
    contain others first."""
    threads: Threads = {}
    for event in events:
        category, name = event.get("cat"), event["name"]
        if category in ("cpu_op", "user_annotation"):
            if name.startswith("ProfilerStep#"):
                continue
            kind = "range" if category == "user_annotation" else "operator"
            text = f"{kind}|{name.removeprefix(_AUTOGRAD)}"
        elif category in ("cuda_runtime", "cuda_driver") and _WAITING.match(name):
            text = f"waiting|{name}"
        else:
            continue
        start = nanoseconds(event["ts"])
        length = nanoseconds(event.get("dur", Decimal(0)))
        threads.setdefault((event["pid"], event["tid"]), []).append((start, length, text))
    for spans in threads.values():
        spans.sort(key=lambda span: (span[0], -span[1]))
    return threads


def _operators(threads: Threads) -> Threads:
    """The outermost operators of each thread, by name. Ranges of the user contain whole passes, so
    they are left out."""
    found: Threads = {}
    for thread, spans in threads.items():
        end_ns = -1
        for start, length, text in spans:
            if text.startswith("operator|") and start >= end_ns:
                found.setdefault(thread, []).append((start, length, text.partition("|")[2]))
                end_ns = start + length
    return found


def _host_rows(threads: Threads) -> list[dict[str, Any]]:
    """A row for each thread: its outermost operators and ranges, and the calls in which it waits."""
    rows = []
    for number, (_, spans) in enumerate(sorted(threads.items(), key=lambda item: str(item[0]))):
        outermost: list[tuple[int, int, str]] = []
        end_ns = -1
        for start, length, text in spans:
            if start >= end_ns or text.startswith("waiting|"):
                span = (start, length, text.replace("range|", "operator|", 1))
                outermost.append(span)
                end_ns = max(end_ns, span[0] + span[1])
        rows.append({"row": f"host thread {number}", "spans": _joined(outermost)})
    return rows


def _joined(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """The spans, with short operators that follow each other closely as one: there are more of them
    than anybody can look at."""
    result: list[tuple[int, int, str]] = []
    for start, length, text in spans:
        if result and length < SHORT_NS and text.startswith("operator|"):
            before, before_length, before_text = result[-1]
            end = before + before_length
            small = before_length < SHORT_NS or before_text == SHORT_OPERATORS
            if small and before_text.startswith("operator|") and 0 <= start - end < SHORT_NS:
                result[-1] = (before, start + length - before, SHORT_OPERATORS)
                continue
        result.append((start, length, text))
    return result
