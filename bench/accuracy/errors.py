"""The errors that the band of a step is made of (phantora_ns/report/band.py), by kernel class.

    python -m bench.accuracy.errors [DATABASE]      # ten minutes

Why it exists: a band is worth what its constants are. These come from the database that ships, which
holds calibration runs only. Each configuration of a step is left out in turn; what the others have not
measured is predicted from them and from the sweeps, and the error of a class is that of its *total time* in a
configuration, because errors of single kernels of one class add up there. Configurations count by
their time in the class. A constant is a standard deviation, and a band is to hold 80 %: so it is the error
below which 80 % of the time is, over the same of a standard normal distribution. (The root mean square, which was
taken until 2026-11-30, follows the few configurations that are unlike all others.)
A sweep is not left out: it holds sizes beyond those of any step. All times are put at the usual clock, as they are in
a run. The sign is left in: a bias is an error too.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.databases import shipped_path
from phantora_ns.kernels.evaluation.heldout import leave_out
from phantora_ns.kernels.families import kernel_class
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import KernelClass, Source
from phantora_ns.report import band


SWEEPS = (
    "convolutions", "experts", "heads", "image", "operators", "optimizers", "precisions", "products-",
    "segmentation", "shards", "triton-", "unfused", "varied", "whole-attention",
)  # fmt: skip
"""Beginnings of the names of recordings that are no steps."""


class Total(NamedTuple):
    """The time of one class in one configuration, predicted and measured; ns."""

    predicted_ns: float
    measured_ns: float


def deviation(totals: Iterable[Total]) -> float:
    """The standard deviation of a normal distribution whose middle COVERAGE is as wide as that of log(predicted /
    measured), weighted by measured time. Raises ValueError without any time."""
    kept = sorted(
        (abs(math.log(total.predicted_ns / total.measured_ns)), total.measured_ns)
        for total in totals
    )
    wanted_ns = band.COVERAGE * sum(measured_ns for _, measured_ns in kept)
    for error, measured_ns in kept:
        wanted_ns -= measured_ns
        if wanted_ns <= 0:
            return error / band.Z
    raise ValueError("no time was measured")


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else shipped_path("h200")
    with Database.open(path) as database:
        observations = list(database.observations())
        times = KernelTimes(database.gpu, [database])
    sums: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(lambda: [0.0, 0.0])
    )
    for row in leave_out(
        observations,
        times.rates,
        times.estimate,
        keep=lambda name: name.startswith(SWEEPS),
        share=times.clocks.share,
    ):
        seen = row.observation
        label = KernelClass.LABELS[kernel_class(seen.kind, seen.fields, seen.context)]
        guessed = times.estimate(seen.kind, seen.fields, seen.context).source == Source.GUESS
        for how, time_ns in (
            ("fitted", row.fitted_ns),
            ("guess" if guessed else "estimated", row.analytic_ns),
        ):
            total = sums[how, label if how != "guess" else "all"][seen.configuration]
            total[0] += time_ns * seen.count
            total[1] += seen.median_ns * seen.count
    for how in ("fitted", "estimated", "guess"):
        for (kind, label), found in sorted(sums.items()):
            if kind == how:
                totals = [Total(*total) for total in found.values()]
                print(
                    f"{how:10s}{label:12s} {deviation(totals):7.1%}  {len(totals)} configurations"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
