"""The launches and library calls in a Kineto trace: each signature with its time.

Why it exists: the estimators are fitted to traces of real runs and judged by them. A trace names
kernels, their grids and the operators that launched them; trace_signatures.py makes signatures of
these. One library call may launch several kernels, whose times are added up.
"""

from __future__ import annotations

import bisect
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora_ns.compressed import read_text
from phantora_ns.kernels import signature
from phantora_ns.kernels.database.records import Observation
from phantora_ns.kernels.evaluation.trace_signatures import (
    ATTENTION_OPERATORS,
    CONVOLUTION_OPERATORS,
    GEMM_OPERATORS,
    LlamaShapes,
    sign,
)

# Inductor's mark around a compiled graph. It includes a hash of the code that differs by process.
GRAPH_CALL = "## Call"
UNTOUCHED = 0.01
"""A launch counts as alone when work on other streams overlapped less than this share of its time."""


class TraceError(Exception):
    """A file that is not a Kineto trace we can read; str() says which and why."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch or library call: signature, framework context, measured nanoseconds.

    `overlapped`: the share of that time during which a kernel or copy of another stream ran. `cold`:
    the caches were flushed before the launch (bench/kernels/record.py).
    """

    kind: int
    fields: list
    context: list | None
    duration_ns: float
    overlapped: float
    operator: str
    cold: bool

    @property
    def alone(self) -> bool:
        """Whether almost nothing overlapped it, so that its time is its own."""
        return self.overlapped < UNTOUCHED


def read_events(path: Path | str) -> list[dict]:
    """The trace's events. Raises TraceError or OSError."""
    path = Path(path)
    try:
        events = list(json.loads(read_text(path))["traceEvents"])
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}: not a Kineto trace: {error}") from error
    return [e for e in events if isinstance(e, dict)]


@dataclass
class _Intervals:
    """Disjoint busy intervals. They answer how much of a span is busy."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def add(self, start: float, end: float) -> None:
        if self.ends and start <= self.ends[-1]:
            self.ends[-1] = max(self.ends[-1], end)
        else:
            self.starts.append(start)
            self.ends.append(end)

    def covered(self, start: float, end: float) -> float:
        total = 0.0
        for i in range(bisect.bisect_right(self.ends, start), len(self.starts)):
            if self.starts[i] >= end:
                break
            total += min(end, self.ends[i]) - max(start, self.starts[i])
        return total


def join_shapes(events: list[dict], path: Path | str) -> None:
    """Gives a trace's operators the shapes that bench/kernels/shapes.py recorded. The record holds
    the same operators in the same order.

    Raises TraceError when the two are not of the same step, and OSError.
    """
    try:
        recorded = json.loads(read_text(path))
        operators = (
            e for e in events if e.get("cat") == "cpu_op" and not e["name"].startswith(GRAPH_CALL)
        )
        found = sorted(operators, key=lambda e: (e["ts"], -e["dur"]))
        recorded = [entry for entry in recorded if not entry[0].startswith(GRAPH_CALL)]
        if [e["name"] for e in found] != [entry[0] for entry in recorded]:
            raise TraceError(
                f"{path}: holds the operators of another step than the trace; record it anew from the same script"
            )
        for event, (_, *values) in zip(found, recorded):
            event["args"].update(
                zip(("Input Dims", "Input type", "Input Strides", "Concrete Inputs"), values)
            )
    except (ValueError, TypeError, LookupError) as error:
        raise TraceError(f"{path}: not a record of operators: {error}") from error


def launches(
    path: Path | str, llama: LlamaShapes | None = None, shapes: Path | str | None = None
) -> list[Launch]:
    """Every launch and library call of a trace in order of start, without communication kernels.

    `llama` gives the matrix products of a trace without shapes; `shapes` is a record of all its
    operators' shapes (`join_shapes`). Without either, such products are left out. Kernels inside
    library calls with unknown operands are left out too. Raises TraceError or OSError.
    """
    events = read_events(path)
    if shapes is not None:
        join_shapes(events, shapes)
    gpu = sorted(
        (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")),
        key=lambda e: e["ts"],
    )
    operators = {
        e["args"]["External id"]: e
        for e in events
        if e.get("cat") == "cpu_op" and "External id" in e.get("args", {})
    }
    cold = any(e.get("cat") == "user_annotation" and e["name"].startswith("case ") for e in events)
    products = iter(llama.products()) if llama else None
    busy: dict[Any, _Intervals] = defaultdict(_Intervals)
    for event in gpu:
        busy[event["args"].get("stream")].add(event["ts"], event["ts"] + event["dur"])
    calls: dict[Any, list[dict]] = defaultdict(list)
    for event in gpu:
        if event["name"].startswith("ncclDev"):
            continue
        external = event["args"].get("External id")
        operator = operators.get(external, {}).get("name", "")
        library = operator in GEMM_OPERATORS | ATTENTION_OPERATORS | CONVOLUTION_OPERATORS
        calls[("call", external) if library else ("kernel", len(calls))].append(event)
    result = []
    for group in calls.values():
        first = group[0]
        operator = operators.get(first["args"].get("External id"))
        signed = sign(group, operator, products, llama)
        if signed is None:
            continue
        duration = sum(e["dur"] for e in group)
        beside = [
            intervals for stream, intervals in busy.items() if stream != first["args"].get("stream")
        ]
        covered = sum(
            max((b.covered(e["ts"], e["ts"] + e["dur"]) for b in beside), default=0.0)
            for e in group
        )
        result.append(
            Launch(
                *signed,
                duration * 1000.0,
                covered / duration if duration else 0.0,
                operator["name"] if operator else "",
                cold,
            )
        )
    return result


def observations(configuration: str, found: Iterable[Launch]) -> list[Observation]:
    """The distinct signatures of a trace, each with the median duration of those launches that ran alone.
    O(launches)."""
    groups: dict[bytes, list[Launch]] = defaultdict(list)
    for launch in found:
        if launch.alone:
            groups[signature.encode(launch.kind, [launch.fields, launch.context])].append(launch)
    return [
        Observation(
            configuration,
            g[0].kind,
            g[0].fields,
            g[0].context,
            statistics.median(o.duration_ns for o in g),
            len(g),
        )
        for g in groups.values()
    ]
