"""How good the bands are, and the one constant of their law that comes from steps.

    python -m bench.accuracy.bands [RESULTS.json]      # default: the newest file of results/

Why it exists: the law (phantora_ns/report/band.py) has one constant that no smaller measurement
gives: how much hosts differ from what they are charged with (HOSTS). It is chosen on host-bound calibration rows alone:
the value with which their errors, over the standard deviations that the law gives them, have a mean
square of 1. Coverage is printed for both sets, and is worth something for evaluation.

A band that holds 80 % of normal errors is 3.2 mean errors wide: 2.56 standard deviations, and their mean
is 0.80 of one.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bench.accuracy import store
from bench.accuracy.configs import HERE, SETS
from bench.accuracy.rows import KINDS, coverage, step_ns
from phantora_ns.report import band
from phantora_ns.report.step_part import SHARES

LARGEST = 1.0
"""Hosts differ by no more."""
TERMS = ("kernels", "gpu", "communication", "host")


class Row(NamedTuple):
    """A row with its evidence; `error` is log(real / simulated)."""

    name: str
    evidence: band.Evidence
    error: float


def evidence_of(row: dict) -> band.Evidence:
    """The evidence of a row that has a band."""
    step = row["step"]
    return band.Evidence(
        step_ns=step_ns(step),
        work_ns=row["kernel_time_ns"],
        **{name: step[name] for name in ("busy_ns", "exposed_ns", "host_ns")},
        **{name: step["evidence"][name] for name in SHARES},
    )


def by_this_law(row: dict) -> dict:
    """A row that has a band, with the band as the present law has it, whatever the law was when the row was made."""
    return row | {"step": row["step"] | {"band": band.band_of(evidence_of(row)).as_json()}}


def rows_of(rows: Iterable[dict]) -> list[Row]:
    """What the law says of rows that have a band, and their errors."""
    return [
        Row(row["name"], evidence_of(row), math.log(row["real_s"] / row["simulated_s"]))
        for row in rows
    ]


def mean_square(rows: list[Row]) -> float:
    """Of errors over the law's standard deviations."""
    return statistics.mean((row.error / deviation(row.evidence)) ** 2 for row in rows)


def deviation(evidence: band.Evidence) -> float:
    """The standard deviation of a step by the law, a share of it."""
    found = band.band_of(evidence)
    return math.hypot(*(getattr(found, term) for term in TERMS))


def best_hosts(rows: list[Row]) -> float:
    """The HOSTS with which the mean square is 1, to a tenth of a percent; 0 if it is below without
    any."""
    kept, low, high = band.HOSTS, 0.0, LARGEST
    try:
        while high - low > 5e-4:
            band.HOSTS = (low + high) / 2
            low, high = (band.HOSTS, high) if mean_square(rows) > 1 else (low, band.HOSTS)
        return round(high, 3)
    finally:
        band.HOSTS = kept


def main() -> int:
    files = sorted((HERE / "results").glob("*.json"))
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else files[-1]
    rows = [row for row in store.read(path)[-1]["rows"] if row.get("step") and row["step"]["band"]]
    for name in SETS:
        for kind in KINDS:
            kept = [by_this_law(row) for row in rows if (row["set"], row["kind"]) == (name, kind)]
            found = coverage(kept)
            if not found:
                continue
            print(
                f"{name}, {kind}: {found['inside']} of {found['rows']} inside, width "
                f"{found['width']:.1%}, mean error {found['error']:.1%}"
            )
            for row in rows_of(kept):
                terms = band.band_of(row.evidence)
                parts = ", ".join(f"{term} {getattr(terms, term):.1%}" for term in TERMS)
                ratio = row.error / deviation(row.evidence)
                print(f"  {row.name:26s} {row.error:+.1%} is {ratio:+.1f} deviations: {parts}")
    bound = [row for row in rows if row["set"] == "calibration" and row["kind"] == "host-bound"]
    print(f"HOSTS by the calibration rows: {best_hosts(rows_of(bound))}; it is {band.HOSTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
