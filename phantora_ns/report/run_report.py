"""The report of one run: JSON for programs, a few lines for a person.

Why it exists: what a run says about itself is put together once, after it has ended, from the hub's
part (hub.json) and the ranks' pages. Either may be missing when something was killed; what is then
unknown is null, never zero. The fields are documented in docs/report.md.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from phantora_ns.report.host_part import host_lines, host_part
from phantora_ns.report.rank_stats import SOURCES, RankPage, read_page

SCHEMA = 1
MEASURED_SOURCES = 2
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
    page, only leaves gaps."""
    run_dir = Path(run_dir)
    run = json.loads((run_dir / "run.json").read_text())
    hub = _read_hub(run_dir / "hub.json")
    pages = _read_pages(run_dir / "ranks")
    clients = (
        hub["clients"]
        if hub
        else [{"rank": None, "node": None, "device": -1, "shm": name} for name in sorted(pages)]
    )
    ranks = _ranks(clients, pages)
    busy = [sum(page.busy_ns[source] for page in pages.values()) for source in range(len(SOURCES))]
    clocks = [page.clock_ns for page in pages.values()]
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
            name: round(ns / sum(busy), 6) for name, ns in zip(SOURCES, busy, strict=True) if ns
        },
        "host_time": host_part(run, pages.values()),
        "values": {
            "policy": run.get("values"),
            "unknown_reads": sum(page.unknown_reads for page in pages.values()),
            "chosen": sum(page.chosen_values for page in pages.values()),
            "replayed": sum(page.replayed_values for page in pages.values()),
            "repeated": sum(page.repeated_values for page in pages.values()),
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
            f"warning: {leading['unmeasured_signatures']} signatures were measured on no rank, at most {share:.1%} of a "
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
            f"warning: {report['expired_values']} results of small collectives were read so late that their values were "
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


def _read_pages(folder: Path) -> dict[str, RankPage]:
    pages = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            pages[path.name] = read_page(path)
        except (OSError, ValueError):  # a process killed while it made its page
            continue
    return pages


def _ranks(clients: list[dict[str, Any]], pages: dict[str, RankPage]) -> list[dict[str, Any]]:
    """One entry per rank, its processes added up (a restarted rank has several); processes without
    a rank one each."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for number, client in enumerate(clients):
        rank = client["rank"]
        groups.setdefault((0, rank) if rank is not None and rank >= 0 else (1, number), []).append(
            client
        )
    return [
        _rank(group, [pages[c["shm"]] for c in group if c["shm"] in pages])
        for _, group in sorted(groups.items())
    ]


def _rank(clients: list[dict[str, Any]], pages: list[RankPage]) -> dict[str, Any]:
    first = clients[0]
    devices = [client["device"] for client in clients if client["device"] >= 0] + [
        page.device for page in pages
    ]
    rank = first["rank"]
    return {
        "rank": rank if rank is not None and rank >= 0 else None,
        "node": first["node"],
        "device": devices[0] if devices else None,
        "processes": len(clients),
        "host_cpu_ns": sum(page.host_cpu_ns for page in pages) if pages else None,
        "gpu_busy_ns": sum(sum(page.busy_ns) for page in pages) if pages else None,
        "gpu_unmeasured_ns": sum(sum(page.busy_ns[MEASURED_SOURCES:]) for page in pages)
        if pages
        else None,
        "comm_ns": sum(c["comm_ns"] for c in clients) if "comm_ns" in first else None,
        "comm_wait_ns": sum(c["comm_wait_ns"] for c in clients)
        if "comm_wait_ns" in first
        else None,
        "exposed_comm_ns": sum(c["exposed_comm_ns"] for c in clients)
        if "exposed_comm_ns" in first
        else None,
        "peak_allocated_bytes": max((page.torch_peak_allocated for page in pages), default=0)
        or None,
        "peak_reserved_bytes": max((page.torch_peak_reserved for page in pages), default=0) or None,
        "peak_driver_bytes": max((page.peak_driver_bytes for page in pages), default=0)
        if pages
        else None,
        "peak_pinned_bytes": max((page.peak_pinned_bytes for page in pages), default=0)
        if pages
        else None,
        "kernel_launches": sum(page.kernel_launches for page in pages) if pages else None,
        "comm_launches": sum(page.comm_launches for page in pages) if pages else None,
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
