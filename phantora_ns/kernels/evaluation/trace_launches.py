"""The launches and library calls in a Kineto trace: which signature took how long.

Why it exists: the estimators are calibrated on, and judged by, traces of real runs. A trace names
kernels, their grid and the operator that launched them; with recorded shapes it also tells the
operands of library calls, which is what their signature consists of. One library call may launch
several kernels: their times are added up.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora_ns.compressed import read_text
from phantora_ns.kernels import signature

GEMM_OPERATORS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"}
ATTENTION_OPERATORS = {"aten::_cudnn_attention_forward", "aten::_cudnn_attention_backward"}
CONVOLUTION_OPERATORS = {"aten::cudnn_convolution", "aten::convolution_backward"}
CUDA_TYPES = {
    "float": 0,
    "c10::Half": 2,
    "c10::BFloat16": 14,
    "double": 1,
    "c10::Float8_e4m3fn": 28,
    "c10::Float8_e5m2": 29,
}
CUDNN_TYPES = {"float": 0, "double": 1, "c10::Half": 2, "int": 4, "c10::BFloat16": 9}
MATMUL, POINTWISE, GEN_INDEX = (
    19,
    13,
    501,
)  # cudnn_graph.h: descriptor types of operations, CUDNN_POINTWISE_GEN_INDEX
ITEM_BYTES = {
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "double": 8,
    "long int": 8,
    "int": 4,
    "unsigned char": 1,
    "bool": 1,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "signed char": 1,
    "short int": 2,
}
# Inductor's mark around a compiled graph, with the hash of its code: not the same in every process
GRAPH_CALL = "## Call"
LIST_ITEM_BYTES = 4  # the profiler writes "TensorList" and not its type
SHAPES = 16  # as many shapes as a rank sends
UNTOUCHED = (
    0.01  # a launch counts as alone when work on other streams covered less than this share of it
)
COMPUTE_32F, COMPUTE_32F_TF32, COMPUTE_64F = 68, 77, 70  # cublasComputeType_t


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


@dataclass(frozen=True)
class LlamaShapes:
    """Sizes that tell each linear layer of one training step, for traces without recorded
    shapes."""

    dim: int
    kv_dim: int
    ffn: int
    vocabulary: int
    layers: int
    tokens: int
    heads: int = 32

    def attention_graph(self, operator: str) -> list:
        """The cuDNN graph of the step's attention, one sequence, causal."""
        size = self.dim // self.heads
        return sdpa_graph(
            [1, self.heads, self.tokens, size],
            [1, self.kv_dim // size, self.tokens, size],
            "c10::BFloat16",
            True,
            operator.endswith("backward"),
        )

    def context(self, operator: str) -> list | None:
        """[operator, input bytes, output bytes, shapes] of the step's norms and loss, None for
        others."""
        hidden, logits = self.tokens * self.dim * 2, self.tokens * self.vocabulary * 4
        sizes = {
            "aten::_fused_rms_norm": (hidden, hidden),
            "aten::_fused_rms_norm_backward": (2 * hidden, hidden),
            "aten::_log_softmax": (logits, logits),
            "aten::_log_softmax_backward_data": (2 * logits, logits),
        }.get(operator)
        return [operator, *sizes, []] if sizes else None

    def products(self) -> list[tuple[int, int, int, int, int]]:
        """(transa, transb, m, n, k) of every matrix product of a step, in launch order: forward,
        then backward.

        Forward per layer: q, k, v, o, gate, up, down, then the head; backward the reverse with k
        and v before q, and per layer the weight's gradient before the input's (autograd's
        MmBackward for a transposed weight).
        """
        sizes = {
            "q": (self.dim, self.dim),
            "k": (self.kv_dim, self.dim),
            "v": (self.kv_dim, self.dim),
            "o": (self.dim, self.dim),
            "gate": (self.ffn, self.dim),
            "up": (self.ffn, self.dim),
            "down": (self.dim, self.ffn),
        }
        head = (self.vocabulary, self.dim)
        forward = [
            sizes[n] for _ in range(self.layers) for n in ("q", "k", "v", "o", "gate", "up", "down")
        ] + [head]
        backward = [head] + [
            sizes[n] for _ in range(self.layers) for n in ("down", "up", "gate", "o", "v", "k", "q")
        ]
        products = [(1, 0, out, self.tokens, inner) for out, inner in forward]
        for out, inner in backward:
            products.append((0, 1, inner, out, self.tokens))
            products.append((0, 0, inner, self.tokens, out))
        return products


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
        signed = _sign(group, operator, products, llama)
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


def _sign(
    group: list[dict], operator: dict | None, products, llama: LlamaShapes | None
) -> tuple[int, list, list | None] | None:
    name = operator["name"] if operator else ""
    shaped = operator is not None and "Input Dims" in operator["args"]
    if name in GEMM_OPERATORS:
        if shaped:
            tf32 = any("tf32" in e["name"] or "s1688gemm" in e["name"] for e in group)
            return signature.GEMM, gemm_fields(operator, tf32), None
        product = next(products, None) if products is not None else None
        if product is None:
            return None
        transa, transb, m, n, k = product
        bf16 = CUDA_TYPES["c10::BFloat16"]
        return (
            signature.GEMM,
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
        return None if graph is None else (signature.CUDNN, [graph], None)
    if name in CONVOLUTION_OPERATORS:
        return (signature.CUDNN, [convolution_graph(operator)], None) if shaped else None
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
            signature.KERNEL,
            fields,
            _context(operator, event["name"]) if shaped else llama.context(name) if llama else None,
        )
    if event["cat"] == "gpu_memset":
        return signature.MEMORY, [1, arguments["bytes"], 2, 2], None
    places = {"Pageable": 0, "Pinned": 1, "Device": 2}
    source, _, destination = event["name"].partition("(")[2].rstrip(")").partition(" -> ")
    return (
        signature.MEMORY,
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
    return [
        [
            10,
            [
                [704, _graph_tensor(image, kind, strides[0])],
                [703, _graph_tensor(weight, kind, strides[1])],
                [705, _graph_tensor(out, kind, out_strides)],
            ],
        ]
    ]


def gemm_fields(operator: dict, tf32: bool) -> list:
    """The cuBLAS signature of a row-major product with recorded shapes: column-major, the operands
    change places."""
    arguments = operator["args"]
    shift = operator["name"] in ("aten::addmm", "aten::baddbmm")
    left, right = arguments["Input Dims"][shift : shift + 2]
    strides = arguments["Input Strides"][shift : shift + 2]
    dtype = arguments["Input type"][shift]
    batch = left[0] if len(left) == 3 else 1
    rows, inner, columns = left[-2], left[-1], right[-1]
    transa = int(not (strides[1][-1] == 1 and strides[1][-2] >= columns))
    transb = int(not (strides[0][-1] == 1 and strides[0][-2] >= inner))
    kind = CUDA_TYPES[dtype]
    scaled = operator["name"] == "aten::_scaled_mm"
    out = CUDA_TYPES["c10::BFloat16"] if scaled else kind
    compute = COMPUTE_64F if dtype == "double" else COMPUTE_32F_TF32 if tf32 else COMPUTE_32F
    return [
        int(scaled),
        transa,
        transb,
        columns,
        rows,
        inner,
        batch,
        kind,
        kind,
        out,
        out,
        compute,
        1,
        inner if transa else columns,
        rows if transb else inner,
        columns,
    ]


def _context(operator: dict, kernel: str) -> list | None:
    """[operator, input bytes, output bytes, shapes] as a rank sends it (libintercept/work/duration.c):
    outputs are not known when an operator launches. Of long lists of tensors a trace says nothing;
    the type of others only the kernel's name may tell."""
    arguments = operator["args"]
    opaque = re.search(r"OpaqueType<(\d+)", kernel)
    total, shapes = 0, []
    for dims, kind in zip(arguments["Input Dims"], arguments["Input type"]):
        lists = dims if dims and isinstance(dims[0], list) else [dims]
        each = ITEM_BYTES.get(kind if lists is not dims else "", 0) or ITEM_BYTES.get(
            kind.partition("[")[2].rstrip("]"), 0
        )
        if kind == "TensorList":
            if lists is not dims:
                return None
            each = int(opaque[1]) if opaque else LIST_ITEM_BYTES
        elif not each:
            continue
        total += sum(math.prod(d) * each for d in lists)
        shapes += lists
    return [operator["name"], total, 0, shapes[:SHAPES]] if total else None
