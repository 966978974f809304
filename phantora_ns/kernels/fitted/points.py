"""How the fitted models see a signature: its pool, its amount of work, and its position among others.

Why it exists: a measured signature and a requested one must give the same few numbers. A database
does not hold a launch's parameters, so they are not used here.

A point's `terms` are nanoseconds that parts of its work would take at a limit of the GPU. None of
them shrinks when the work grows. The first is the estimator's own time, the second is constant. The
`position` holds what decides which library kernel, tile or split is chosen. Its unit is the distance
over which times stay similar.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from phantora_ns.kernels import signature
from phantora_ns.kernels.binary import names
from phantora_ns.kernels.estimators import (
    attention,
    batch_norm,
    cudnn_graphs,
    gemm,
    launch,
    memory,
    triton,
)
from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import Gemm, Kernel, Memory
from phantora_ns.protocol import MemoryKind, MemoryOp, SignatureKind, Source

OCTAVES = 2.0  # sizes within a factor of 4 take similar times, relative to the law
# The share of the multiprocessors that the last wave of tiles fills matters much more than size.
WAVE_OCTAVES = 0.25
# Tiles of the nvjet kernels that training uses, as their names give them.
TILES = ((256, 128), (128, 256), (128, 128), (192, 128))
THREADS = 2048  # per multiprocessor: CUDA C programming guide, table of compute capabilities
# Cycles that one block needs per element of its row when it works alone; the order of magnitude.
SERIAL_CYCLES = 4.0
# For Triton kernels of one name, autotuning matters more than the work's sizes.
SIZE_OCTAVES = 3.0
# Time that a block with almost no work occupies a multiprocessor: rms_norm, 128 elements per block.
BLOCK_NS = 80.0
# What a block of attention takes before and after its products, in order of magnitude; fits find its multiple.
ATTENTION_BLOCK_NS = 1000.0
# Bytes that a read of one element moves, at most and at least (CUDA C++ best practices guide,
# 10.2.1).
SECTOR, TWO_BYTES = 32.0, 2.0
# Multiply-adds per multiprocessor and cycle where a convolution has few channels a group: its ordinary
# lanes (CUDA C++ programming guide, table of arithmetic throughput, fp32 on compute capability 9.0).
CHANNEL_LANES = 128
# Filters with wider gaps are convolved by other kernels: measured were 2 and 4 on one side, and 12, 24 and
# 36 on the other.
WIDE_DILATION = 8
# Families of launches over lists of tensors.
OVER_LISTS = ("foreach", "optimizer")
INTEGER = 0xFFFFFFFF  # in a launch's identity: a parameter that is not a small integer
_NUMBERED = re.compile(r"_\d+(d\w*)?$")


@dataclass(frozen=True, slots=True)
class Point:
    """A signature as the models see it. `family`: the pool that shares one process; `group`: launches
    that share one law; `name`: launches that do the same."""

    family: str
    group: str
    name: str
    terms: tuple[float, ...]
    position: tuple[float, ...]
    source: int
    bound_by: int


def _log(value: float, octaves: float = OCTAVES) -> float:
    return math.log2(max(value, 1.0)) / octaves


def point(
    kind: int, fields: Any, context: Any, estimate: launch.Estimate, rates: Rates
) -> Point | None:
    """The point of a signature whose estimate is known; None for a signature that does not give its
    amount of work.

    Raises SignatureError and the arithmetic errors of nonsensical sizes, as the estimators do.
    """
    if kind == SignatureKind.GEMM:
        return _gemm(signature.parse_numbers(Gemm, fields), estimate, rates)
    if kind == SignatureKind.CUDNN:
        return _graph(fields[0], estimate, rates)
    if kind == SignatureKind.MEMORY:
        return _memory(signature.parse_numbers(Memory, fields), estimate, rates)
    if kind == SignatureKind.KERNEL:
        kernel, around = signature.parse_kernel(fields), launch.context_of(context)
        work = triton.work(kernel, fields[11]) if around is None else None
        if work is not None:
            return _inductor(kernel, work, estimate, rates)
        return _kernel(kernel, fields[11], around, estimate, rates)
    if kind == SignatureKind.CALL:
        return _call(fields, estimate, rates)
    return None


# ---- products ----


def _product_terms(product: Gemm, rates: Rates) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(terms, position) of a product. The terms are times by arithmetic, by traffic, and by whole
    waves of each tile."""
    m, n, k, batch = (max(1, v) for v in (product.m, product.n, product.k, product.batch))
    peak = rates.peak(gemm.arithmetic(product))
    arithmetic = 2.0 * m * n * k * batch / peak
    read, written = gemm.moved_bytes(product)
    waves, fills = [], []
    for rows, columns in TILES:
        tiles = math.ceil(m / rows) * math.ceil(n / columns) * batch
        waves.append(
            math.ceil(tiles / rates.multiprocessors)
            * 2.0
            * rows
            * columns
            * k
            * rates.multiprocessors
            / peak
        )
        fills.append(waves[-1] / arithmetic)
    bandwidth = rates.memory_bytes_per_ns
    terms = (1.0, arithmetic, (read + written) / bandwidth, written / bandwidth, *waves)
    position = (
        _log(m),
        _log(n),
        _log(k),
        _log(batch),
        *(min(math.log2(fill), 2.0) / WAVE_OCTAVES / 2 for fill in fills[:3]),
    )
    return terms, position


def _gemm(product: Gemm, estimate: launch.Estimate, rates: Rates) -> Point:
    terms, position = _product_terms(product, rates)
    types = f"{product.atype},{product.btype},{product.ctype},{product.dtype} {gemm.arithmetic(product)}"
    layout = f"{product.transa}{product.transb} {product.api} {product.epilogue}"
    kernels = "vector" if gemm.with_vector(product) else gemm.misaligned(product)
    return Point(
        "gemm",
        f"{types} {kernels}".rstrip(),
        layout,
        (estimate.duration_ns, *terms),
        position,
        Source.GEMM,
        estimate.bound_by,
    )


# ---- cuDNN graphs ----


def _graph(graph: Any, estimate: launch.Estimate, rates: Rates) -> Point | None:
    found = cudnn_graphs.operations(graph)
    call = cudnn_graphs.as_attention(found)
    if call is not None:
        return attention_point(call, estimate, rates)
    products = [(o, p) for o in found if (p := cudnn_graphs.as_gemm(o)) is not None]
    tensors = {t for o in found for t in o.tensors.values()}
    moved = sum(t.bytes for t in tensors)
    if not moved:
        return None
    kinds = "+".join(str(o.kind) for o in found)
    if not products:
        position = (_log(moved), _log(max(math.prod(t.dims) for t in tensors)))
        terms = (estimate.duration_ns, 1.0, moved / rates.memory_bytes_per_ns)
        return Point("cudnn graph", kinds, kinds, terms, position, Source.LAW, estimate.bound_by)
    operation, product = products[0]
    sums = [sum(values) for values in zip(*(_product_terms(p, rates)[0] for _, p in products))]
    dims = [t.dims for t in operation.tensors.values()]
    filters = operation.tensors.get(
        cudnn_graphs.CONVOLUTION_TENSORS.get(operation.kind, (0, 0, 0))[1]
    )
    window = math.prod(filters.dims[2:]) if filters is not None else 1
    inner = all(t.strides[1] == 1 or t.dims[1] == 1 for t in tensors if len(t.strides) > 2)
    position = (
        *_product_terms(product, rates)[1],
        _log(window, 1.0),
        _log(dims[0][1]) if len(dims[0]) > 1 else 0.0,
        _log(cudnn_graphs.dilation(operation), 1.0),
    )
    grouped = _groups(product, filters)
    dilated = _dilated(operation)
    layout = "last" if inner else "first"
    name = f"{len(products)} {layout} {window > 1} {product.atype}"
    elements = sum(math.prod(t.dims) for t in tensors)
    terms = (
        estimate.duration_ns,
        *sums,
        moved / rates.memory_bytes_per_ns,
        elements * window / (rates.multiprocessors * rates.cycles_per_ns * CHANNEL_LANES)
        if grouped or dilated
        else 0.0,
    )
    arithmetic = gemm.arithmetic(product)
    kind = "half" if arithmetic in ("bf16", "fp16") else arithmetic
    return Point(
        "convolution",
        f"{kinds} {kind} {layout}{grouped}{dilated}",
        name,
        terms,
        position,
        Source.GEMM,
        estimate.bound_by,
    )


def _groups(product: Gemm, filters: cudnn_graphs.Tensor | None) -> str:
    """How a convolution's filters lie: cuDNN has kernels for every channel by itself, for groups of a
    power of two, and for other groups."""
    if filters is None or product.batch == 1:
        return ""
    width = filters.dims[1]
    return " single" if width == 1 else " groups" if width & (width - 1) == 0 else " odd groups"


def _dilated(operation: cudnn_graphs.Operation) -> str:
    """How wide a filter's gaps are: none, narrow or wide. cuDNN's kernels for wide gaps take up to 1.7 times as long
    as those for narrow ones, and its kernels for dilated single channels ten times as long as for others."""
    gaps = cudnn_graphs.dilation(operation)
    return "" if gaps == 1 else " widely dilated" if gaps > WIDE_DILATION else " dilated"


def attention_point(call: attention.Attention, estimate: launch.Estimate, rates: Rates) -> Point:
    """The point of an attention call, from a graph or from a flash kernel's launch."""
    whole = attention.done(call)
    arithmetic = attention.flop(whole) / rates.peak("bf16")
    exponentials = (
        attention.flop(whole)
        / max(1, whole.head_size)
        / (rates.multiprocessors * rates.cycles_per_ns * 16)
    )
    moving = attention.moved_bytes(call) / rates.memory_bytes_per_ns
    blocks = attention.blocks(call)
    waves = math.ceil(blocks / rates.multiprocessors)
    wave = waves * rates.multiprocessors / blocks * arithmetic
    position = (
        _log(call.batch * call.heads),
        _log(call.queries),
        _log(call.keys),
        _log(whole.head_size, 1.0),
        _log(call.heads / max(1, call.kv_heads)),
    )
    direction = "backward" if call.backward else "forward"
    mask = "causal" if call.causal else "full"
    group = f"{call.backend} {direction} {mask} {whole.head_size:.0f}"
    # cuDNN masks keys that do not fill its tiles, in kernels that take longer for every tile.
    masked = whole.keys != call.keys
    traits = {"masked": masked, "bias": call.bias, "dropout": call.dropout}
    name = " ".join([str(call.element_bytes), *(trait for trait in traits if traits[trait])])
    starts = waves * ATTENTION_BLOCK_NS
    masking = wave if masked else 0.0
    bias, dropout = attention.bias_ns(call, rates), attention.dropout_ns(call, rates)
    work = (estimate.duration_ns, 1.0, arithmetic, exponentials, moving, wave, starts)
    terms = (*work, masking, bias, dropout)
    # All members of a family have the same kind.
    family = "attention" if call.backend == "cudnn" else f"attention {call.backend}"
    return Point(family, group, name, terms, position, Source.ATTENTION, estimate.bound_by)


# ---- copies and other calls ----


def _memory(call: Memory, estimate: launch.Estimate, rates: Rates) -> Point:
    places = {call.src, call.dst}
    over_bus = call.op == MemoryOp.COPY and places != {MemoryKind.DEVICE}
    limit = rates.pcie_bytes_per_ns if over_bus else rates.memory_bytes_per_ns
    group = f"{call.op} {call.src} {call.dst}" if call.op == MemoryOp.COPY else "set"
    terms = (estimate.duration_ns, 1.0, max(0, call.bytes) / limit)
    return Point("copy", group, group, terms, (_log(call.bytes),), Source.COPY, estimate.bound_by)


def _call(fields: Any, estimate: launch.Estimate, rates: Rates) -> Point | None:
    """Any other library call. Its positive numbers count as sizes, and their product as its
    volume."""
    if not isinstance(fields, (list, tuple)) or len(fields) != 2 or not isinstance(fields[0], str):
        return None
    norm = batch_norm.parse(fields[0], fields[1])
    if norm is not None:
        return _batch_norm(norm, estimate, rates)
    sizes = [v for v in fields[1] if type(v) is int and v > 0]
    volume = math.prod(sizes[:8]) if sizes else 0
    terms = (estimate.duration_ns, 1.0, min(volume, 1 << 50) / rates.memory_bytes_per_ns)
    position = (_log(volume), _log(max(sizes, default=1)))
    return Point("call", fields[0], fields[0], terms, position, Source.LAW, estimate.bound_by)


def _batch_norm(call: batch_norm.BatchNorm, estimate: launch.Estimate, rates: Rates) -> Point:
    terms = (estimate.duration_ns, 1.0, *batch_norm.terms_ns(call, rates))
    position = (_log(call.channels), _log(call.per_channel), _log(call.pixels))
    layout = "last" if call.last else "first"
    group = f"{call.pass_} {call.element_bytes} {layout} {'kept' if call.kept else 'read again'}"
    return Point("batch norm", group, group, terms, position, Source.LAW, estimate.bound_by)


# ---- kernels ----


def _inductor(kernel: Kernel, work: triton.Work, estimate: launch.Estimate, rates: Rates) -> Point:
    """The point of a kernel that TorchInductor wrote.

    Its name says which operators were fused, and so fixes the types and the smaller tensors.
    Autotuning chooses the block sizes. How a reduction's row lies in memory is not known. If it is
    strided and a block takes few rows, each element costs a whole sector.
    """
    bandwidth = rates.memory_bytes_per_ns
    threads = kernel.blocks * kernel.block_threads
    rows, per_thread = max(1.0, work.rows / kernel.blocks), work.elements / threads
    waves = math.ceil(threads / (THREADS * rates.multiprocessors))
    serial = per_thread * SERIAL_CYCLES / rates.cycles_per_ns
    scattered = (
        0.0
        if work.kind == triton.POINTWISE
        else work.elements * max(TWO_BYTES, SECTOR / rows) / bandwidth
    )
    terms = (
        estimate.duration_ns,
        1.0,
        work.bytes / bandwidth,
        threads * launch.GUESSED_BYTES_PER_THREAD / bandwidth,
        kernel.blocks * BLOCK_NS / rates.multiprocessors,
        serial,
        waves * serial,
        scattered,
        float(waves),
    )
    position = (
        _log(work.elements, SIZE_OCTAVES),
        _log(work.length, SIZE_OCTAVES),
        _log(rows),
        _log(per_thread),
        _log(kernel.block_threads),
    )
    _, group, label = _labels(kernel.name)
    dimensions = " tiles" if work.kind == triton.POINTWISE and kernel.gy > 1 else ""
    return Point(
        f"kernel triton_{work.kind}",
        group + dimensions,
        label,
        terms,
        position,
        Source.LAW,
        estimate.bound_by,
    )


@lru_cache(maxsize=8192)
def _labels(name: str) -> tuple[str, str, str]:
    """(family, group, name) of a kernel's name. Triton's serial number is removed: it only counts
    kernels in the order in which Triton meets them."""
    parsed = names.parse(name)
    if parsed.base.startswith("triton_"):
        plain = _NUMBERED.sub("", parsed.base)
        return "triton", "_".join(plain.split("_")[:2]), plain
    group = parsed.base
    if parsed.base == memory.OVER_LISTS and len(parsed.arguments) > 1:
        group += " " + parsed.arguments[1]
    return memory.family(parsed), group, parsed.text.removeprefix("void ")


def identity_sizes(identity: Any) -> list[int]:
    """The small integers among a launch's parameters, as an identity without an operator holds them
    (docs/wire-protocol.md)."""
    if not isinstance(identity, bytes) or len(identity) % 4 or not identity:
        return []
    return [
        value for value in struct.unpack(f"<{len(identity) // 4}I", identity) if value != INTEGER
    ]


def _kernel(
    kernel: Kernel,
    identity: Any,
    context: launch.Context | None,
    estimate: launch.Estimate,
    rates: Rates,
) -> Point:
    name = names.parse(kernel.name)
    call = launch.attention_call(kernel, name, context)
    if call is not None:
        return attention_point(call, estimate, rates)
    family, group, label = _labels(kernel.name)
    found = memory.traffic(kernel, name)
    bandwidth = rates.memory_bytes_per_ns
    threads = kernel.blocks * kernel.block_threads
    given = float(context.input_bytes if context else 0)
    if found is not None and found.family in OVER_LISTS:
        given = min(given, found.bytes / 2)  # a launch is one of many of its operator
    row = context.shapes[0][-1] if context and context.shapes and context.shapes[0] else 0
    sizes = [] if context else identity_sizes(identity)
    volume = math.prod(sorted(sizes)[-2:]) if sizes else 0
    per_block = (given / 4 or min(volume, 1 << 50)) / max(1, kernel.blocks)
    waves = math.ceil(threads / (THREADS * rates.multiprocessors))
    terms = (
        estimate.duration_ns,
        1.0,
        threads * launch.GUESSED_BYTES_PER_THREAD / bandwidth,
        given / bandwidth,
        found.bytes / bandwidth if found else 0.0,
        min(volume, 1 << 50) / bandwidth,
        per_block * SERIAL_CYCLES / rates.cycles_per_ns / 1000,
        float(waves),
    )
    position = (
        _log(kernel.blocks),
        _log(kernel.block_threads),
        _log(given or volume),
        _log(row or max(sizes, default=0)),
    )
    if found is not None:
        family = found.family
    if family.startswith("strided"):
        label += f" {launch.dimensions(context)}"
    known = "with" if given else "without"
    operator = context.operator if context else ""
    if context and context.window:
        label += f" window {context.window}"
    source = estimate.source if estimate.source == Source.ATTENTION else Source.LAW
    return Point(
        f"kernel {family}",
        f"{group} {known}",
        f"{label} {operator}",
        terms,
        position,
        source,
        estimate.bound_by,
    )
