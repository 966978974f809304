"""What bounds a kernel that is neither a product nor attention.

Why it exists: most such kernels wait for memory, and their time is the same at every clock of the
multiprocessors. Some wait for the issue of their instructions: functions such as SiLU, random
numbers, index arithmetic of strided operands, casts that are read element by element. Their time
follows the clock, in whole or in part. Which ones was measured: bench/power/spin.py, kernels beside
a clock that goes from 1,980 to 1,430 MHz. Rule: a kernel that was not measured counts as bound by
memory. Inductor's kernels are a class of their own, because they draw more power
(bench/power/README.md).
"""

from __future__ import annotations

import re
from functools import lru_cache

from phantora_ns.kernels.estimators.triton import INDUCTORS
from phantora_ns.protocol import BoundBy

# slope of log(time) by log(1 / clock), measured: 0.5 to 0.8
ISSUE = re.compile(
    r"::silu_kernel|::GeluCUDAKernelImpl|::fused_dropout_kernel"
    r"|::vectorized_layer_norm_kernel<[^<>]*, false>"
    r"|^(?:void )?at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda"
    r"|^(?:void )?at::native::elementwise_kernel<.*(?:BinaryFunctor|AUnaryFunctor|BUnaryFunctor)<float"
)
# 0.2 to 0.45
MIXED = re.compile(
    r"::silu_backward_kernel|::chunk_cat_cuda_kernel|_layer_norm_grad_input_kernel"
    r"|::vectorized_layer_norm_kernel<[^<>]*, true>|layer_norm_grad_input_kernel_vectorized"
    r"|::compute_grad_weight|::sum_and_scatter|::reduce_kernel<.*::sum_functor<"
)


@lru_cache(maxsize=4096)
def of_kernel(name: str) -> int:
    """What bounds a kernel, by its demangled name.

    >>> of_kernel("void at::native::vectorized_elementwise_kernel<8, at::native::silu_kernel(...)>")
    3
    >>> of_kernel("void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<float>>")
    0
    >>> of_kernel("triton_poi_fused_mul_silu_0")
    5
    """
    if INDUCTORS.match(name):
        return BoundBy.FUSED
    if ISSUE.search(name):
        return BoundBy.ISSUE
    return BoundBy.MIXED if MIXED.search(name) else BoundBy.MEMORY
