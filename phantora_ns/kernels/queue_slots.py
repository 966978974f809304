"""How many pieces of GPU work one call puts on its stream, each of which takes a place in the
driver's launch queue.

Why it exists: the queue holds a number of works, not of calls (libintercept/time/launch_queue.c), and
cuBLAS and cuDNN launch fills and helper kernels beside the one that the call is about. A simulated
rank sees the call alone. The counts are those of the calibration traces in
bench/accuracy/data/traces (cuBLAS 13.1, cuDNN 9.19, H200).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from phantora_ns.kernels import signature
from phantora_ns.kernels.estimators import cudnn_graphs
from phantora_ns.model.contention import tiles_of
from phantora_ns.protocol import MemoryKind, MemoryOp, SignatureKind

COUNTER_WAVES = 3
"""A product of more waves of tiles than this hands them out by a counter in memory, which a fill
resets: in the traces every product from 3.9 waves on has one, none up to 2.3."""
SPLIT_TILES_SHARE = 0.5
SPLIT_K = 16384
"""A product of fewer 128 x 128 tiles than this share of the multiprocessors, and at least so deep,
is split along k and its parts added by a second kernel: in the traces 64 tiles at k = 16,384 are,
at 8,192 are not."""
SPLIT_TILE = 128


class Works(NamedTuple):
    """`count` works; those of them that end as the main one starts, or shortly after, are `ahead`
    of it."""

    count: int = 1
    ahead: int = 0

    def packed(self) -> int:
        """As one number below 2^16, as the kernel table and LOOKUP's answer hold it
        (docs/wire-protocol.md)."""
        return self.count | self.ahead << 8


def works_of(kind: int, fields: Any, multiprocessors: int) -> Works:
    """The works of a signature's call; one for whatever cannot be read. Copies between host and GPU
    have none: they have a queue of their own, which no trace fills. O(size of the signature)."""
    try:
        if kind == SignatureKind.GEMM:
            return _product(signature.parse_numbers(signature.Gemm, fields), multiprocessors)
        if kind == SignatureKind.MEMORY:
            memory = signature.parse_numbers(signature.Memory, fields)
            return (
                Works()
                if memory.op == MemoryOp.SET or (memory.src == memory.dst == MemoryKind.DEVICE)
                else Works(0)
            )
        if kind == SignatureKind.CUDNN:
            return _graph(fields[0])
    except (signature.SignatureError, TypeError, LookupError, ValueError):
        pass  # lists of a foreign process: whatever is wrong with them, the call is one work
    return Works()


def _product(product: signature.Gemm, multiprocessors: int) -> Works:
    if tiles_of(product.m, product.n, product.batch) > COUNTER_WAVES * multiprocessors:
        return Works(2, 1)
    tiles = product.batch * -(-product.m // SPLIT_TILE) * -(-product.n // SPLIT_TILE)
    return (
        Works(2)
        if tiles < SPLIT_TILES_SHARE * multiprocessors and product.k >= SPLIT_K
        else Works()
    )


def _graph(graph: Any) -> Works:
    """Attention: a fill and a kernel; backward, the fill, the sums over outputs, the main kernel, a
    conversion, and, where heads share keys and values, two reductions. A convolution: a fill and a
    kernel, or a kernel and the sum of its parts; one kernel if it is a matrix product (a filter of
    one pixel, forward)."""
    found = cudnn_graphs.operations(graph)
    attention = cudnn_graphs.as_attention(found)
    if attention is not None:
        grouped = attention.kv_heads < attention.heads
        return Works(6 if grouped else 4, 2) if attention.backward else Works(2, 1)
    for operation in found:
        if operation.kind == cudnn_graphs.CONVOLUTION_FORWARD:
            pixel = operation.tensors[cudnn_graphs.CONVOLUTION_TENSORS[operation.kind][1]].dims[2:]
            return Works() if all(size == 1 for size in pixel) else Works(2, 1)
        if operation.kind == cudnn_graphs.CONVOLUTION_DATA:
            return Works(2, 1)
        if operation.kind == cudnn_graphs.CONVOLUTION_FILTER:
            return Works(2)
    return Works()
