"""What a comparison says: one row per configuration, sums by set and kind, and the bars they are
held against.

Why it exists: the accuracy table is only as honest as its bookkeeping. Calibration and evaluation
are never summed together, runs whose real steps vary are kept apart from steady ones, host-bound
runs from both, and memory is compared to the byte.
"""

from __future__ import annotations

import statistics

from bench.accuracy.breakdown import COLUMNS
from bench.accuracy.configs import SETS
from bench.accuracy.measured import Measured

# a real run is steady when its steps' standard deviation is below this part of their median
STEADY = 0.03
# the bars: steady runs' mean and worst error, host-bound runs' worst
STEADY_MEAN, STEADY_WORST, HOST_WORST = (
    0.03,
    0.06,
    0.15,
)
KINDS = ("steady", "host-bound", "varying")
RANK_FIELDS = ("gpu_busy_ns", "comm_ns", "comm_wait_ns", "exposed_comm_ns", "host_cpu_ns")
"""What a row keeps of the report's ranks."""
PARTS = tuple(field for _, field in COLUMNS)


def kind_of(bound: str, spread: float) -> str:
    """The kind of a run, which decides its bar: "host-bound" by its configuration, else "steady"
    or "varying" by its real steps."""
    return "host-bound" if bound == "host" else "steady" if spread < STEADY else "varying"


def unequal(measured, simulated: list[list[int]], index: int) -> list[tuple[int, int]]:
    """(rank, difference in bytes) of each rank whose peak equals that of no measurement. Index 0:
    allocated, 1: reserved.

    `measured`: peaks of every measurement, of as many ranks as were recorded.
    """
    found = []
    for rank, peaks in enumerate(simulated):
        right = [run[rank][index] for run in measured if rank < len(run)]
        if right and peaks[index] not in right:
            found.append((rank, peaks[index] - right[-1]))
    return found


def row_of(real: Measured, simulated: dict, report: dict, whole: bool) -> dict:
    """One row: times in seconds, error as a part of the real time, memory in bytes of every rank.
    `simulated`: the script's own result; `report`: phantora-ns' (docs/report.md); `whole`: it ran
    as many steps as the real one. Else peaks are not compared (None): a compiled job still reserves
    memory after ten steps."""
    peaks = simulated.get("peaks") or [[simulated["peak_alloc"], simulated["peak_reserved"]]]
    issue = simulated.get("issue_median_s")
    return {
        "name": real.name,
        "set": real.set,
        "gpus": real.gpus,
        "kind": kind_of(real.bound, real.spread),
        "real_s": real.median_s,
        "spread": real.spread,
        "simulated_s": simulated["median_s"],
        "error": simulated["median_s"] / real.median_s - 1,
        "real_issue_s": real.issue_s,
        "simulated_issue_s": issue,
        "real_peaks": real.every_peaks[-1],
        "simulated_peaks": peaks,
        "allocated_unequal": unequal(real.every_peaks, peaks, 0) if whole else None,
        "reserved_unequal": unequal(real.every_peaks, peaks, 1) if whole else None,
        "kernel_time_share": report.get("kernel_time_share"),
        "kernel_time_ns": report.get("kernel_time_ns"),
        "step": report.get("step"),
        "gpu_clock": report.get("gpu_clock"),
        "host_time": report.get("host_time"),
        "communication": [
            {name: rank[name] for name in RANK_FIELDS} for rank in report.get("ranks", [])
        ],
        "guesses": report.get("guesses"),
        "wall_s": report.get("wall_s"),
        "real_parts": None,
        "simulated_parts": None,
        "difference": None,
    }


def verdicts(rows: list[dict]) -> list[dict]:
    """For each set and kind with any run: how many, mean and worst absolute error, the bars, and
    whether they are met (None for varying runs, which have no bar: a real step that varies by more
    than the bar cannot be held against it)."""
    found = []
    for name in SETS:
        for kind in KINDS:
            errors = [
                abs(row["error"]) for row in rows if (row["set"], row["kind"]) == (name, kind)
            ]
            if not errors:
                continue
            mean, worst = statistics.mean(errors), max(errors)
            bars = {
                "steady": (STEADY_MEAN, STEADY_WORST),
                "host-bound": (None, HOST_WORST),
                "varying": (None, None),
            }[kind]
            met = (
                None
                if kind == "varying"
                else (bars[0] is None or mean <= bars[0]) and worst <= bars[1]
            )
            found.append(
                {
                    "set": name,
                    "kind": kind,
                    "runs": len(errors),
                    "mean": mean,
                    "worst": worst,
                    "mean_bar": bars[0],
                    "worst_bar": bars[1],
                    "met": met,
                }
            )
    return found


def equal_peaks(rows: list[dict]) -> tuple[int, int]:
    """How many of the rows whose peaks were compared have allocated and reserved ones equal to a
    real run's on every recorded rank."""
    return tuple(
        sum(row[f"{kind}_unequal"] == [] for row in rows) for kind in ("allocated", "reserved")
    )


def sources(rows: list[dict]) -> dict[str, float]:
    """Where the kernel times came from: the mean over runs of each source's share of simulated GPU
    time."""
    shares = [row["kernel_time_share"] for row in rows if row["kernel_time_share"]]
    names = sorted(
        {name for share in shares for name in share},
        key=lambda name: -sum(s.get(name, 0) for s in shares),
    )
    return {name: sum(share.get(name, 0) for share in shares) / len(shares) for name in names}
