"""Time of a grouped matrix product (aten::_grouped_mm and its scaled form), from the shapes of the
operator around the launch.

Why it exists: mixture-of-experts layers multiply each expert's tokens by its own weights in one
persistent CUTLASS kernel, whose grid says nothing of sizes, and which no cuBLAS call announces; as
memory traffic it would come out ten times too short. Groups are taken as equally large: their
bounds are values on the device. Where they differ, the kernel takes longer: twelve percent, when
the larger of 64 are as 1 / (place + 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from phantora_ns.kernels.estimators import gemm
from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import Gemm

OPERATORS = ("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
# in cutlass::device_kernel<...>, mangled or not; the operator's other kernel prepares addresses
PRODUCT_KERNEL = "device_kernel"
BF16, FP8 = 14, 28  # cudaDataType
COMPUTE_32F = 68  # cublasComputeType
# (ns, factor) over the same products in cuBLAS: half of the cases of bench/frameworks/micro.py on
# an H200 (torch 2.11.0+cu130). FP8 scaled by rows comes close to them with deep products alone; why
# not with others nobody knows.
BF16_COST, FP8_COST, FP8_SHALLOW_COST = (1500.0, 1.16), (3500.0, 1.32), (11500.0, 3.74)
DEEP = 4096


def product(
    operator: str, kernel: str, input_bytes: int, shapes: Sequence[Sequence[int]]
) -> Gemm | None:
    """The batch of equal products that a launch of kernel `kernel` (its name) within `operator`
    amounts to; None when it is none. `shapes`: the operator's tensors, first the two factors, last
    the ends of the groups.

    Of (rows, k) by (groups, k, n) the rows are in groups; of (groups, m, k) by (k, columns) the
    columns; of (m, depth) by (depth, n) the depth; two batches are an ordinary batch
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
    narrow = input_bytes < 1.5 * elements  # scales and bounds are few
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


def duration_ns(product: Gemm, rates: Rates) -> float:
    """The time of the batch that `product` has found."""
    if product.atype == FP8:
        start_ns, factor = FP8_COST if product.k >= DEEP else FP8_SHALLOW_COST
    else:
        start_ns, factor = BF16_COST
    return start_ns + factor * gemm.duration_ns(product, rates)
