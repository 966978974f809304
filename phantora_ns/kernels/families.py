"""The family of a signature: the group in which its time is listed and compared.

Why it exists: a database holds tens of thousands of signatures, and people ask about matrix
products, attention or optimizers. trace/activity_families.py does the same for the kernel names of
traces.
"""

from __future__ import annotations

from typing import Any

from phantora_ns.kernels import signature
from phantora_ns.kernels.binary import names
from phantora_ns.kernels.estimators import batch_norm, cudnn_graphs, launch, memory
from phantora_ns.kernels.signature import SignatureError
from phantora_ns.protocol import KernelClass, SignatureKind

CLASSES = {
    KernelClass.GEMM: ("gemm",),
    KernelClass.ATTENTION: ("attention",),
    KernelClass.CONVOLUTION: ("convolution",),
    KernelClass.COPY: ("memset", "device copy", "host copy"),
    KernelClass.ELEMENTWISE: ("elementwise", "strided", "fill"),
    KernelClass.REDUCTION: ("norm", "softmax", "reduce", "loss"),
    KernelClass.OPTIMIZER: ("foreach", "optimizer"),
    KernelClass.LAYOUT: ("concatenate", "chunk_concatenate", "split_copy", "gather", "indexed"),
    KernelClass.TRITON: ("triton",),
}
"""Class -> what the names of its families begin with."""
NAMES = {
    "fmha": "attention",
    "flash": "attention",
    "sdpa": "attention",
    "gemm": "gemm",
    "nvjet": "gemm",
    "cutlass": "gemm",
    "batch_norm": "norm",
    "mbedding": "gather",
    "compute_grad_weight": "gather",
    "sum_and_scatter": "gather",
    "roll_cuda": "gather",
    "depthwise": "convolution",
    "_pool": "elementwise",
    "upsample": "elementwise",
    "dropout": "elementwise",
}
"""What kernels of no family are, by a part of their name; the first that fits."""
WRAPPER = "cutlass::device_kernel"
"""The kernel whose first argument is what it runs."""


def kernel_class(kind: int, fields: Any, context: Any = None) -> int:
    """The class (`KernelClass`) of a signature, by its family."""
    named = family(kind, fields, context)
    if kind == SignatureKind.KERNEL and named == "other" and isinstance(fields[0], str):
        name = names.parse(fields[0])
        head, _, arguments = name.text.partition("<")
        if head.endswith(WRAPPER):
            head += arguments.partition("<")[0]
        named = next((found for part, found in NAMES.items() if part in head), name.base)
    return next(
        (found for found, begins in CLASSES.items() if named.startswith(begins)), KernelClass.OTHER
    )


def family(kind: int, fields: Any, context: Any = None) -> str:
    """One of `gemm`, `attention`, `convolution`, `cudnn`, `memset`, `device copy`, `host copy`,
    `call`, and for kernels what the estimators call them (`elementwise`, `optimizer`, `reduction`,
    ...); `unknown` for what is no signature."""
    try:
        if kind == SignatureKind.GEMM:
            return "gemm"
        if kind == SignatureKind.CUDNN:
            return _graph(fields)
        if kind == SignatureKind.MEMORY:
            call = signature.parse_numbers(signature.Memory, fields)
            if call.op == 1:
                return "memset"
            return "device copy" if (call.src, call.dst) == (2, 2) else "host copy"
        if kind == SignatureKind.CALL:
            return "norm" if batch_norm.parse(*fields) else "call"
        if kind == SignatureKind.KERNEL:
            return _kernel(signature.parse_kernel(fields), launch.context_of(context))
    except (SignatureError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
        pass  # nested lists come from another process, and a listing must not fail on them
    return "unknown"


def _kernel(kernel: signature.Kernel, context: launch.Context | None) -> str:
    name = names.parse(kernel.name)
    if launch.attention_call(kernel, name, context) is not None:
        return "attention"
    found = memory.traffic(kernel, name)
    return memory.family(name) if found is None else found.family


def _graph(fields: Any) -> str:
    found = cudnn_graphs.operations(fields[0])
    if cudnn_graphs.as_attention(found) is not None:
        return "attention"
    return (
        "convolution" if any(o.kind in cudnn_graphs.CONVOLUTION_TENSORS for o in found) else "cudnn"
    )
