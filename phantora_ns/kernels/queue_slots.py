"""How many slots of the driver's launch queue one call takes: one for each piece of GPU work.

Why it exists: the host waits when the queue is full (libintercept/time/launch_queue.c), and cuBLAS
and cuDNN launch fills and helper kernels in addition to the main kernel. A simulated rank sees only
the call. The counts are those of the calibration traces in bench/accuracy/data/traces (cuBLAS 13.1,
cuDNN 9.19, H200).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from phantora_ns.kernels import signature
from phantora_ns.kernels.estimators import cudnn_graphs
from phantora_ns.model.contention import tiles_of
from phantora_ns.protocol import MemoryKind, MemoryOp, SignatureKind

COUNTER_WAVES = 3
"""A product of more waves of tiles than this distributes them by a counter in memory, which a fill
resets. In the traces, every product of at least 3.9 waves has such a fill, and none of up to 2.3."""
SPLIT_TILES_SHARE = 0.5
SPLIT_K = 16384
"""A product with fewer 128 x 128 tiles than this share of the multiprocessors, and with k of at
least SPLIT_K, is split along k, and a second kernel adds the parts. In the traces, 64 tiles are
split at k = 16,384 and not at 8,192."""
SPLIT_TILE = 128


class QueueSlots(NamedTuple):
    """`count` slots in all; `ahead` of them are free again when the main kernel starts, or shortly
    after."""

    count: int = 1
    ahead: int = 0

    def packed(self) -> int:
        """Both as one number below 2^16, as in the kernel table and in LOOKUP's answer
        (docs/wire-protocol.md)."""
        return self.count | self.ahead << 8


def queue_slots_of(kind: int, fields: Any, multiprocessors: int) -> QueueSlots:
    """The slots that a signature's call takes; one for a signature that cannot be read. Copies
    between host and GPU take none: they have a queue of their own, which no trace fills. O(size of
    the signature)."""
    try:
        if kind == SignatureKind.GEMM:
            return _product(signature.parse_numbers(signature.Gemm, fields), multiprocessors)
        if kind == SignatureKind.MEMORY:
            memory = signature.parse_numbers(signature.Memory, fields)
            return (
                QueueSlots()
                if memory.op == MemoryOp.SET or (memory.src == memory.dst == MemoryKind.DEVICE)
                else QueueSlots(0)
            )
        if kind == SignatureKind.CUDNN:
            return _graph(fields[0])
    except (signature.SignatureError, TypeError, LookupError, ValueError):
        pass  # lists of another process: whatever is wrong with them, the call takes one slot
    return QueueSlots()


def _product(product: signature.Gemm, multiprocessors: int) -> QueueSlots:
    if tiles_of(product.m, product.n, product.batch) > COUNTER_WAVES * multiprocessors:
        return QueueSlots(2, 1)
    tiles = product.batch * -(-product.m // SPLIT_TILE) * -(-product.n // SPLIT_TILE)
    return (
        QueueSlots(2)
        if tiles < SPLIT_TILES_SHARE * multiprocessors and product.k >= SPLIT_K
        else QueueSlots()
    )


def _graph(graph: Any) -> QueueSlots:
    """Attention forward is a fill and a kernel. Backward is a fill, the sums over outputs, the main
    kernel, a conversion, and two reductions if heads share keys and values. A convolution is a fill
    and a kernel, or a kernel and the sum of its parts; with a filter of one pixel, forward, it is a
    matrix product: one kernel."""
    found = cudnn_graphs.operations(graph)
    attention = cudnn_graphs.as_attention(found)
    if attention is not None:
        grouped = attention.kv_heads < attention.heads
        return QueueSlots(6 if grouped else 4, 2) if attention.backward else QueueSlots(2, 1)
    for operation in found:
        if operation.kind == cudnn_graphs.CONVOLUTION_FORWARD:
            pixel = operation.tensors[cudnn_graphs.CONVOLUTION_TENSORS[operation.kind][1]].dims[2:]
            return QueueSlots() if all(size == 1 for size in pixel) else QueueSlots(2, 1)
        if operation.kind == cudnn_graphs.CONVOLUTION_DATA:
            return QueueSlots(2, 1)
        if operation.kind == cudnn_graphs.CONVOLUTION_FILTER:
            return QueueSlots(2)
    return QueueSlots()
