"""The clock at which each run of the kernel-time database recorded its products and its attention.

    python -m bench.power.recorded [DATABASE]

Why it exists: no clock was recorded with the times. But the runs share products, and products of
one type and similar size reach a similar rate, so how fast one run's products were says how fast
its clock was. Prints the tables [power.recorded_in] and [power.attention_recorded_in] of a GPU's
file.

The model: log(time / operations) = a product's own part + its run's part, both drawn towards their
means by deviations of `PRODUCTS` and `RUNS`, with noise `NOISE`. One run's clock is known: the sweep
of single calls with pauses (bench/kernels/products.py) left the GPU cool. So its clock is the one
above which nothing is gained, `fastest_compute` and `fastest_attention`. Of its products from 1.6 ms
on that does not hold: a few in a row already meet the limit. Their clock in the file is from real
steps (bench/gpus).
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from statistics import mean

import numpy as np

from phantora_ns.config import load_gpu
from phantora_ns.kernels import signature
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import Database
from phantora_ns.protocol import BoundBy, SignatureKind

PRODUCTS, RUNS, NOISE = 0.08, 0.05, 0.005
LEAST_OPERATIONS = 4e10  # smaller products are bound by more than the clock
LEAST_PRODUCTS = 2
LEAST_ATTENTION_NS = 50_000  # shorter calls are bound by more than the clock
SWEEP, SWEEPS = "products-short", "products-"
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
    runs = Counter(data for _, data in found)
    return {key: value for key, value in found.items() if runs[key[1]] > 1}


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


def attention_parts(database: Database) -> dict[str, float]:
    """How much longer attention took in each run than in the sweep, in logarithms: the mean over
    equal calls by their time."""
    runs = list(database.runs())
    calls = {
        data: sample.statistics.median
        for run in runs
        if run.fields.get("configuration", "").startswith(SWEEPS)
        for data, sample in run.samples.items()
        if signature.decode(data)[0] == SignatureKind.CUDNN
    }
    found = {}
    for run in runs:
        pairs = [
            (calls[data], sample.statistics.median)
            for data, sample in run.samples.items()
            if calls.get(data, 0) > LEAST_ATTENTION_NS and not sample.first
        ]
        if pairs:
            cool, measured = map(sum, zip(*pairs, strict=True))
            found[run.uid] = float(np.log(measured / cool))
    return found


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else databases.shipped_path("h200")
    database, power = Database.open(path), load_gpu("h200").power
    found = rates(database)
    counts: dict[str, int] = defaultdict(int)
    for uid, _ in found:
        counts[uid] += 1
    names = {run.uid: run.fields.get("configuration", "") for run in database.runs()}
    print("[power.recorded_in]")
    parts = run_parts(found)
    sweep = next(part for uid, part in parts.items() if names[uid] == SWEEP)
    for uid, part in sorted(parts.items(), key=lambda item: (names[item[0]], item[0])):
        if counts[uid] >= LEAST_PRODUCTS:
            clock = power.fastest[BoundBy.COMPUTE] * np.exp(sweep - part)
            print(f'{uid} = "{clock:.0f} MHz"  # {names[uid]}')
    print("\n[power.attention_recorded_in]")
    clocks = {
        uid: min(power.highest, power.fastest[BoundBy.ATTENTION] * np.exp(-part))
        for uid, part in attention_parts(database).items()
    }
    for uid, clock in sorted(clocks.items(), key=lambda item: (names[item[0]], item[0])):
        print(f'{uid} = "{clock:.0f} MHz"  # {names[uid]}')
    jobs = [clock for uid, clock in clocks.items() if not names[uid].startswith(SWEEPS)]
    print(f"# mean of the runs of jobs: {mean(jobs):.0f} MHz")


if __name__ == "__main__":
    main()
