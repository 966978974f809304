"""Time of library calls of which only the sizes are known: transforms and dense solvers.

Why it exists: libraries choose algorithms by size and launch hundreds of kernels for one call. A
constant would make a large factorisation free. The times come from sizes and operation counts; the
report counts them as guesses. The solvers' constants are fitted to an H200 (driver 580.159, torch
2.11.0+cu130, bench/frameworks/micro.py) on one half of the cases, chosen by a hash of their sizes.
docs/kernel-times.md gives the error on the other half.
"""

from __future__ import annotations

import math
import re

from phantora_ns.kernels.estimators.gemm import COMPLEX, data_type
from phantora_ns.kernels.rates import Rates

# a transform of up to this many points is one pass through shared memory (cuFFT's documentation)
POINTS_PER_PASS = 4096

# routine -> (operations in units of rows * columns * min(rows, columns), share of the peak, ns that
# each column waits for the previous one). The counts are LAPACK's (Working Note 41); those of
# iterative routines assume the usual number of sweeps. The wait per column dominates up to a few
# thousand columns; its values are those of a single matrix.
SOLVERS = {
    "potrf": (1 / 3, 0.7, 327),
    "getrf": (2 / 3, 0.2, 1522),
    "sytrf": (1 / 3, 0.02, 7084),
    "geqrf": (4 / 3, 0.3, 2130),
    "gels": (4 / 3, 0.3, 2663),
    "syevd": (4 / 3, 0.06, 8147),
    "heevd": (4 / 3, 0.06, 8147),
    "syev": (4 / 3, 0.06, 8147),
    "syevj": (24, 0.01, 21673),
    "heevj": (24, 0.01, 21673),
    "geev": (10, 0.01, 43592),
    "gesvd": (8 / 3, 0.01, 21673),
    "gesvdj": (24, 0.01, 21673),
    "gesvda": (8, 0.01, 21673),
}
WITH_VECTORS = {
    "syevd": (9, 0.3),
    "heevd": (9, 0.3),
    "syev": (9, 0.3),
    "geev": (25, 0.01),
    "gesvd": (21, 0.01),
}
# Routines whose work is 2 * rows * columns * the fourth number (right-hand sides, reflectors):
# (factor on that work, share of the peak, ns per column).
PRODUCTS = {
    "potrs": (1.0, 0.7, 497),
    "getrs": (1.0, 0.5, 432),
    "sytrs": (1.0, 0.5, 432),
    "trsm": (0.5, 0.5, 187),
    "orgqr": (2 / 3, 0.3, 533),
    "ungqr": (2 / 3, 0.3, 533),
    "ormqr": (2.0, 0.3, 533),
    "unmqr": (2.0, 0.3, 533),
}
# A column of a triangular solve for one right-hand side, which has its own kernel.
VECTOR_NS = 60
_NAME = re.compile(r"(?:cusolverDn[SDCZX]|cublas[SDCZ])([a-z]+?)(?:Strided)?(?:Batched)?(?:_v2)?")


def duration_ns(name: str, numbers: list[int], rates: Rates) -> float | None:
    """Nanoseconds of a call, or None for a call that has no formula.

    `numbers`: for cufftXtExec (input type, output type, batch, sizes...); for solvers (type, rows,
    columns, other, matrices). Raises ValueError for numbers that do not fit the call.
    """
    if name == "cufftXtExec":
        return _transform(*numbers[:3], numbers[3:], rates)
    match = _NAME.fullmatch(name)
    if match is None or len(numbers) != 5 or match[1] not in (SOLVERS.keys() | PRODUCTS.keys()):
        return None
    return _solver(match[1], *numbers, rates)


def _transform(in_type: int, out_type: int, batch: int, size: list[int], rates: Rates) -> float:
    if not size or min(size) < 1 or batch < 1:
        raise ValueError("a transform has sizes")
    points = math.prod(size) * batch
    # A real transform keeps only half of the spectrum.
    half = 1.0 if in_type in COMPLEX and out_type in COMPLEX else 0.5
    moved = points * sum(
        data_type(code)[0] * (half if code in COMPLEX else 1.0) for code in (in_type, out_type)
    )
    passes = sum(max(1, math.ceil(math.log(n, POINTS_PER_PASS))) for n in size)
    return passes * rates.memory_ns("other", moved)


def _solver(
    routine: str, code: int, rows: int, columns: int, other: int, batch: int, rates: Rates
) -> float:
    if min(rows, columns, other, batch) < 0:
        raise ValueError("negative size")
    width, kind = data_type(code)
    real = 4.0 if code in COMPLEX else 1.0  # a complex multiply-add is four real ones
    if routine in PRODUCTS:
        units, share, column_ns = PRODUCTS[routine]
        if routine == "trsm" and other <= 1:
            column_ns = VECTOR_NS
        flop = 2 * units * rows * columns * max(1, other)
    else:
        units, share, column_ns = SOLVERS[routine]
        if other and routine in WITH_VECTORS:
            units, share = WITH_VECTORS[routine]
        flop = units * rows * columns * min(rows, columns)
    # columns run one after the other; a batch runs in parallel
    waiting = min(rows, columns) * column_ns
    computing = real * flop * batch / (rates.peak(kind) * share)
    return max(
        rates.memory_ns("other", 0) + waiting + computing,
        rates.memory_ns("other", 2.0 * rows * columns * width * batch),
    )
