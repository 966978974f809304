"""Time of one kernel launch that no database holds.

Why it exists: one place decides in which order the estimators are asked and what each may claim to
know. The order is attention, grouped products, memory traffic, launch volume.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from phantora_ns.kernels import signature
from phantora_ns.kernels.binary import names
from phantora_ns.kernels.estimators import attention, bounds, grouped, memory, triton
from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import Kernel
from phantora_ns.protocol import BoundBy, Source

# Operators whose output holds all of their inputs.
JOINING = ("aten::cat", "aten::stack", "aten::_chunk_cat")
# A thread of an unknown kernel reads or writes this much: one vector access.
GUESSED_BYTES_PER_THREAD = 16
REPEATED = ("gather", "indexed")  # families that may read the same bytes repeatedly
SAME_BYTES = 0.10  # operands that differ by less than this share are the same work
# A launch handles at most this many bytes of its operator's operands per thread.
MOST_BYTES_PER_THREAD = 64
UNREADABLE = (
    signature.SignatureError,
    ArithmeticError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Nanoseconds, source and `bound_by`, as the kernel table holds them."""

    duration_ns: float
    source: int
    bound_by: int


@dataclass(frozen=True, slots=True)
class Context:
    """The framework operator around a launch; sizes in bytes. `window`: the sizes of a pooling operator's window,
    which no tensor shows."""

    operator: str
    input_bytes: int
    output_bytes: int
    shapes: tuple[tuple[int, ...], ...]
    window: tuple[int, ...] = ()

    @property
    def total_bytes(self) -> float:
        """Bytes of inputs and outputs. Outputs that are not known yet (0) count as one input of mean
        size. They count nothing for an operator that works in place, as much as all inputs for one
        that joins its inputs, and as the largest input for a norm, whose weights are small."""
        if not self.output_bytes and self.operator in JOINING:
            return 2.0 * self.input_bytes
        if self.output_bytes or self.operator.endswith("_"):
            return self.input_bytes + self.output_bytes
        if "norm" in self.operator:
            sizes = [math.prod(shape) for shape in self.shapes if shape]
            return self.input_bytes * (1 + max(sizes, default=0) / max(1, sum(sizes)))
        return self.input_bytes + self.input_bytes / max(
            1, sum(1 for shape in self.shapes if shape)
        )


def dimensions(context: Context | None) -> int:
    """How many loops a strided elementwise launch makes of its operands' shapes: dimensions of more
    than one element, neighbours with the same broadcast operands taken as one. Each costs an
    integer division per element and operand. 0 when the shapes are not known.

    >>> dimensions(Context("aten::mul", 0, 0, ((2, 8192, 32, 64), (8192, 1, 64))))
    4
    >>> dimensions(Context("aten::mul", 0, 0, ((1, 8192, 32, 64), (8192, 1, 64))))
    3
    """
    shapes = [shape for shape in context.shapes if shape] if context else []
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    patterns = [tuple(size > 1 for size in sizes) for sizes in zip(*padded, strict=True)]
    kept = [pattern for pattern in patterns if any(pattern)]
    return sum(1 for at, pattern in enumerate(kept) if at == 0 or pattern != kept[at - 1])


def context_of(value: Any) -> Context | None:
    """The context that a rank sent, or None when it is malformed."""
    if not isinstance(value, (list, tuple)) or len(value) != 4 or not isinstance(value[0], str):
        return None
    if not all(type(v) is int and v >= 0 for v in value[1:3]) or not isinstance(
        value[3], (list, tuple)
    ):
        return None
    shapes = tuple(
        tuple(s)
        for s in value[3]
        if isinstance(s, (list, tuple)) and all(type(d) is int for d in s)
    )
    return Context(value[0], value[1], value[2], *_apart(value[0], shapes))


def _apart(
    operator: str, shapes: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The shapes of tensors, and the window of a pooling operator, which ranks send among them. All tensors of such
    an operator have as many dimensions as its first, and its window has fewer.

    >>> _apart("aten::max_pool2d_with_indices", ((8, 64, 112, 112), (3, 3)))
    (((8, 64, 112, 112),), (3, 3))
    """
    if "_pool" not in operator or not shapes:
        return shapes, ()
    tensors = tuple(shape for shape in shapes if len(shape) == len(shapes[0]))
    window = next((shape for shape in shapes if len(shape) < len(shapes[0])), ())
    return tensors, window


def estimate(
    kernel: Kernel, context: Context | None, rates: Rates, identity: Any = b""
) -> Estimate:
    """The time of a launch. There is always an answer, at worst a guess from the launch's volume.
    `identity`: the signature's."""
    inductor = triton.work(kernel, identity) if context is None else None
    if inductor is not None:
        return Estimate(triton.duration_ns(inductor, kernel, rates), Source.ROOFLINE, BoundBy.FUSED)
    name = names.parse(kernel.name)
    call = attention_call(kernel, name, context)
    if call is not None:
        return Estimate(attention.duration_ns(call, rates), Source.ATTENTION, BoundBy.ATTENTION)
    product = (
        grouped.product(context.operator, kernel.name, context.input_bytes, context.shapes)
        if context
        else None
    )
    if product is not None:
        return Estimate(grouped.duration_ns(product, rates), Source.GEMM, BoundBy.COMPUTE)
    found = memory.traffic(kernel, name)
    threads = kernel.blocks * kernel.block_threads
    if found is not None:
        size = found.bytes
        if context and context.input_bytes and found.family.startswith("strided"):
            # Broadcast inputs are smaller than the launch.
            size = min(size, context.input_bytes + size / 2)
        if context and context.input_bytes and found.family in ("foreach", "optimizer"):
            # For lists of small tensors, no element is read or written twice.
            size = min(size, 2.0 * context.input_bytes)
        time = rates.memory_ns(found.family, size, found.elements, kernel.blocks)
        if found.scattered:
            time = max(
                time, rates.memory_ns(found.family, 0) + rates.scattered_ns(size + found.scattered)
            )
        return Estimate(time, Source.ROOFLINE, bounds.of_kernel(name.text))
    if context and context.input_bytes:
        family = memory.family(name)
        size = context.total_bytes * memory.passes(name)
        if family == "other":  # the operator may launch several kernels; this is one of them
            size = min(
                max(size, GUESSED_BYTES_PER_THREAD * threads), MOST_BYTES_PER_THREAD * threads
            )
        elements = max(context.input_bytes, context.output_bytes) / memory.element_bytes(name)
        return Estimate(
            rates.memory_ns(family, size, elements, kernel.blocks),
            Source.ROOFLINE,
            bounds.of_kernel(name.text),
        )
    return Estimate(
        rates.memory_ns("other", threads * GUESSED_BYTES_PER_THREAD), Source.GUESS, BoundBy.MEMORY
    )


def least_ns(fields: Any, context: Any, parameters: bytes | None, rates: Rates) -> float:
    """Lower bound of a launch's time: the traffic that exceeds the cache, at the memory's peak. 0
    where the traffic is not known."""
    try:
        kernel = signature.parse_kernel(fields, parameters)
        found = memory.traffic(kernel, names.parse(kernel.name))
    except UNREADABLE:
        return 0.0
    if found is None or found.family in REPEATED:
        return 0.0
    given = context_of(context)
    size = (
        min(found.bytes, given.input_bytes + found.bytes / 2)
        if given and given.input_bytes
        else found.bytes
    )
    return max(0.0, size - rates.cache_bytes) / rates.memory_bytes_per_ns


def scattered(fields: Any, parameters: bytes | None) -> bool:
    """Whether a launch's strides show that it fetches a whole sector for each element. Only the
    parameters show this; contexts and databases hold no strides."""
    try:
        kernel = signature.parse_kernel(fields, parameters)
        found = memory.traffic(kernel, names.parse(kernel.name))
    except UNREADABLE:
        return False
    return found is not None and found.scattered > 0


def alike(fields: Any, context: Any, parameters: bytes | None) -> Callable[[Any], bool]:
    """A test whether a recorded launch, which differs from `fields` only in identity, does the same
    work.

    If name and launch give the amount of work, any such launch does the same work. Otherwise the
    contexts must match: the grid of a norm or a softmax has one block per row and does not give the
    rows' length. A strided launch makes more loops of some shapes than of others. A launch with
    scattered accesses matches none, because recorded launches hold no strides.
    """
    try:
        kernel = signature.parse_kernel(fields)
        found = memory.traffic(kernel, names.parse(kernel.name))
    except UNREADABLE:
        return lambda other: False
    if scattered(fields, parameters):
        return lambda other: False
    asked = context_of(context)
    if found is not None and found.family.startswith("strided"):
        loops = dimensions(asked)
        return lambda other: not loops or dimensions(context_of(other)) in (0, loops)
    if found is not None or asked is None or not asked.input_bytes:
        return lambda other: True

    def same(other: Any) -> bool:
        its = context_of(other)
        return its is not None and abs(its.input_bytes / asked.input_bytes - 1) <= SAME_BYTES

    return same


def is_part(fields: Any) -> bool:
    """Whether one operator may launch several such kernels, each for some of its tensors: launches over lists of
    tensors, and concatenations. The operator's inputs then do not tell how much one launch moves."""
    try:
        name = names.parse(signature.parse_kernel(fields).name)
    except UNREADABLE:
        return False
    return name.base == memory.OVER_LISTS or memory.family(name) == "concatenate"


PART_BLOCKS = memory.TENSOR_LISTS[0].blocks
LEAST_WHOLE = PART_BLOCKS - memory.TENSOR_LISTS[0].tensors[0]
"""Blocks of such a launch with a whole chunk to work on: the last one of each tensor may have less."""


class Parts(NamedTuple):
    """Equal launches that do the work of one together: the fields of each, and how many (the last
    of them may be a fraction)."""

    fields: list[Any]
    count: float


def parts(fields: Any) -> Parts | None:
    """A launch over lists of tensors that has more blocks than PyTorch gave one before it had larger
    lists (2.14), as such launches. None for every other launch."""
    found = _over_lists(fields)
    if found is None or found.blocks <= PART_BLOCKS:
        return None
    return Parts([fields[0], PART_BLOCKS, *fields[2:]], found.blocks / PART_BLOCKS)


def is_whole_part(fields: Any, parameters: bytes | None = None) -> bool:
    """Whether this is a launch over lists of tensors with as many blocks as PyTorch gave one before 2.14. Its lists
    hold at most 110 tensors, so that at least 210 of the 320 blocks have a whole chunk to work on: all such
    launches of a kernel do about the same work, whatever the tensors. Later lists hold more; `parameters`,
    where known, tell how much work it is."""
    kernel = _over_lists(fields, parameters)
    if kernel is None or kernel.blocks != PART_BLOCKS:
        return False
    try:
        traffic = memory.foreach(kernel, names.parse(kernel.name))
    except UNREADABLE:
        return False
    return traffic is not None and traffic.elements >= LEAST_WHOLE * memory.CHUNK


def _over_lists(fields: Any, parameters: bytes | None = None) -> Kernel | None:
    """A launch over lists of tensors; None for every other one."""
    try:
        kernel = signature.parse_kernel(fields, parameters)
    except UNREADABLE:
        return None
    lists = names.parse(kernel.name).base == memory.OVER_LISTS
    return kernel if lists and kernel.blocks == kernel.gx else None


def attention_call(
    kernel: Kernel, name: names.KernelName, context: Context | None
) -> attention.Attention | None:
    """The attention call behind a launch; None for another kernel, or one whose sizes are not known."""
    return flash_call(kernel, name, context) or efficient_call(name, context)


class AttentionSizes(NamedTuple):
    """What an attention operator's tensors say."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int


def attention_sizes(context: Context | None, backward: bool) -> AttentionSizes | None:
    """From the shapes of queries, keys and values, in the backward pass after the gradient; heads come
    second in PyTorch's operators below scaled_dot_product_attention, third in others'. None without such
    shapes: sequences that are packed into one have three dimensions and their bounds on the device."""
    shapes: tuple[tuple[int, ...], ...] = context.shapes if context is not None else ()
    if backward:
        shapes = shapes[1:]
    if context is None or len(shapes) < 3 or any(len(shape) != 4 for shape in shapes[:3]):
        return None
    if "::_scaled_dot_product_" in context.operator:
        axis = 1
    elif "attention" in context.operator or "flash_attn" in context.operator:
        axis = 2
    else:
        return None
    query, key, value = shapes[:3]
    at = 3 - axis
    return AttentionSizes(query[0], query[axis], key[axis], query[at], key[at], query[3], value[3])


def efficient_backward(name: names.KernelName) -> bool | None:
    """Whether a main kernel of memory-efficient attention belongs to the backward pass; None for any other
    kernel."""
    if "fmha_cutlassF" in name.text:
        return False
    return True if "fmha_cutlassB" in name.text else None


def packed(context: Context | None) -> bool:
    """Whether memory-efficient attention runs on sequences packed into one: it then gets their bounds."""
    return context is not None and any(len(shape) == 1 for shape in context.shapes)


def efficient_call(name: names.KernelName, context: Context | None) -> attention.Attention | None:
    """The call behind a kernel of memory-efficient attention, from its operator's shapes. Whether it is
    causal stands in its parameters, which no recording holds: it is taken not to be."""
    backward = efficient_backward(name)
    if backward is None or packed(context):
        return None
    sizes = attention_sizes(context, backward)
    if sizes is None:
        return None
    bytes_each = 4 if "_f32_" in name.text else 2
    return attention.Attention(*sizes[:6], False, backward, bytes_each, "efficient")


def flash_call(
    kernel: Kernel, name: names.KernelName, context: Context | None
) -> attention.Attention | None:
    """The attention call behind a `flash_fwd_kernel` or
    `flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel` launch.

    The template arguments are the traits `<head size, block of queries, block of keys, ...>` and then
    the flags (is_dropout, is_causal, ...). The grid is (blocks, batch, heads) forward and (blocks of
    keys, batch, heads) backward. The operator's shapes give exact lengths. Without them the lengths
    are rounded up to whole blocks and taken to be equal for queries and keys.
    """
    backward = name.base == "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
    if (
        name.base not in ("flash_fwd_kernel", "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel")
        or not name.arguments
    ):
        return None
    traits = re.match(r"Flash_\w+_kernel_traits<(\d+), (\d+), (\d+),", name.arguments[0])
    if traits is None:
        return None
    size, query_block, key_block = (int(g) for g in traits.groups())
    causal = len(name.arguments) > 2 and name.arguments[2] == "true"
    queries = keys = kernel.gx * (key_block if backward else query_block)
    batch, heads = (kernel.gy, kernel.gz)
    kv_heads = heads
    shapes = [s for s in context.shapes if len(s) == 4] if context else []
    lead = 1 if backward else 0  # the gradient comes first in the backward operator
    if len(shapes) >= lead + 2 and shapes[lead][0] == batch and heads in shapes[lead][1:3]:
        axis = shapes[lead].index(heads, 1, 3)
        queries, keys, kv_heads = (
            shapes[lead][3 - axis],
            shapes[lead + 1][3 - axis],
            shapes[lead + 1][axis],
        )
    bytes_each = 2 if re.search(r"bfloat16|half", name.text) else 4
    return attention.Attention(
        batch, heads, kv_heads, queries, keys, size, causal, backward, bytes_each, "flash"
    )
