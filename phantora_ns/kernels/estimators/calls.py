"""Time of library calls that only sizes are known of: transforms and dense solvers, from their operation counts.

Why it exists: nobody has measured these calls, and a constant would make a large factorisation free. The formulas give the order
of magnitude, which is why their source is a guess that the report counts.
"""

from __future__ import annotations

import math
import re

from ..rates import Rates
from .gemm import data_type

POINTS_PER_PASS = 4096  # a transform of up to this many points is one pass through shared memory (cuFFT's documentation)
COMPLEX = {4, 5, 6}     # cudaDataType
BLOCK = 64              # columns that a blocked factorisation handles between two products
STEPS_PER_BLOCK = 4     # kernels for each block: panel, triangular solve, product, and moving on

# routine -> (operations in units of rows * columns * min(rows, columns), share of peak that blocked ones reach). The counts are
# LAPACK's (Working Note 41); those of iterative ones assume their usual number of sweeps.
SOLVERS = {"potrf": (1 / 3, 0.3), "getrf": (2 / 3, 0.3), "sytrf": (1 / 3, 0.1), "geqrf": (4 / 3, 0.3), "gels": (4 / 3, 0.1),
           "syevd": (4 / 3, 0.05), "heevd": (4 / 3, 0.05), "syev": (4 / 3, 0.05), "syevj": (24, 0.05), "heevj": (24, 0.05),
           "geev": (10, 0.02), "gesvd": (8 / 3, 0.05), "gesvdj": (24, 0.05), "gesvda": (8, 0.1)}
WITH_VECTORS = {"syevd": 9, "heevd": 9, "syev": 9, "geev": 25, "gesvd": 21}
# Those whose work is 2 * rows * columns * the fourth number: right-hand sides or reflectors, times a constant.
PRODUCTS = {"potrs": 1.0, "getrs": 1.0, "sytrs": 1.0, "trsm": 0.5, "orgqr": 2.0, "ungqr": 2.0, "ormqr": 2.0, "unmqr": 2.0}
_NAME = re.compile(r"(?:cusolverDn[SDCZX]|cublas[SDCZ])([a-z]+?)(?:Strided)?(?:Batched)?(?:_v2)?")


def duration_ns(name: str, numbers: list[int], rates: Rates) -> float | None:
    """Nanoseconds of a call, None for one that there is no formula for. Raises ValueError for numbers that are none of its.

    `numbers`: of cufftXtExec (input type, output type, batch, sizes...); of solvers (type, rows, columns, other, matrices).
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
    half = 1.0 if in_type in COMPLEX and out_type in COMPLEX else 0.5  # of a real transform only half the spectrum is kept
    moved = points * sum(data_type(code)[0] * (half if code in COMPLEX else 1.0) for code in (in_type, out_type))
    passes = sum(max(1, math.ceil(math.log(n, POINTS_PER_PASS))) for n in size)
    return passes * rates.memory_ns("other", moved)


def _solver(routine: str, code: int, rows: int, columns: int, other: int, batch: int, rates: Rates) -> float:
    if min(rows, columns, other, batch) < 0:
        raise ValueError("negative size")
    width, kind = data_type(code)
    real = 4.0 if code in COMPLEX else 1.0  # a complex multiply-add is four real ones
    if routine in PRODUCTS:
        flop, share = 2 * PRODUCTS[routine] * rows * columns * max(1, other), 0.3
    else:
        units, share = SOLVERS[routine]
        if other and routine in WITH_VECTORS:
            units = WITH_VECTORS[routine]
        flop = units * rows * columns * min(rows, columns)
    steps = math.ceil(max(1, min(rows, columns)) / BLOCK) * STEPS_PER_BLOCK  # one after the other, whatever the batch
    computing = real * flop * batch / (rates.peak(kind) * share)
    return max(steps * rates.memory_ns("other", 0), computing, rates.memory_ns("other", 2.0 * rows * columns * width * batch))
