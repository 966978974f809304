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
from bench.accuracy.programs import Outcome

# a real run is steady when its steps' standard deviation is below this part of their median
STEADY = 0.03
# the bars of steady runs: mean, worst and signed mean error
STEADY_MEAN, STEADY_WORST, STEADY_SIGNED = 0.02, 0.04, 0.01
# those of host-bound runs: the share within the real steps widened by 5 %, and the mean error
HOST_INSIDE, WIDENED, HOST_MEAN = 0.8, 0.05, 0.1
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


def within(real: Measured, simulated_s: float) -> bool:
    """Whether a step is no shorter than the shortest real one and no longer than the longest, over
    all repeats, widened by 5 %."""
    return real.least_s * (1 - WIDENED) <= simulated_s <= real.most_s * (1 + WIDENED)


def held_against(real: Measured, simulated_s: float, peaks: list[list[int]] | None) -> dict:
    """What a row says of its simulated run beside the real ones: these fields follow from the real runs that
    are known today, also where the simulated one was kept from an earlier day. `peaks`: None when they are not
    compared."""
    return {
        "kind": kind_of(real.bound, real.spread),
        "real_s": real.median_s,
        "real_least_s": real.least_s,
        "real_most_s": real.most_s,
        "real_runs": [[*run] for run in real.runs or [(real.median_s, None)]],
        "within": within(real, simulated_s),
        "spread": real.spread,
        "error": simulated_s / real.median_s - 1,
        "real_peaks": real.every_peaks[-1] if real.every_peaks else None,
        "allocated_unequal": None if peaks is None else unequal(real.every_peaks, peaks, 0),
        "reserved_unequal": None if peaks is None else unequal(real.every_peaks, peaks, 1),
    }


def held_again(row: dict, real: Measured) -> dict:
    """A kept row beside the real runs that are known today."""
    peaks = None if row["allocated_unequal"] is None else row["simulated_peaks"]
    return row | held_against(real, row["simulated_s"], peaks)


def row_of(real: Measured, simulated: Outcome, report: dict, whole: bool) -> dict:
    """One row: times in seconds, error as a part of the real time, memory in bytes of every rank.
    `simulated`: what the job's log says; `report`: phantora-ns' (docs/report.md); `whole`: it ran
    as many steps as the real one. Else peaks are not compared (None): a compiled job still reserves
    memory after ten steps. Nor are they where they were not recorded to the byte."""
    peaks = simulated.peaks or []
    whole = whole and bool(real.every_peaks) and bool(peaks)
    return {
        "name": real.name,
        "set": real.set,
        "gpus": real.gpus,
        **held_against(real, simulated.median_s, peaks if whole else None),
        "simulated_s": simulated.median_s,
        "real_issue_s": real.issue_s,
        "simulated_issue_s": simulated.issue_s,
        "simulated_peaks": peaks,
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
    """For each set and kind with any run: how many, mean and worst absolute error, the signed mean,
    how many lie within the real steps, what is asked of the kind, and whether it is met (None for
    varying runs, of which nothing is asked: a real step that varies by more than the bar cannot be
    held against it)."""
    found = []
    for name in SETS:
        for kind in KINDS:
            kept = [row for row in rows if (row["set"], row["kind"]) == (name, kind)]
            if not kept:
                continue
            errors = [row["error"] for row in kept]
            mean, worst = statistics.mean(map(abs, errors)), max(map(abs, errors))
            signed, inside = statistics.mean(errors), sum(row["within"] for row in kept)
            bars, met = {
                "steady": (
                    f"mean at most {STEADY_MEAN:.0%}, worst {STEADY_WORST:.0%}, signed mean within "
                    f"{STEADY_SIGNED:.0%}",
                    mean <= STEADY_MEAN and worst <= STEADY_WORST and abs(signed) <= STEADY_SIGNED,
                ),
                "host-bound": (
                    f"{HOST_INSIDE:.0%} within the real steps, mean at most {HOST_MEAN:.0%}",
                    inside >= HOST_INSIDE * len(kept) and mean <= HOST_MEAN,
                ),
                "varying": (None, None),
            }[kind]
            found.append(
                {
                    "set": name,
                    "kind": kind,
                    "runs": len(kept),
                    "mean": mean,
                    "worst": worst,
                    "signed": signed,
                    "within": inside,
                    "bars": bars,
                    "met": met,
                }
            )
    return found


def step_ns(step: dict) -> int:
    """The time that a kept step's band is around: the mean, and of rows that were kept before the report
    had it the median."""
    return step["mean_ns"] if "mean_ns" in step else step["median_ns"]


def coverage(rows: list[dict]) -> dict | None:
    """How good the bands are: of how many real runs the job has one, how many medians of these runs lie inside, the
    mean width as a share of the step, and the mean absolute error. Each run counts once, since a band is for
    one run on one server. The band is of the report's own step, so it is taken as a factor of the job's. None
    without any."""
    kept = [row for row in rows if row.get("step") and row["step"]["band"]]
    if not kept:
        return None
    ends = [
        [row["step"]["band"][end] / step_ns(row["step"]) for end in ("low_ns", "high_ns")]
        for row in kept
    ]
    runs = [
        (low, real_s / row["simulated_s"], high)
        for row, (low, high) in zip(kept, ends, strict=True)
        for real_s, _ in row["real_runs"]
    ]
    return {
        "rows": len(kept),
        "runs": len(runs),
        "inside": sum(low <= ratio <= high for low, ratio, high in runs),
        "width": statistics.mean(high - low for low, _, high in runs),
        "error": statistics.mean(abs(1 / ratio - 1) for _, ratio, _ in runs),
    }


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
