"""Signatures of the launches in a Kineto trace.

Why it exists: a simulated rank makes a call's signature from its arguments. A trace holds only the
operator's shapes, types and strides. This file makes the same signature from those, so that real and
simulated times can be compared. A trace without recorded shapes is read with the sizes of the model
that ran (LlamaShapes).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from phantora_ns.protocol import SignatureKind


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
# cudnn_graph.h: descriptor types of operations, and CUDNN_POINTWISE_GEN_INDEX.
MATMUL, POINTWISE, GEN_INDEX = 19, 13, 501
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
LIST_ITEM_BYTES = 4  # the profiler writes "TensorList" without the type of its tensors
SHAPES = 16  # the number of shapes that a rank sends
COMPUTE_32F, COMPUTE_32F_TF32, COMPUTE_64F = 68, 77, 70  # cublasComputeType_t


@dataclass(frozen=True)
class LlamaShapes:
    """Sizes that identify each linear layer of one training step, for traces without recorded
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
        """[operator, input bytes, output bytes, shapes] of the step's norms and loss; None for other
        operators."""
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

        Forward order per layer is q, k, v, o, gate, up, down; the head follows the last layer.
        Backward is the reverse, except that k and v come before q. Each layer's weight gradient
        comes before its input gradient (autograd's MmBackward for a transposed weight).
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


def sign(
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
    """The graph of PyTorch's cuDNN attention: its products (two forward, five backward) and the
    mask."""
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
    """The cuBLAS signature of a row-major product with recorded shapes. cuBLAS is column-major, so
    the operands are swapped."""
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
    """[operator, input bytes, output bytes, shapes] as a rank sends it (libintercept/work/duration.c).

    Outputs are not known when an operator launches. A trace does not record long lists of tensors.
    The type of other lists can only come from the kernel's name.
    """
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
