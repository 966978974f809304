"""Time of a matrix multiplication from its sizes: tiles on multiprocessors, memory traffic, and the
sustained rate.

Why it exists: cuBLAS' kernels are persistent. One name and one grid serve shapes whose times differ
fivefold, so the time must come from the call. The model: the library picks the tile and the split of
k that finish first. Tiles run in waves over the multiprocessors. The power limit bounds the rate of a
large product; memory bounds a thin one. Part of writing the result does not overlap with arithmetic. Rows
that do not begin at multiples of 16 bytes (a vocabulary of 50,257) cost three to five times as much.
Without tensor cores, a product with a vector has kernels of its own. The shares are
fitted (bench/kernels) and stand in the GPU's data file.
"""

from __future__ import annotations

import math

from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import Gemm

# Output tiles of cuBLAS' Hopper and Ampere kernels, as their names give them
# (nvjet_sm90_tst_256x128_64x4, ...).
TILES = (
    (256, 128),
    (128, 256),
    (320, 128),
    (192, 128),
    (128, 192),
    (128, 128),
    (256, 64),
    (64, 256),
    (128, 64),
    (64, 128),
    (64, 64),
    (128, 32),
    (64, 32),
    (64, 16),
)
SPLITS = (1, 2, 4, 8, 16)
ALIGNED = 16  # bytes that a thread loads at once
K_STEP = 64  # kernels advance along k in steps of this many elements
PARTIAL_BYTES = 4  # partial sums of a split k are fp32

# cudaDataType: element bytes and name of the data sheet's peak
DATA_TYPES = {
    0: (4, "fp32"),
    1: (8, "fp64"),
    2: (2, "fp16"),
    3: (1, "int8"),
    4: (8, "fp32"),
    5: (16, "fp64"),
    6: (4, "fp16"),
    8: (1, "int8"),
    10: (4, "fp32"),
    14: (2, "bf16"),
    15: (4, "bf16"),
    28: (1, "fp8"),
    29: (1, "fp8"),
}
COMPLEX = {4, 5, 6, 15}  # of cudaDataType
# cublasComputeType values that put fp32 operands on tensor cores
TENSOR_COMPUTE = {74: "fp16", 75: "bf16", 77: "tf32"}
FP64_TENSOR_COMPUTE = 70  # CUBLAS_COMPUTE_64F
WITHOUT_TENSOR_CORES = {"fp32", "fp64"}
"""Peaks of the ordinary arithmetic units. Such products count as bound by the issue of instructions."""
OUTER_TILE = (64, 32)
"""Rows and columns of a tile of an outer product. cuBLAS launches one of 2,048 x 6 as 32 blocks."""
COLUMNS = 4
"""A sum of columns takes as long as one of the next multiple of so many columns."""


def data_type(code: int) -> tuple[int, str]:
    """(bytes, peak) of a cudaDataType; an unknown one counts as fp32."""
    return DATA_TYPES.get(code, (4, "fp32"))


def arithmetic(gemm: Gemm) -> str:
    """Which of the data sheet's peaks bounds the product."""
    _, kind = data_type(gemm.atype)
    if kind == "fp32":
        return TENSOR_COMPUTE.get(gemm.compute, "fp32")
    return "fp64_tensor" if kind == "fp64" and gemm.compute == FP64_TENSOR_COMPUTE else kind


def flop(gemm: Gemm) -> int:
    """Floating-point operations, two per multiply-add."""
    return 2 * gemm.m * gemm.n * gemm.k * gemm.batch


def moved_bytes(gemm: Gemm) -> tuple[int, int]:
    """(bytes read, bytes written) with every operand moved once."""
    read = gemm.m * gemm.k * data_type(gemm.atype)[0] + gemm.k * gemm.n * data_type(gemm.btype)[0]
    return read * gemm.batch, gemm.m * gemm.n * data_type(gemm.dtype)[0] * gemm.batch


def alignment(gemm: Gemm) -> int:
    """The largest power of two, at most 16, that divides the bytes of every operand's rows."""
    rows = (gemm.lda, gemm.atype), (gemm.ldb, gemm.btype), (gemm.ldc, gemm.dtype)
    return min(math.gcd(ALIGNED, length * data_type(code)[0]) for length, code in rows)


def misaligned(gemm: Gemm) -> str:
    """How rows begin that are not at multiples of 16 bytes, where tensor cores compute: "unaligned", or "odd"
    at multiples of 2 bytes alone; else "". Operands then come by narrower loads, from the library's older
    kernels."""
    found = alignment(gemm)
    if found >= ALIGNED or arithmetic(gemm) in WITHOUT_TENSOR_CORES:
        return ""
    return "odd" if found <= 2 else "unaligned"


def with_vector(gemm: Gemm) -> bool:
    """Whether an operand or the result is a vector (of each batch), and tensor cores do not compute."""
    return min(gemm.m, gemm.n, gemm.k) == 1 and arithmetic(gemm) in WITHOUT_TENSOR_CORES


def is_outer(gemm: Gemm) -> bool:
    """Whether it is a product of a column with a row, without tensor cores."""
    return gemm.k == 1 and min(gemm.m, gemm.n) > 1 and with_vector(gemm)


def _outer_ns(gemm: Gemm, rates: Rates) -> float:
    rows, columns = OUTER_TILE
    tiles = math.ceil(gemm.m / rows) * math.ceil(gemm.n / columns) * gemm.batch
    return tiles / rates.multiprocessors * rates.number("gemm.outer_tile")


def _with_vector_ns(gemm: Gemm, rates: Rates) -> float:
    """Nanoseconds of a product with a vector. An outer product is computed in tiles, which take equally long
    however few of their columns are used. Others are bound by memory: dot products of whole rows, and sums of
    columns. Of what an H100 took in fp32 (bench/kernels/experts.py), 26 of 27 outer products are within 3 %, the sums
    within 21 %, and the dot products from 47 % below to 13 % above: small ones take longer."""
    if is_outer(gemm):
        return max(_outer_ns(gemm, rates), sum(moved_bytes(gemm)) / rates.memory_bytes_per_ns)
    # Columns are stored one after another. A product of two vectors is one dot product.
    rows = gemm.m == gemm.n or (gemm.transa if gemm.n == 1 else not gemm.transb)
    whole = gemm if rows else gemm._replace(k=math.ceil(gemm.k / COLUMNS) * COLUMNS)
    share = rates.number("gemm.dot" if rows else "gemm.vector")
    return sum(moved_bytes(whole)) / (rates.memory_bytes_per_ns * share)


def duration_ns(gemm: Gemm, rates: Rates) -> float:
    """Nanoseconds of the product on the GPU, never less than its peaks allow. O(tiles x splits)."""
    m, n, k, batch = (max(1, v) for v in (gemm.m, gemm.n, gemm.k, gemm.batch))
    gemm = gemm._replace(m=m, n=n, k=k, batch=batch)
    kind = arithmetic(gemm)
    peak = rates.peak(kind)
    if with_vector(gemm):
        return rates.number("gemm.base") + max(_with_vector_ns(gemm, rates), flop(gemm) / peak)
    bandwidth = rates.memory_bytes_per_ns * rates.number("gemm.bandwidth")
    per_multiprocessor = peak / rates.multiprocessors
    name = "bf16" if kind == "fp16" else kind
    type_share = rates.numbers.get(f"gemm.{name}", rates.number("gemm.other_types"))
    half, tile_ns = rates.number("gemm.half_area"), rates.number("gemm.tile")
    best = math.inf
    for rows, columns in TILES:
        area = rows * columns
        rate = per_multiprocessor * type_share * area / (area + half)
        tiles = math.ceil(m / rows) * math.ceil(n / columns) * batch
        for split in SPLITS:
            waves = math.ceil(tiles * split / rates.multiprocessors)
            depth = math.ceil(math.ceil(k / split) / K_STEP) * K_STEP
            if split > 1:  # the shortest part of a split; this keeps the time growing with k
                depth = max(depth, rates.number("gemm.smallest_k"))
            time = waves * (2 * area * depth / rate + tile_ns)
            if split > 1:
                time += (
                    rates.number("gemm.split") + PARTIAL_BYTES * m * n * batch * split / bandwidth
                )
            best = min(best, time)
    read, written = moved_bytes(gemm)
    sustained = flop(gemm) / (peak * rates.number("gemm.sustained"))
    moving = (read + written) / bandwidth
    power = rates.number("gemm.overlap_power")
    slowest = max(best, sustained)
    if rows := misaligned(gemm):
        slowest /= rates.number(f"gemm.{rows}")
    overlapped = (slowest**power + moving**power) ** (1 / power)
    epilogue = rates.number("gemm.exposed_write") * written / bandwidth
    return rates.number("gemm.base") + overlapped + epilogue
