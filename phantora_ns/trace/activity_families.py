"""Kernel families: what kind of work a kernel does, by its name and the operator that launched it.

Why it exists: a simulated library call carries the call's name (`cublasGemmEx ...`), a real one its
kernel's (`nvjet_tst_...`). What they have in common is the operator and the family. Families group
work, and pair work that no name pairs. They do not affect any time.
"""

from __future__ import annotations

import re
from functools import lru_cache

from phantora_ns.kernels.binary.names import demangle

LIBRARY_OPERATORS = {
    **dict.fromkeys(
        (
            "aten::mm",
            "aten::addmm",
            "aten::bmm",
            "aten::baddbmm",
            "aten::_scaled_mm",
            "aten::addmv",
            "aten::dot",
        ),
        "gemm",
    ),
    **dict.fromkeys(
        (
            "aten::_cudnn_attention_forward",
            "aten::_cudnn_attention_backward",
            "aten::_scaled_dot_product_cudnn_attention",
            "aten::_scaled_dot_product_cudnn_attention_backward",
            "aten::_flash_attention_forward",
            "aten::_flash_attention_backward",
            "aten::_efficient_attention_forward",
            "aten::_efficient_attention_backward",
        ),
        "attention",
    ),
    **dict.fromkeys(
        (
            "aten::cudnn_convolution",
            "aten::convolution_backward",
            "aten::cudnn_convolution_transpose",
        ),
        "convolution",
    ),
}
"""Operators whose work is one library call (two for a convolution's backward). Everything that one of
their calls launches belongs together, including workspace fills and split-k sums."""

_RULES = [
    (re.compile(pattern, re.IGNORECASE), family)
    for pattern, family in (
        (r"^triton_", "triton"),
        (r"sdpa|flash|fmha|attention", "attention"),
        (r"fprop|dgrad|wgrad|conv|nchwtonhwc|nhwctonchw|winograd", "convolution"),
        (r"nvjet|gemm|gemv|cublas|splitkreduce|matmul", "gemm"),
        (r"fusedadam|fused_adam|fusedsgd|fusedoptimizer|adamw", "optimizer"),
        (r"multi_tensor_apply|foreach", "foreach"),
        (r"layer_?norm|rms_?norm|batch_?norm|group_?norm|bn_fw|bn_bw|gammabeta", "norm"),
        (r"soft_?max|nll_loss|cross_entropy", "loss"),
        (r"pool", "pooling"),
        (r"embedding|index|gather|scatter|krn_partial|compute_grad_weight|sort|unique", "index"),
        (r"distribution|random|philox|dropout", "random"),
        (
            r"catarray|split_with_sizes|chunk_cat|transpose|copy_kernel|copyfunctor|direct_copy",
            "layout",
        ),
        (r"reduce", "reduction"),
        (r"elementwise|vectorized|unrolled", "elementwise"),
    )
]


@lru_cache(maxsize=65536)
def family(name: str, operator: str, category: str) -> str:
    """The family of a GPU activity that is not communication; "other" when nothing identifies it."""
    if operator in LIBRARY_OPERATORS:
        return LIBRARY_OPERATORS[operator]
    if category == "gpu_memcpy":
        return "copy"
    if category == "gpu_memset":
        return "fill"
    text = demangle(name)
    return next((found for pattern, found in _RULES if pattern.search(text)), "other")


@lru_cache(maxsize=65536)
def short(name: str, width: int = 60) -> str:
    """A kernel's name for a person: without return type, arguments, and PyTorch's namespaces; at most
    `width` characters.

    >>> short("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    ...       "std::array<char*, 1ul> >(int)")
    'vectorized_elementwise_kernel<4, FillFunctor<float>, array<c…'
    """
    text = demangle(name).removeprefix("void ")
    text = re.sub(r"\(anonymous namespace\)::", "", text)
    text = re.sub(r"\b(?:at::native::|at::cuda::|c10::|std::|at::)+", "", text)
    depth = 0
    for at, char in enumerate(text):
        if char == "<":
            depth += 1
        elif char == ">" and text[at - 1 : at] != "-":
            depth -= 1
        elif char == "(" and depth <= 0 and at and not text.startswith("Mem"):
            text = text[:at]
            break
    return text if len(text) <= width else text[:width] + "…"
