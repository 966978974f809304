"""The launches and library calls in a Kineto trace: which signature took how long.

Why it exists: the estimators are fitted to traces of real runs and judged by them. A trace names
kernels, their grids and the operators that launched them; trace_signatures.py makes signatures of
them. One library call may launch several kernels: their times are added up.
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
<<<<<<< HEAD
from phantora_ns.protocol import SignatureKind
=======
from phantora_ns.kernels import signature
from phantora_ns.kernels.database.records import Observation
from phantora_ns.kernels.evaluation.trace_signatures import (
    ATTENTION_OPERATORS,
    CONVOLUTION_OPERATORS,
    GEMM_OPERATORS,
    LlamaShapes,
    sign,
)
>>>>>>> main

# Inductor's mark around a compiled graph, with the hash of its code: not the same in every process
GRAPH_CALL = "## Call"
UNTOUCHED = 0.01
"""A launch counts as alone when work on other streams covered less than this share of its time."""


class TraceError(Exception):
    """A file that is not a Kineto trace we can read; str() says which and why."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch or library call: signature, framework context, measured nanoseconds, and the share
    of that time during which another stream's kernel or copy ran beside it. `cold`: the caches were
    flushed before (bench/kernels/record.py)."""

    kind: int
    fields: list
    context: list | None
    duration_ns: float
    overlapped: float
    operator: str
    cold: bool

    @property
    def alone(self) -> bool:
        """Whether its time says what it takes by itself: nothing of note ran beside it."""
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
    """Disjoint busy intervals, to ask how much of a span they cover."""

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
    """Gives a trace's operators the shapes that bench/kernels/shapes.py recorded of the same
    operators in the same order.

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
    """Every launch and library call of a trace in order of start, communication kernels left out.

    `llama` names the matrix products of a trace without shapes, `shapes` a record of all its
    operators' shapes (`join_shapes`); without either such products are left out, as are kernels
    inside library calls whose operands are unknown. Raises TraceError or OSError.
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


<<<<<<< HEAD
def _sign(
    group: list[dict], operator: dict | None, products, llama: LlamaShapes | None
) -> tuple[int, list, list | None] | None:
    name = operator["name"] if operator else ""
    shaped = operator is not None and "Input Dims" in operator["args"]
    if name in GEMM_OPERATORS:
        if shaped:
            tf32 = any("tf32" in e["name"] or "s1688gemm" in e["name"] for e in group)
            return SignatureKind.GEMM, gemm_fields(operator, tf32), None
        product = next(products, None) if products is not None else None
        if product is None:
            return None
        transa, transb, m, n, k = product
        bf16 = CUDA_TYPES["c10::BFloat16"]
        return (
            SignatureKind.GEMM,
            [
                0,
                transa,
                transb,
                m,
                n,
                k,
                1,
                bf16,
                bf16,
                bf16,
                bf16,
                COMPUTE_32F,
                1,
                k if transa else m,
                n if transb else k,
                m,
            ],
            None,
        )
    if name in ATTENTION_OPERATORS:
        graph = (
            attention_graph(operator) if shaped else llama.attention_graph(name) if llama else None
        )
        return None if graph is None else (SignatureKind.CUDNN, [graph], None)
    if name in CONVOLUTION_OPERATORS:
        return (SignatureKind.CUDNN, [convolution_graph(operator)], None) if shaped else None
    event = group[0]
    arguments = event["args"]
    if event["cat"] == "kernel":
        fields = [
            event["name"],
            *arguments["grid"],
            *arguments["block"],
            int(arguments.get("shared memory", 0)),
            0,
            0,
            0,
            b"",
        ]
        return (
            SignatureKind.KERNEL,
            fields,
            _context(operator, event["name"]) if shaped else llama.context(name) if llama else None,
        )
    if event["cat"] == "gpu_memset":
        return SignatureKind.MEMORY, [1, arguments["bytes"], 2, 2], None
    places = {"Pageable": 0, "Pinned": 1, "Device": 2}
    source, _, destination = event["name"].partition("(")[2].rstrip(")").partition(" -> ")
    return (
        SignatureKind.MEMORY,
        [0, arguments["bytes"], places.get(source, 2), places.get(destination, 2)],
        None,
    )


def _graph_tensor(dims: list[int], kind: str, strides: list[int] | None = None) -> list:
    if strides is None:
        strides = [1]
        for size in reversed(dims[1:]):
            strides.insert(0, strides[0] * size)
    return ["t", CUDNN_TYPES[kind], list(dims), strides]


def sdpa_graph(query: list[int], key: list[int], kind: str, causal: bool, backward: bool) -> list:
    """The graph that PyTorch's cuDNN attention comes to: its products (two forward, five backward)
    and the mask."""
    batch, heads, queries, size = query
    keys = key[2]
    scores = [batch, heads, queries, keys]
    first = [
        MATMUL,
        [
            [1520, _graph_tensor(query, kind)],
            [1521, _graph_tensor([batch, key[1], size, keys], kind)],
            [1522, _graph_tensor(scores, kind)],
        ],
    ]
    other = [
        MATMUL,
        [
            [1520, _graph_tensor(scores, kind)],
            [1521, _graph_tensor([batch, key[1], keys, size], kind)],
            [1522, _graph_tensor(query, kind)],
        ],
    ]
    mask = [[POINTWISE, [[0, GEN_INDEX], [753, _graph_tensor(scores, "int")]]]] if causal else []
    return [first, *mask, *[other] * (4 if backward else 1)]


def attention_graph(operator: dict) -> list:
    """The cuDNN graph of an attention operator with recorded shapes."""
    arguments = operator["args"]
    backward = operator["name"].endswith("backward")
    causal = arguments["Concrete Inputs"][14 if backward else 10] == "True"
    query, key = arguments["Input Dims"][1:3] if backward else arguments["Input Dims"][0:2]
    return sdpa_graph(query, key, arguments["Input type"][1], causal, backward)


def convolution_graph(operator: dict) -> list:
    """The cuDNN graph of a convolution operator with recorded shapes: one operation, or two for
    both gradients."""
    arguments = operator["args"]
    dims, kind, strides = (
        arguments["Input Dims"],
        arguments["Input type"][0],
        arguments["Input Strides"],
    )
    if operator["name"].endswith("backward"):
        out, image, weight = dims[:3]
        wanted = json.loads(arguments["Concrete Inputs"][10].lower())
        tensors = [
            _graph_tensor(t, kind, strides[i]) for t, i in ((image, 1), (weight, 2), (out, 0))
        ]
        graph = (
            [[12, [[710, tensors[0]], [709, tensors[1]], [711, tensors[2]]]]] if wanted[0] else []
        )
        return graph + (
            [[11, [[716, tensors[0]], [715, tensors[1]], [717, tensors[2]]]]] if wanted[1] else []
        )
    image, weight = dims[:2]
    padding, stride, dilation = (json.loads(arguments["Concrete Inputs"][i]) for i in (2, 3, 4))
    spatial = [
        (size + 2 * p - d * (w - 1) - 1) // s + 1
        for size, w, p, s, d in zip(image[2:], weight[2:], padding, stride, dilation)
    ]
    out = [image[0], weight[0], *spatial]
    channels_last = strides[0][1] == 1
    out_strides = (
        [math.prod(out[1:]), 1, out[1] * out[3], out[1]]
        if channels_last and len(out) == 4
        else None
    )
=======
def observations(configuration: str, found: Iterable[Launch]) -> list[Observation]:
    """The distinct signatures of a trace, with the median of their launches that ran alone.
    O(launches)."""
    groups: dict[bytes, list[Launch]] = defaultdict(list)
    for launch in found:
        if launch.alone:
            groups[signature.encode(launch.kind, [launch.fields, launch.context])].append(launch)
>>>>>>> main
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
