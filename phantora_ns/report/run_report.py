"""The report of one run: JSON for programs, a few lines for a person.

Why it exists: what a run says about itself is put together once, after it has ended, from the hub's
part (hub.json) and the rank statistics. Either may be missing when something was killed; what is then
unknown is null, never zero. The fields are documented in docs/report.md.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from phantora_ns.protocol import RANK_STATS_FILE, RankStats, Source
from phantora_ns.report.host_part import host_lines, host_part
from phantora_ns.report.rank_stats import read_rank_stats

SCHEMA = 1
MEASURED_SOURCES = Source.LAW
"""So many of the first sources are measurements (the signature's own, or those of the same launch);
the others are models."""
VALUES = "values"  # launch/record/leaders.py
GUESS_WARNING_SHARE = 0.01
"""Above this share of GPU time, guessed kernel times are worth a line in the summary."""


def build_report(
    run_dir: Path, *, exit_code: int, failed_by: str | None, wall_s: float
) -> dict[str, Any]:
    """The report as JSON data. `failed_by`: None, "job", "launcher" or "hub". Raises OSError,
    ValueError, KeyError when run.json is missing or damaged; a missing or damaged hub.json, or
    rank statistics, only leave gaps."""
    run_dir = Path(run_dir)
    run = json.loads((run_dir / "run.json").read_text())
    hub = _read_hub(run_dir / "hub.json")
    statistics = _read_stats(run_dir / RANK_STATS_FILE)
    clients = (
        hub["clients"]
        if hub
        else [
            {"rank": None, "node": None, "device": -1, "shm": name} for name in sorted(statistics)
        ]
    )
    ranks = _ranks(clients, statistics)
    busy = [
        sum(stats.busy_ns[source] for stats in statistics.values())
        for source in range(len(Source.LABELS))
    ]
    clocks = [stats.clock_ns for stats in statistics.values()]
    leading = hub.get("leading") if hub else None
    return {
        "schema": SCHEMA,
        "world_size": run["nodes"] * run["gpus_per_node"],
        "nodes": run["nodes"],
        "gpus_per_node": run["gpus_per_node"],
        "cluster": run["cluster"],
        "ranks": ranks,
        "simulated_ns": hub["simulated_ns"] if hub else max(clocks, default=0),
        "wall_s": round(wall_s, 3),
        "rollbacks": _of(hub, "rollbacks"),
        "revised": _of(hub, "revised"),
        "messages": _of(hub, "messages"),
        "bad_messages": _of(hub, "bad_messages"),
        "expired_values": _of(hub, "expired_values"),
        "hub_cpu_ns": _of(hub, "hub_cpu_ns"),
        "kernel_time_share": {
            name: round(ns / sum(busy), 6)
            for name, ns in zip(Source.LABELS, busy, strict=True)
            if ns
        },
        "host_time": host_part(run, statistics.values()),
        "values": {
            "policy": run.get("values"),
            "unknown_reads": sum(stats.unknown_reads for stats in statistics.values()),
            "chosen": sum(stats.chosen_values for stats in statistics.values()),
            "replayed": sum(stats.replayed_values for stats in statistics.values()),
            "repeated": sum(stats.repeated_values for stats in statistics.values()),
        },
        "databases": run.get("databases", []),
        "leading": leading
        and leading
        | {
            "records": run.get("records"),
            "profile": None
            if run.get("records") == VALUES
            else _profile_command(run, leading["unmeasured_ranks"]),
        },
        "unsupported_calls": hub["unsupported_calls"] if hub else {},
        "warnings": (hub["warnings"] if hub else {}) | dict.fromkeys(run.get("warnings", []), 1),
        "guesses": hub["guesses"] if hub else {},
        "errors": hub["errors"] if hub else [],
        "exit_code": exit_code,
        "failed_by": failed_by,
    }


def summary_lines(report: dict[str, Any]) -> list[str]:
    """The report for a person: what was simulated, how fast, and what to check before trusting
    it."""
    simulated_s, wall_s = report["simulated_ns"] / 1e9, report["wall_s"]
    pace = f", {wall_s / simulated_s:.3g}x slower than simulated time" if simulated_s > 0 else ""
    lines = [
        f"simulated {_seconds(simulated_s)} of {report['world_size']} GPUs on {report['nodes']} "
        f"node{'s' if report['nodes'] > 1 else ''} in {_seconds(wall_s)}{pace}"
    ]
    ranks = [rank for rank in report["ranks"] if rank["gpu_busy_ns"]]
    if ranks:
        busy = sum(rank["gpu_busy_ns"] for rank in ranks) / len(ranks) / 1e9
        line = f"per GPU: computing {_seconds(busy)}"
        if all(rank["comm_ns"] is not None for rank in ranks):
            comm = sum(rank["comm_ns"] for rank in ranks) / len(ranks) / 1e9
            exposed = sum(rank["exposed_comm_ns"] for rank in ranks) / len(ranks) / 1e9
            line += f", communicating {_seconds(comm)}, streams held up by it {_seconds(exposed)}"
        peaks = [
            rank["peak_allocated_bytes"]
            for rank in ranks
            if rank["peak_allocated_bytes"] is not None
        ]
        if peaks:
            line += f"; peak memory {max(peaks) / 2**30:.2f} GiB"
        lines.append(line)
    shares = report["kernel_time_share"]
    if shares:
        named = ", ".join(
            f"{share:.1%} {name}"
            for name, share in sorted(shares.items(), key=lambda item: -item[1])
        )
        lines.append(f"GPU time by source of kernel times: {named}")
    lines += host_lines(report["host_time"]) + _values_lines(report["values"])
    if report["databases"]:
        lines.append(f"kernel times from {', '.join(report['databases'])}")
    if report["leading"]:
        lines.append(_leading_line(report["leading"]))
    return lines + _warnings(report)


def _values_lines(values: dict[str, Any]) -> list[str]:
    """What the job was told of its tensors that nothing computed (docs/values.md)."""
    parts = []
    if values["unknown_reads"]:
        parts.append(
            f"{values['unknown_reads']} reads by the host of device values that nothing computed"
        )
    if values["chosen"]:
        parts.append(f"{values['chosen']} results chosen evenly where only a GPU could know")
    if values["replayed"]:
        again = (
            f", {values['repeated']} of them again, beyond what was recorded"
            if values["repeated"]
            else ""
        )
        parts.append(f"{values['replayed']} values replayed{again}")
    return [f"values ({values['policy']}): {', '.join(parts)}"] if parts else []


def _leading_line(leading: dict[str, Any]) -> str:
    if not leading["led"]:
        return f"rank {leading['leader']} was to lead, but no process came as its leader: nothing was measured"
    line = (
        f"rank {', '.join(map(str, leading['led']))} led: {leading['measured_signatures']} signatures measured, "
        f"{leading['samples']} samples; other ranks waited for {leading['awaited']} times"
    )
    if leading["host_recorded"] and not leading["samples"]:
        line = f"rank {', '.join(map(str, leading['led']))} led: what its host pays was recorded"
    if leading["records"] == VALUES:
        line = f"rank {', '.join(map(str, leading['led']))} led: what its GPU computed was recorded"
    estimated = leading["estimated_after_waiting"]
    if estimated:
        named = ", ".join(
            f"{count} on rank {rank}"
            for rank, count in sorted(estimated.items(), key=lambda item: int(item[0]))
        )
        line += f", and got estimates in the end: {named}"
    return line


def _profile_command(run: dict[str, Any], ranks: list[int]) -> str | None:
    """What a user types to measure what nobody has; None when all is measured, or no rank can be
    named."""
    named = [str(rank) for rank in ranks if rank >= 0]
    if not named or not run.get("command"):
        return None
    return shlex.join(
        [
            "phantora-ns",
            "profile",
            "--leaders",
            ",".join(named),
            *run.get("options", []),
            *run["command"],
        ]
    )


def _warnings(report: dict[str, Any]) -> list[str]:
    lines = []
    guessed = report["kernel_time_share"].get("guess", 0)
    if guessed > GUESS_WARNING_SHARE:
        lines.append(
            f"warning: {guessed:.1%} of GPU time is guessed from launch sizes alone; record these kernels on a GPU"
        )
    leading = report["leading"]
    if leading and leading["problem"]:
        lines.append(f"warning: the recording is not complete: {leading['problem']}")
    if leading and leading["profile"]:
        ranks = [
            rank
            for rank in report["ranks"]
            if rank["rank"] in leading["unmeasured_ranks"] and rank["gpu_busy_ns"]
        ]
        share = max((rank["gpu_unmeasured_ns"] / rank["gpu_busy_ns"] for rank in ranks), default=0)
        lines.append(
            f"warning: {leading['unmeasured_signatures']} signatures were measured on no rank, at "
            f"most {share:.1%} of a "
            f"rank's GPU time; to measure them: {leading['profile']}"
        )
    if report["guesses"]:
        lines.append(f"warning: guessed: {_counted(report['guesses'])}")
    if report["unsupported_calls"]:
        lines.append(
            f"warning: calls that are not supported and failed: {_counted(report['unsupported_calls'])}"
        )
    if report["warnings"]:
        lines.append(f"warning: {_counted(report['warnings'])}")
    if report["revised"]:
        lines.append(
            f"warning: {report['revised']} times were told to a rank and moved afterwards, because of ranks that were "
            "idle outside of CUDA calls"
        )
    if report["expired_values"]:
        lines.append(
            f"warning: {report['expired_values']} results of small collectives were read so late "
            "that their values were "
            "gone; they read as zero"
        )
    if report["bad_messages"]:
        lines.append(f"warning: {report['bad_messages']} messages made no sense to the hub")
    if report["messages"] is None:
        lines.append("warning: the hub left no result; times of communication are unknown")
    return lines


def _read_hub(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _read_stats(folder: Path) -> dict[str, RankStats]:
    statistics = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            statistics[path.name] = read_rank_stats(path)
        except (OSError, ValueError):  # a process killed while it made its stats
            continue
    return statistics


def _ranks(clients: list[dict[str, Any]], statistics: dict[str, RankStats]) -> list[dict[str, Any]]:
    """One entry per rank, its processes added up (a restarted rank has several); processes without
    a rank one each."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for number, client in enumerate(clients):
        rank = client["rank"]
        groups.setdefault((0, rank) if rank is not None and rank >= 0 else (1, number), []).append(
            client
        )
    return [
        _rank(group, [statistics[c["shm"]] for c in group if c["shm"] in statistics])
        for _, group in sorted(groups.items())
    ]


def _rank(clients: list[dict[str, Any]], statistics: list[RankStats]) -> dict[str, Any]:
    first = clients[0]
    devices = [client["device"] for client in clients if client["device"] >= 0] + [
        stats.device for stats in statistics
    ]
    rank = first["rank"]
    return {
        "rank": rank if rank is not None and rank >= 0 else None,
        "node": first["node"],
        "device": devices[0] if devices else None,
        "processes": len(clients),
        "host_cpu_ns": sum(stats.host_cpu_ns for stats in statistics) if statistics else None,
        "gpu_busy_ns": sum(sum(stats.busy_ns) for stats in statistics) if statistics else None,
        "gpu_unmeasured_ns": sum(sum(stats.busy_ns[MEASURED_SOURCES:]) for stats in statistics)
        if statistics
        else None,
        "comm_ns": sum(c["comm_ns"] for c in clients) if "comm_ns" in first else None,
        "comm_wait_ns": sum(c["comm_wait_ns"] for c in clients)
        if "comm_wait_ns" in first
        else None,
        "exposed_comm_ns": sum(c["exposed_comm_ns"] for c in clients)
        if "exposed_comm_ns" in first
        else None,
        "peak_allocated_bytes": max((stats.torch_peak_allocated for stats in statistics), default=0)
        or None,
        "peak_reserved_bytes": max((stats.torch_peak_reserved for stats in statistics), default=0)
        or None,
        "peak_driver_bytes": max((stats.peak_driver_bytes for stats in statistics), default=0)
        if statistics
        else None,
        "peak_pinned_bytes": max((stats.peak_pinned_bytes for stats in statistics), default=0)
        if statistics
        else None,
        "kernel_launches": sum(stats.kernel_launches for stats in statistics)
        if statistics
        else None,
        "comm_launches": sum(stats.comm_launches for stats in statistics) if statistics else None,
        "messages": sum(c["messages"] for c in clients) if "messages" in first else None,
    }


def _of(hub: dict[str, Any] | None, field: str) -> int | None:
    return hub[field] if hub else None


def _counted(notes: dict[str, int], most: int = 8) -> str:
    ordered = sorted(notes.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(
        text if count == 1 else f"{text} ({count} times)" for text, count in ordered[:most]
    )
    return named + (
        f", and {len(ordered) - most} more in the report" if len(ordered) > most else ""
    )


def _seconds(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
