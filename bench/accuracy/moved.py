"""What moved between two runs of the comparison, and why.

Why it exists: a night's table says that a step is 1.3 % longer; whoever changed something wants to
know which kernels or which law did that. The report's sums say it: GPU time by class of kernel and
source, waits for communication, host time, the clock. Rule: the causes of a row add up to its
difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.accuracy import store
from bench.accuracy.rows import step_ns

LEAST = 0.002
"""A step that differs by less has not moved, and a cause that is smaller is not named."""
CLOCK = 0.002
"""A clock that differs by more is named."""
HOST_BOUND = 0.8
"""A host that works for this share of the step decides what is left of it."""
LAWS = {
    "exact": "recorded",
    "launch": "recorded, alike",
    "law": "fitted law",
    "gemm": "model",
    "attention": "model",
    "roofline": "estimate",
    "copy": "model",
    "guess": "guess",
}
"""Source -> what decided those times."""


class Cause(NamedTuple):
    """A part of a step's difference, as a share of the earlier step."""

    label: str
    share: float


class Moved(NamedTuple):
    """A row whose step moved; seconds."""

    name: str
    before_s: float
    after_s: float
    causes: list[Cause]
    notes: list[str]

    @property
    def share(self) -> float:
        return self.after_s / self.before_s - 1


def since_the_last(folder: Path, run: dict) -> list[str]:
    """Lines about `run` and the last earlier run with its options that has a row of it. Raises
    ValueError for a file of another schema."""
    earlier = last_before(folder, run)
    if earlier is None:
        return ["no earlier run with these options: nothing to compare with"]
    head = f"since {earlier['date']} (commit {earlier['commit'][:12]})"
    if earlier["machine"]["torch"] != run["machine"]["torch"]:
        head += (
            f", under torch {earlier['machine']['torch']} then and {run['machine']['torch']} now"
        )
    before = {row["name"]: row for row in earlier["rows"]}
    pairs = [(before[row["name"]], row) for row in run["rows"] if row["name"] in before]
    found = [moved for pair in pairs if (moved := compare(*pair)) is not None]
    lines = [f"{head}: {len(found)} of {len(pairs)} steps moved by {LEAST:.1%} or more"]
    for moved in sorted(found, key=lambda one: -abs(one.share)):
        lines.append(shown(moved))
    peaks = [after["name"] for old, after in pairs if _peaks_moved(old, after)]
    if peaks:
        lines.append(f"peak memory moved: {', '.join(peaks)}")
    return lines


def last_before(folder: Path, run: dict) -> dict | None:
    """The last run with the same options and other content; None without one."""
    found = [
        one
        for path in sorted(folder.glob("*.json"))
        for one in store.read(path)
        if one["options"] == run["options"]
        and one["content"] != run["content"]
        and one["date"] <= run["date"]
    ]
    return found[-1] if found else None


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Moved | None:
    """What moved in a row; None when nothing did."""
    if abs(after["simulated_s"] / before["simulated_s"] - 1) < LEAST:
        return None
    causes, notes = _causes(before, after), []
    clocks = [row.get("gpu_clock") for row in (before, after)]
    if all(clocks) and abs(clocks[1]["mean_mhz"] / clocks[0]["mean_mhz"] - 1) >= CLOCK:
        notes.append(f"clock {clocks[0]['mean_mhz']:.0f} to {clocks[1]['mean_mhz']:.0f} MHz")
    if causes and "median_ns" in before["step"] and "mean_ns" in after["step"]:
        notes.append("the causes are of a median step then and of a mean one now")
    return Moved(before["name"], before["simulated_s"], after["simulated_s"], causes, notes)


def _causes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Cause]:
    """The parts of the difference, the largest first; none where a row has no step."""
    old, new = before.get("step"), after.get("step")
    if not old or not new:
        return []
    step = step_ns(old)
    times = [_by_cause(row, found["busy_ns"]) for row, found in ((before, old), (after, new))]
    labels = dict.fromkeys([*times[0], *times[1]])
    causes = [
        Cause(label, (times[1].get(label, 0.0) - times[0].get(label, 0.0)) / step)
        for label in labels
    ]
    causes.append(Cause("exposed communication", (new["exposed_ns"] - old["exposed_ns"]) / step))
    rest = (step_ns(new) - step) / step - sum(cause.share for cause in causes)
    bound = min(one["host_ns"] / step_ns(one) for one in (old, new)) >= HOST_BOUND
    causes.append(Cause("host" if bound else "contention, gaps and other waits", rest))
    return sorted(causes, key=lambda cause: -abs(cause.share))


def _by_cause(row: Mapping[str, Any], busy_ns: int) -> dict[str, float]:
    """GPU time of a step by class and law, ns; the run's sums, scaled to the step."""
    sums = {
        f"{name} ({LAWS[source]})": ns
        for name, sources in (row.get("kernel_time_ns") or {}).items()
        for source, ns in sources.items()
    }
    total = sum(sums.values())
    return {label: ns / total * busy_ns for label, ns in sums.items()} if total else {}


def _peaks_moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return before["simulated_peaks"] != after["simulated_peaks"]


def shown(moved: Moved) -> str:
    """One line for one row."""
    named = [f"{c.label} {c.share:+.1%}" for c in moved.causes if abs(c.share) >= LEAST]
    return (
        f"  {moved.name:24s} {moved.before_s * 1e3:.2f} to {moved.after_s * 1e3:.2f} ms "
        f"({moved.share:+.1%}): {', '.join([*named, *moved.notes]) or 'no cause is known'}"
    )
