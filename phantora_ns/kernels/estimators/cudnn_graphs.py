"""What a cuDNN operation graph computes: attention, a convolution, a matrix product, or something
bound by memory.

Why it exists: attention and convolutions reach cuDNN as graphs of operations
(docs/wire-protocol.md, signature kind 2). Only the tensors' shapes and the kinds of operations
matter for time. The numbers are those of cudnn_graph.h. Rule: an unknown operation or
a malformed graph makes the estimate coarser; it never raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from phantora_ns.kernels.estimators import attention, gemm
from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import Gemm

CONVOLUTION_FORWARD, CONVOLUTION_FILTER, CONVOLUTION_DATA = 10, 11, 12  # operation descriptor types
MATMUL, SDPA_FORWARD, SDPA_BACKWARD = 19, 41, 43
# CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX: a mask by position.
POINTWISE_MODE, GEN_INDEX = 0, 501
# CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_POINTWISE_ADD
POINTWISE, POINTWISE_B, ADD = 13, 752, 0
RANDOM = 33  # CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR: dropout draws its numbers within the kernel
# The output of a mask that is one operation (since release 9.20).
BAND_MASK_Y = 3006
MATMUL_A, MATMUL_B, MATMUL_C = 1520, 1521, 1522
SDPA_Q, SDPA_K = (
    {SDPA_FORWARD: 2800, SDPA_BACKWARD: 2851},
    {SDPA_FORWARD: 2801, SDPA_BACKWARD: 2852},
)
# (input image, filter, output image) of each direction
CONVOLUTION_TENSORS = {
    CONVOLUTION_FORWARD: (704, 703, 705),
    CONVOLUTION_DATA: (710, 709, 711),
    CONVOLUTION_FILTER: (716, 715, 717),
}
CONVOLUTION_DILATIONS = 102  # attribute
# cudnnDataType: bytes, and the cudaDataType with the same arithmetic
DATA_TYPES = {
    0: (4, 0),
    1: (8, 1),
    2: (2, 2),
    3: (1, 3),
    4: (4, 10),
    6: (1, 8),
    9: (2, 14),
    10: (8, 0),
    11: (1, 8),
    12: (1, 28),
    13: (1, 29),
    19: (4, 0),
}
# CUBLAS_COMPUTE_32F_FAST_TF32: by default PyTorch lets cuDNN use it for fp32.
TF32_COMPUTE = 77
TILE = 128  # output tile of cuDNN's implicit products
MATMULS_OF_BACKWARD = 4  # an attention graph with this many products or more is a backward pass


def element_bytes(kind: int) -> int:
    """Bytes of a cudnnDataType; an unknown one counts as fp32."""
    return DATA_TYPES.get(kind, (4, 0))[0]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape of one operand; `kind` is cudnnDataType."""

    kind: int
    dims: tuple[int, ...]
    strides: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return math.prod(self.dims) * element_bytes(self.kind)


@dataclass
class Operation:
    """One operation of a graph: its descriptor type, tensors by attribute, and plain attributes."""

    kind: int
    tensors: dict[int, Tensor] = field(default_factory=dict)
    values: list[tuple[int, Any]] = field(default_factory=list)


def _is_tensor(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) >= 3
        and value[0] == "t"
        and isinstance(value[2], (list, tuple))
        and type(value[1]) is int
        and all(type(d) is int and d > 0 for d in value[2])
    )


def _tensor(value: Any) -> Tensor | None:
    if not _is_tensor(value):
        return None
    strides = value[3] if len(value) > 3 and isinstance(value[3], (list, tuple)) else ()
    return Tensor(value[1], tuple(value[2]), tuple(strides))


def _pairs(value: Any, depth: int = 0) -> Iterator[tuple[int, Any]]:
    """All (attribute, value) pairs below a descriptor's list, nested descriptors included."""
    if not isinstance(value, (list, tuple)) or depth > 6:
        return
    for item in value:
        if not isinstance(item, (list, tuple)):
            continue
        if len(item) == 2 and type(item[0]) is int:
            yield item[0], item[1]
            if not _is_tensor(item[1]):
                yield from _pairs(item[1], depth + 1)
        if len(item) != 2:
            nested = [i for i in item if isinstance(i, (list, tuple)) and not _is_tensor(i)]
            yield from _pairs(nested, depth + 1)


def operations(graph: Any) -> list[Operation]:
    """The operations of a graph as its signature writes them; malformed parts are left out."""
    found = []
    for item in graph if isinstance(graph, (list, tuple)) else ():
        if not isinstance(item, (list, tuple)) or len(item) != 2 or type(item[0]) is not int:
            continue
        operation = Operation(item[0])
        for attribute, value in _pairs(item[1]):
            tensor = _tensor(value)
            if tensor is not None:
                operation.tensors[attribute] = tensor
            else:
                operation.values.append((attribute, value))
        found.append(operation)
    return found


def as_attention(found: list[Operation]) -> attention.Attention | None:
    """The attention call that a graph computes, or None when it computes something else."""
    for operation in found:
        if operation.kind in SDPA_Q:
            query, key = (
                operation.tensors.get(SDPA_Q[operation.kind]),
                operation.tensors.get(SDPA_K[operation.kind]),
            )
            if query is None or key is None or len(query.dims) != 4 or len(key.dims) != 4:
                continue
            keys = (
                key.dims[3]
                if key.dims[2] == query.dims[3] and key.dims[3] != query.dims[3]
                else key.dims[2]
            )
            return _call(query, key.dims[1], keys, found, operation.kind == SDPA_BACKWARD)
    products = [o for o in found if o.kind == MATMUL and {MATMUL_A, MATMUL_B} <= o.tensors.keys()]
    if len(products) < 2:
        return None
    query, key = products[0].tensors[MATMUL_A], products[0].tensors[MATMUL_B]
    if len(query.dims) != 4 or len(key.dims) != 4:
        return None
    return _call(query, key.dims[1], key.dims[3], found, len(products) >= MATMULS_OF_BACKWARD)


def _call(
    query: Tensor, kv_heads: int, keys: int, found: list[Operation], backward: bool
) -> attention.Attention:
    causal = any(BAND_MASK_Y in o.tensors for o in found) or any(
        value == GEN_INDEX
        for o in found
        for attribute, value in o.values
        if attribute == POINTWISE_MODE
    )
    batch, heads, queries, size = query.dims
    bytes_each = element_bytes(query.kind)
    return attention.Attention(
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        size,
        causal,
        backward,
        bytes_each,
        bias=any(_adds_to_scores(o, queries, keys) for o in found),
        dropout=any(o.kind == RANDOM for o in found),
    )


def _adds_to_scores(operation: Operation, queries: int, keys: int) -> bool:
    """Whether a tensor of a number for each score is added: a mask that is not the causal one, or a bias
    of positions. Single numbers and sums of rows are none."""
    added = operation.tensors.get(POINTWISE_B)
    return (
        operation.kind == POINTWISE
        and (POINTWISE_MODE, ADD) in operation.values
        and added is not None
        and tuple(added.dims[2:]) == (queries, keys)
        and queries * keys > 1
    )


def as_gemm(operation: Operation) -> Gemm | None:
    """An operation as a matrix product (a convolution as an implicit product), or None when it is
    not one."""
    if operation.kind == MATMUL and {MATMUL_A, MATMUL_B} <= operation.tensors.keys():
        a, b = operation.tensors[MATMUL_A], operation.tensors[MATMUL_B]
        if len(a.dims) < 2 or len(b.dims) < 2:
            return None
        return _product(b.dims[-1], a.dims[-2], a.dims[-1], math.prod(a.dims[:-2]), a.kind)
    names = CONVOLUTION_TENSORS.get(operation.kind)
    if names is None or any(n not in operation.tensors for n in names):
        return None
    image, weight, out = (operation.tensors[n] for n in names)
    if (
        len(image.dims) < 3
        or len(weight.dims) != len(image.dims)
        or len(out.dims) != len(image.dims)
    ):
        return None
    groups = max(1, image.dims[1] // weight.dims[1])
    pixels = out.dims[0] * math.prod(out.dims[2:])
    filters, inner = weight.dims[0] // groups or 1, math.prod(weight.dims[1:])
    if operation.kind == CONVOLUTION_FORWARD:
        return _product(filters, pixels, inner, groups, image.kind)
    if operation.kind == CONVOLUTION_FILTER:
        return _product(inner, filters, pixels, groups, image.kind)
    input_pixels = image.dims[0] * math.prod(image.dims[2:])
    # Multiply-adds. A strided convolution has fewer of them per input pixel.
    flop = pixels * filters * inner
    return _product(
        weight.dims[1],
        input_pixels,
        max(1, flop // (input_pixels * weight.dims[1])),
        groups,
        image.kind,
    )


def dilation(operation: Operation) -> int:
    """The largest distance between neighbours of a convolution's filter; 1 without gaps."""
    found = (
        max(value)
        for attribute, value in operation.values
        if attribute == CONVOLUTION_DILATIONS and isinstance(value, (list, tuple)) and value
    )
    return max(found, default=1)


def _product(m: int, n: int, k: int, batch: int, kind: int) -> Gemm:
    code = DATA_TYPES.get(kind, (4, 0))[1]
    return Gemm(0, 0, 0, m, n, k, batch, code, code, code, code, TF32_COMPUTE, 1, m, k, m)


def convolution_ns(operation: Operation, product: Gemm, rates: Rates) -> float:
    """Nanoseconds of a convolution: its implicit product, each operand moved once, and a layout
    change for tensors that are not channels last. Tensor cores need channels innermost, in multiples
    of 16 bytes (cuDNN developer guide, tensor layouts)."""
    kind = gemm.arithmetic(product)
    tensors = [operation.tensors[n] for n in CONVOLUTION_TENSORS[operation.kind]]
    unit = max(1, 16 // gemm.data_type(product.atype)[0])
    channels = tensors[1].dims[1]
    padded = math.ceil(channels / unit) * unit / channels if kind != "fp32" else 1.0
    share = rates.number(
        "convolution.few_channels" if channels < unit and kind != "fp32" else "convolution.share"
    )
    tiles = math.ceil(product.m / TILE) * math.ceil(product.n / TILE) * product.batch
    waves = tiles / rates.multiprocessors
    # The product for a filter's gradient splits its sum, so it fills the last wave.
    filled = waves / math.ceil(waves) if operation.kind != CONVOLUTION_FILTER else 1.0
    arithmetic = gemm.flop(product) * padded / (rates.peak(kind) * share * filled)
    moved = sum(tensor.bytes for tensor in tensors)
    moving = moved / (rates.memory_bytes_per_ns * rates.number("convolution.bandwidth"))
    wide = math.prod(tensors[1].dims[2:]) > 1  # a 1x1 filter is a plain product in either layout
    relaid = sum(
        2 * t.bytes
        for t in tensors
        if wide and len(t.strides) > 2 and t.dims[1] > 1 and t.strides[1] != 1
    )
    relaying = relaid / (rates.memory_bytes_per_ns * rates.number("convolution.relayout_bandwidth"))
    return rates.number("convolution.base") + max(arithmetic, moving) + relaying
