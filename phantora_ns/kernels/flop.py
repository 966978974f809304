"""How much arithmetic a kernel or library call does: floating-point operations (FLOP) and their precision.

Why it exists: the report says which share of the GPU's peak a step reaches (report/arithmetic_part.py). It
is asked once for each signature (hub/lookups.py), so a launch costs one addition (libintercept/time/timeline.c).

What counts are products: of matrices, convolutions and attention, two FLOP per multiply-add and four real
ones per complex one. The numbers are those of torch.utils.flop_counter, so attention counts whole under
a causal mask, too, and five products backward, since it computes the scores again. Transforms (FFT) and what
kernels do elementwise, in norms or sums are not counted. Rule: a kernel that multiplies, or may, and whose
work is not known is UNCOUNTED, never nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from phantora_ns.kernels import families, signature
from phantora_ns.kernels.binary import names
from phantora_ns.kernels.estimators import cudnn_graphs, gemm, grouped, launch
from phantora_ns.kernels.signature import Gemm
from phantora_ns.protocol import KernelClass, Precision, SignatureKind

LARGEST = 1 << 62
TRANSFORMS = ("cufftXtExec",)
MULTIPLYING = (KernelClass.GEMM, KernelClass.ATTENTION, KernelClass.CONVOLUTION)
NAMED_SO = ("flash_fwd", "flash_bwd_dq", "fmha", "depthwise", "winograd", "gemv", "device_kernel")
"""Parts of names of kernels that multiply, besides those of a class."""
HELPERS = ("flash_fwd_splitkv_combine", "flash_bwd_dot_do_o", "flash_bwd_convert")
"""Parts of names of those that do not, though they belong to attention."""
INDUCTOR = ("triton_poi_", "triton_red_", "triton_per_", "triton_for_")
"""What the names of Inductor's kernels without products begin with."""
FLASH = {
    "flash_fwd_kernel": False,
    "flash_fwd_splitkv_kernel": False,
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": True,
}
"""Main kernels of flash attention, and whether each belongs to the backward pass."""
ELEMENTS = {"bf16": "bf16", "f16": "fp16", "f32": "tf32"}
"""In the names of memory-efficient attention -> precision."""


class Work(NamedTuple):
    """`flop` of one launch, and in which `Precision`; for UNCOUNTED it is 1, a launch. `halved`: the kernel
    leaves out about half of them, those under a causal mask."""

    flop: int
    precision: int
    halved: bool = False


NOTHING = Work(0, Precision.NONE)
UNCOUNTED = Work(1, Precision.UNCOUNTED)


def work_of(kind: int, fields: Any, context: Any = None) -> Work:
    """The work of a signature. `context`: the operator around a launch, as LOOKUP has it. Never raises:
    what cannot be read is UNCOUNTED."""
    try:
        found = _work(kind, fields, context)
    except launch.UNREADABLE:
        return UNCOUNTED  # sizes and nested lists come from another process
    return found if 0 <= found.flop < LARGEST else UNCOUNTED


def named(kind: int, fields: Any) -> str:
    """How a signature is called in a list of what is uncounted."""
    first = fields[0] if isinstance(fields, (list, tuple)) and fields else None
    if kind == SignatureKind.KERNEL and isinstance(first, str):
        return names.parse(first).base
    if kind == SignatureKind.CALL and isinstance(first, str):
        return first
    return families.family(kind, fields)


def _work(kind: int, fields: Any, context: Any) -> Work:
    if kind == SignatureKind.GEMM:
        return _product(signature.parse_numbers(Gemm, fields))
    if kind == SignatureKind.CUDNN:
        return _graph(cudnn_graphs.operations(fields[0]))
    if kind == SignatureKind.KERNEL:
        return _kernel(fields, launch.context_of(context), context)
    if kind == SignatureKind.CALL:
        return NOTHING if fields[0] in TRANSFORMS else UNCOUNTED
    return NOTHING


def _of(flop: int, peak: str) -> Work:
    return Work(flop, Precision.LABELS.index(peak)) if flop else NOTHING


def _product(product: Gemm) -> Work:
    if product.atype not in gemm.DATA_TYPES or min(product.m, product.n, product.k) < 0:
        return UNCOUNTED
    real = 4 if product.atype in gemm.COMPLEX else 1
    return _of(real * gemm.flop(product), gemm.arithmetic(product))


def attention_flop(
    batch: int, heads: int, queries: int, keys: int, size: int, value_size: int, backward: bool
) -> int:
    """FLOP of attention without regard to its mask: two products forward, five backward."""
    scores = 2 * batch * heads * queries * keys
    return scores * (3 * size + 2 * value_size if backward else size + value_size)


def _graph(found: list[cudnn_graphs.Operation]) -> Work:
    call = cudnn_graphs.as_attention(found)
    if call is not None:
        codes = {
            cudnn_graphs.DATA_TYPES.get(tensor.kind, (4, 0))[1]
            for operation in found
            for tensor in operation.tensors.values()
        }
        peaks = {gemm.data_type(code)[1] for code in codes}
        peak = next((one for one in ("fp8", "bf16", "fp16") if one in peaks), "tf32")
        size = call.head_size
        sizes = (call.batch, call.heads, call.queries, call.keys, size, size)
        return _of(attention_flop(*sizes, call.backward), peak)._replace(halved=call.causal)
    total, peak = 0, "fp32"
    for operation in found:
        if operation.kind not in (cudnn_graphs.MATMUL, *cudnn_graphs.CONVOLUTION_TENSORS):
            continue
        product = cudnn_graphs.as_gemm(operation)
        if product is None:
            return UNCOUNTED
        total, peak = total + _flop_of(operation, product), gemm.arithmetic(product)
    return _of(total, peak)


def _flop_of(operation: cudnn_graphs.Operation, product: Gemm) -> int:
    tensors = cudnn_graphs.CONVOLUTION_TENSORS.get(operation.kind)
    if tensors is None:
        return gemm.flop(product)
    _, weight, out = (operation.tensors[name] for name in tensors)
    return 2 * out.dims[0] * math.prod(out.dims[2:]) * math.prod(weight.dims)


def _kernel(fields: Any, context: launch.Context | None, sent: Any) -> Work:
    kernel = signature.parse_kernel(fields)
    name = names.parse(kernel.name)
    if name.base in FLASH:
        peak = "bf16" if "bfloat16" in name.text else "fp16"
        found = _from_shapes(context, FLASH[name.base], peak)
        call = launch.flash_call(kernel, name, context)
        causal = call is not None and call.causal
        return found._replace(halved=causal) if found != UNCOUNTED else found
    backward = launch.efficient_backward(name)
    if backward is not None:
        if launch.packed(context):
            return UNCOUNTED
        peak = next((peak for kind, peak in ELEMENTS.items() if f"_{kind}_" in name.text), "")
        return _from_shapes(context, backward, peak)
    if context is not None and context.operator in grouped.OPERATORS:
        product = grouped.product(
            context.operator, kernel.name, context.input_bytes, context.shapes
        )
        if product is not None:
            return _of(grouped.flop(context.shapes), gemm.arithmetic(product))
        return UNCOUNTED if grouped.PRODUCT_KERNEL in kernel.name else NOTHING
    return UNCOUNTED if _may_multiply(fields, kernel.name, name, sent) else NOTHING


def _may_multiply(fields: Any, own: str, name: names.KernelName, context: Any) -> bool:
    head = name.text.partition("<")[0]
    if any(part in head for part in HELPERS):
        return False
    if any(part in head for part in NAMED_SO):
        return True
    if not own.startswith("_Z"):  # no C++: of Triton, or of another compiler
        return not own.startswith(INDUCTOR)
    return families.kernel_class(SignatureKind.KERNEL, fields, context) in MULTIPLYING


def _from_shapes(context: launch.Context | None, backward: bool, peak: str) -> Work:
    """Attention by its operator's tensors. What they do not tell is UNCOUNTED."""
    sizes = launch.attention_sizes(context, backward)
    if sizes is None or not peak:
        return UNCOUNTED
    batch, heads, _, queries, keys, size, value_size = sizes
    return _of(attention_flop(batch, heads, queries, keys, size, value_size, backward), peak)
