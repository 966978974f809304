"""The report's part on host time: where it came from, and how much of it was known.

Why it exists: with --host-time auto or model, host time is recorded for exactly this call site, or
for less of its history, or for its class of calls; or it was measured here, or is a default. A reader
must know how much of each there is before trusting a job that is bound by its host.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phantora_ns.kernels.database.host_samples import samples_of
from phantora_ns.protocol import HostLevel, RankStats

UNKNOWN_WARNING_SHARE = 0.05
"""Above this share of host time, times of call sites without a record get a warning, and a job with
--host-time auto is measured again: its code has changed."""
WALL_CLOCK = ("wall_s", "hub_cpu_ns", "messages", "rollbacks", "peak_pinned_bytes")
"""Fields of the report that describe the run and not what was simulated. With --host-time
model all others repeat, and with auto from a job's second run on. How much memory a loader's thread pins
depends on whether the job has given a block back by then, which is a matter of real time."""


def host_part(run_dir: Path, run: dict[str, Any], ranks: Iterable[RankStats]) -> dict[str, Any]:
    """`host_time` of the report (docs/report.md)."""
    ranks, levels = list(ranks), HostLevel.LABELS
    calls = [sum(stats.host_calls[level] for stats in ranks) for level in range(len(levels))]
    times = [sum(stats.host_ns[level] for stats in ranks) for level in range(len(levels))]
    total = sum(times)
    measured = samples_of(run_dir) if run.get("host_time_measures") else None
    return {
        "mode": run.get("host_time"),
        "scale": run.get("host_scale"),
        "told": bool(run.get("host_told")),
        "measured": measured
        and {
            "call_sites": len(measured.sites),
            "speed": round(measured.speed.early, 4),
            "long_speed": round(measured.speed.rest, 4),
            "lost": measured.lost,
        },
        "call_sites": {name: count for name, count in zip(levels, calls, strict=True) if count},
        "time_share": {
            name: round(ns / total, 6) for name, ns in zip(levels, times, strict=True) if ns
        },
    }


def unknown_share(part: dict[str, Any]) -> float:
    """The share of host time that is charged without knowing its call site, exactly or measured."""
    shares = part["time_share"]
    return sum(shares.get(level, 0.0) for level in ("backed off", "class", "unknown"))


def will_be_measured_again(part: dict[str, Any]) -> bool:
    """Whether a run with --host-time auto was charged too little of what is known exactly."""
    if part["mode"] != "auto" or part["measured"]:
        return False
    return unknown_share(part) > UNKNOWN_WARNING_SHARE


def host_lines(part: dict[str, Any]) -> list[str]:
    """The lines of the summary about it."""
    shares = part["time_share"]
    if not shares:
        return []
    named = sorted(shares.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{share:.1%} {name}" for name, share in named)
    lines = [f"host time: {shown} (docs/report.md#how-well-host-time-is-known)"]
    if part["measured"]:
        lines.append(
            "host time was measured in this run; "
            "the next run of this command is charged the same, and repeats exactly"
        )
    if will_be_measured_again(part):
        lines.append(
            f"warning: {unknown_share(part):.1%} of host time is of call sites that were not come to when "
            "this command was measured; its next run measures them, and repeats exactly from then on"
        )
        return lines
    unknown = shares.get("unknown", 0) + shares.get("class", 0)
    if unknown > UNKNOWN_WARNING_SHARE:
        lines.append(
            f"warning: {unknown:.1%} of host time is of call sites that no database holds; "
            "record them with --record-host, or with phantora-ns profile"
        )
    return lines


def repeatable(report: dict[str, Any]) -> dict[str, Any]:
    """The report without what describes the run itself. It is equal for two runs of one job with
    --host-time model."""
    kept = {name: value for name, value in report.items() if name not in WALL_CLOCK}
    return kept | {
        "ranks": [
            {name: value for name, value in rank.items() if name not in WALL_CLOCK}
            for rank in report["ranks"]
        ]
    }
