"""The clock at which each run of the kernel-time database recorded its matrix products.

    python -m bench.power.recorded [DATABASE]

Why it exists: no clock was recorded with the times. But the runs share products, and products of
one type and similar size reach a similar rate, so how fast one run's products were says how fast
its clock was. Prints the table [power.recorded_in] of a GPU's file.

The model: log(time / operations) = a product's own part + its run's part, both drawn towards their
means by deviations of `PRODUCTS` and `RUNS`, with noise `NOISE`. The mean run has the clock
`recorded` of [power], which bench/gpus found for the mean.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from phantora_ns.config import load_gpu
from phantora_ns.kernels import signature
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import Database
from phantora_ns.protocol import SignatureKind

PRODUCTS, RUNS, NOISE = 0.08, 0.05, 0.005
LEAST_OPERATIONS = 4e10  # smaller products are bound by more than the clock
LEAST_PRODUCTS = 2
BF16 = 14


def rates(database: Database) -> dict[tuple[str, bytes], float]:
    """log(ns per 1e6 operations) of each large product in each run."""
    found = {}
    for run in database.runs():
        for data, sample in run.samples.items():
            kind, fields = signature.decode(data)
            if kind != SignatureKind.GEMM or sample.first:
                continue
            product = signature.parse_numbers(signature.Gemm, fields)
            operations = 2.0 * product.m * product.n * product.k * product.batch
            if product.atype == BF16 and operations > LEAST_OPERATIONS:
                found[run.uid, data] = float(np.log(sample.statistics.median / operations * 1e6))
    return found


def run_parts(found: dict[tuple[str, bytes], float]) -> dict[str, float]:
    """How much longer products took in each run than in the mean run, in logarithms."""
    runs = sorted({uid for uid, _ in found})
    products = sorted({data for _, data in found})
    columns = len(runs) + len(products)
    system = np.diag([RUNS**-2] * len(runs) + [PRODUCTS**-2] * len(products))
    right = np.zeros(columns)
    mean = float(np.median(list(found.values())))
    for (uid, data), value in sorted(found.items()):
        row = [runs.index(uid), len(runs) + products.index(data)]
        for i in row:
            right[i] += (value - mean) * NOISE**-2
            for j in row:
                system[i, j] += NOISE**-2
    parts = np.linalg.solve(system, right)
    return dict(zip(runs, map(float, parts[: len(runs)]), strict=True))


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else databases.shipped_path("h200")
    database, recorded = Database.open(path), load_gpu("h200").power.recorded
    found = rates(database)
    counts: dict[str, int] = defaultdict(int)
    for uid, _ in found:
        counts[uid] += 1
    names = {run.uid: run.fields.get("configuration", "") for run in database.runs()}
    print("[power.recorded_in]")
    for uid, part in sorted(run_parts(found).items(), key=lambda item: (names[item[0]], item[0])):
        if counts[uid] >= LEAST_PRODUCTS:
            print(f'{uid} = "{recorded * np.exp(-part):.0f} MHz"  # {names[uid]}')


if __name__ == "__main__":
    main()
