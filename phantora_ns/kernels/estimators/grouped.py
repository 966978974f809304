"""Time of a grouped matrix product (aten::_grouped_mm and its scaled form), from the shapes of the
operator around the launch.

Why it exists: mixture-of-experts layers multiply each expert's tokens by that expert's weights in
one persistent CUTLASS kernel. Its grid says nothing about sizes, and no cuBLAS call precedes it.
Estimated as memory traffic, it would come out ten times too short. The groups are assumed equally
large, because their bounds are values on the device. With unequal groups the kernel takes longer:
12 % when the sizes of 64 groups are proportional to 1 / (index + 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from phantora_ns.kernels.estimators import gemm
from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import Gemm

OPERATORS = ("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
# in cutlass::device_kernel<...>, mangled or not; the operator's other kernel only prepares addresses
PRODUCT_KERNEL = "device_kernel"
BF16, FP8 = 14, 28  # cudaDataType
COMPUTE_32F = 68  # cublasComputeType
# (ns, factor) relative to the same products in cuBLAS, from half of the cases of
# bench/frameworks/micro.py on an H200 (torch 2.11.0+cu130). FP8 scaled by rows is close to cuBLAS
# for deep products only; the reason is not known.
BF16_COST, FP8_COST, FP8_SHALLOW_COST = (1500.0, 1.16), (3500.0, 1.32), (11500.0, 3.74)
DEEP = 4096


def product(
    operator: str, kernel: str, input_bytes: int, shapes: Sequence[Sequence[int]]
) -> Gemm | None:
    """The batch of equal products that a launch of kernel `kernel` (its name) within `operator`
    computes, or None when it computes something else.

    `shapes`: the operator's tensors; the two factors come first, the ends of the groups last. For
    (rows, k) by (groups, k, n) the rows are grouped; for (groups, m, k) by (k, columns) the columns;
    for (m, depth) by (depth, n) the depth. Two batches make an ordinary batch
    (torch.nn.functional.grouped_mm).
    """
    if operator not in OPERATORS or PRODUCT_KERNEL not in kernel or len(shapes) < 2:
        return None
    left, right = shapes[:2]
    if len(left) not in (2, 3) or len(right) not in (2, 3) or left[-1] != right[-2]:
        return None
    if len(left) == len(right) == 2:
        groups = shapes[-1][0] if len(shapes) > 2 and len(shapes[-1]) == 1 else 0
    else:
        groups = left[0] if len(left) == 3 else right[0]
    if groups < 1 or (len(left) == len(right) == 3 and left[0] != right[0]):
        return None
    rows, depth, columns = left[-2], left[-1], right[-1]
    if len(left) == 2 and len(right) == 3:
        rows = math.ceil(rows / groups)
    elif len(left) == 3 and len(right) == 2:
        columns = math.ceil(columns / groups)
    elif len(left) == 2:
        depth = math.ceil(depth / groups)
    elements = math.prod(left) + math.prod(right)
    narrow = input_bytes < 1.5 * elements  # scales and bounds add little
    kind = FP8 if narrow else BF16
    return Gemm(
        0,
        0,
        0,
        columns,
        rows,
        depth,
        groups,
        kind,
        kind,
        BF16,
        BF16,
        COMPUTE_32F,
        0,
        columns,
        depth,
        columns,
    )


def flop(shapes: Sequence[Sequence[int]]) -> int:
    """Floating-point operations of all groups together, whose sizes add up to the factors'. `shapes`: as
    for `product`, which must have said that it is one."""
    left, right = shapes[:2]
    batch = left[0] if len(left) == len(right) == 3 else 1
    return 2 * batch * left[-2] * left[-1] * right[-1]


def duration_ns(product: Gemm, rates: Rates) -> float:
    """Nanoseconds of the batch that `product()` returned."""
    if product.atype == FP8:
        start_ns, factor = FP8_COST if product.k >= DEEP else FP8_SHALLOW_COST
    else:
        start_ns, factor = BF16_COST
    return start_ns + factor * gemm.duration_ns(product, rates)
