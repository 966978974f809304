"""How good the bands are, and the one constant of their law that comes from steps.

    python -m bench.accuracy.bands [RESULTS.json]      # default: the newest file of results/

Why it exists: the law (phantora_ns/report/band.py) has two constants that no smaller measurement
gives: how much hosts differ from what they are charged with (HOSTS), and how much they still do when the
server's CPU score is told (TOLD). Both are chosen on host-bound calibration rows alone: the smallest value with
which 80 % of their real runs are inside. Coverage is printed for both sets, and is worth something for
evaluation.

A band that holds 80 % of normal errors is 3.2 mean errors wide: 2.56 standard deviations, and their mean
is 0.80 of one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bench.accuracy import store
from bench.accuracy.configs import HERE, SETS
from bench.accuracy.rows import KINDS, coverage, step_ns
from phantora_ns.launch.record.host_speed import REFERENCE_SCORE_NS
from phantora_ns.report import band
from phantora_ns.report.step_part import SHARES

LARGEST = 1.0
"""Hosts differ by no more."""
TERMS = ("kernels", "gpu", "communication", "host")


class Row(NamedTuple):
    """A row with its evidence; `errors` are log(real / simulated) of each real run."""

    name: str
    evidence: band.Evidence
    errors: tuple[float, ...]


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
        Row(
            row["name"],
            evidence_of(row),
            tuple(math.log(real_s / row["simulated_s"]) for real_s, _ in row["real_runs"]),
        )
        for row in rows
    ]


def told(rows: Iterable[dict]) -> list[Row]:
    """The same when the score of each run's server is told, of runs beside which it was measured: host time then
    follows it. For rows whose host decides."""
    found = []
    for row in rows:
        errors = tuple(
            math.log(real_s / (row["simulated_s"] * score_ns / REFERENCE_SCORE_NS))
            for real_s, score_ns in row["real_runs"]
            if score_ns is not None
        )
        if errors:
            found.append(Row(row["name"], dataclasses.replace(evidence_of(row), told=True), errors))
    return found


def covered(rows: list[Row]) -> float:
    """The share of real runs inside the law's bands."""
    return statistics.mean(inside(row.evidence, error) for row in rows for error in row.errors)


def inside(evidence: band.Evidence, error: float) -> bool:
    """Whether a real run is inside that is exp(error) times the step."""
    found = band.band_of(evidence)
    return found.low_ns <= evidence.step_ns * math.exp(error) <= found.high_ns


def best(constant: str, rows: list[Row]) -> float:
    """The smallest HOSTS, or TOLD, with which the bands hold their share of runs, to a tenth of a percent; LARGEST
    if none does."""
    kept, low, high = getattr(band, constant), 0.0, LARGEST
    try:
        while high - low > 5e-4:
            middle = (low + high) / 2
            setattr(band, constant, middle)
            low, high = (middle, high) if covered(rows) < band.COVERAGE else (low, middle)
        return round(high, 3)
    finally:
        setattr(band, constant, kept)


def printed(what: str, found: dict) -> str:
    """What coverage() found, on a line."""
    return (
        f"{what}: {found['inside']} of {found['runs']} runs inside, width {found['width']:.1%}, mean error "
        f"{found['error']:.1%}, {found['width'] / found['error']:.1f} times it"
    )


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
            print(printed(f"{name}, {kind}", found))
            for row in rows_of(kept):
                terms = band.band_of(row.evidence)
                parts = ", ".join(f"{term} {getattr(terms, term):.1%}" for term in TERMS)
                within = sum(inside(row.evidence, error) for error in row.errors)
                print(f"  {row.name:26s} {within} of {len(row.errors)} inside: {parts}")
        both = [by_this_law(row) for row in rows if row["set"] == name]
        if found := coverage(both):
            print(printed(f"{name}, all", found))
    bound = [row for row in rows if row["set"] == "calibration" and row["kind"] == "host-bound"]
    print(f"HOSTS by the calibration rows: {best('HOSTS', rows_of(bound))}; it is {band.HOSTS}")
    print(f"TOLD by the calibration rows: {best('TOLD', told(bound))}; it is {band.TOLD}")
    judged = told(row for row in rows if row["set"] == "evaluation" and row["kind"] == "host-bound")
    within = [inside(row.evidence, error) for row in judged for error in row.errors]
    print(f"evaluation, host-bound, told the score: {sum(within)} of {len(within)} runs inside")
    return 0


if __name__ == "__main__":
    sys.exit(main())
