"""Where one step's time goes in a Kineto trace: compute, communication, exposed communication, nothing.

    python bench/accuracy/breakdown.py TRACE.json.gz ...

Why it exists: an error in step time says nothing until it is known which part of the step it comes from. Works alike on
traces of real GPUs and on simulated ones. Times in ms, over the union of intervals on all streams of the trace's GPU.
"""
from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


def merged(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of (start, end) intervals as disjoint ones in order. O(n log n)."""
    union: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def total(intervals: list[tuple[float, float]]) -> float:
    """Summed length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def load_events(path: Path) -> list[dict]:
    """The trace's complete events that ran on a GPU. Raises ValueError if there is none."""
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
    with opened as stream:
        events = [e for e in json.load(stream)["traceEvents"] if e.get("ph") == "X" and e.get("cat") in GPU_CATEGORIES]
    if not events:
        raise ValueError(f"{path}: no GPU activity in this trace")
    return events


def breakdown(events: list[dict]) -> dict[str, float]:
    """Parts of the time between the first and the last GPU activity (ms); the last four add up to `span`.

    compute_alone + hidden + exposed + idle = span, where hidden is communication with compute beside it, exposed is
    communication with none, and idle is neither. `kernel_ms` is the plain sum of compute durations.
    """
    def intervals(wanted):
        return merged([(e["ts"], e["ts"] + e["dur"]) for e in events if wanted(e)])

    def is_communication(event):
        return event["name"].startswith("ncclDevKernel")

    compute, communication = intervals(lambda e: not is_communication(e)), intervals(is_communication)
    both = intervals(lambda e: True)
    span = both[-1][1] - both[0][0]
    hidden = total(compute) + total(communication) - total(both)
    parts = {
        "span": span, "kernel_sum": sum(e["dur"] for e in events if not is_communication(e)),
        "communication": total(communication), "compute_alone": total(compute) - hidden, "hidden": hidden,
        "exposed": total(communication) - hidden, "idle": span - total(both),
    }
    return {name: value / 1e3 for name, value in parts.items()} | {"launches": len(events)}


def main() -> None:
    names = ("span", "kernels", "comm.", "| compute", "hidden", "exposed", "idle", "launches")
    print(f"{'trace':28s} " + " ".join(f"{name:>9s}" for name in names))
    for name in sys.argv[1:]:
        parts = breakdown(load_events(Path(name)))
        launches = parts.pop("launches")
        print(f"{Path(name).name.split('.')[0]:28s} " + " ".join(f"{value:9.2f}" for value in parts.values()) + f" {launches:9d}")


if __name__ == "__main__":
    main()
