"""The report of one run, as JSON data.

Why it exists: what a run says about itself is put together once, after it has ended, from the hub's
part (hub.json) and the rank statistics. Either may be missing when something was killed. What is
then unknown is null, never zero. docs/report.md describes the fields; summary.py makes the lines.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phantora_ns.config import ConfigError
from phantora_ns.config.description import read_cluster
from phantora_ns.model.gpu import GpuModel
from phantora_ns.protocol import RANK_STATS_FILE, KernelClass, RankStats, Source
from phantora_ns.report.arithmetic_part import arithmetic_part
from phantora_ns.report.fold_part import fold_part
from phantora_ns.report.held_part import held_part
from phantora_ns.report.host_part import host_part
from phantora_ns.report.rank_stats import read_rank_stats
from phantora_ns.report.start_part import start_part
from phantora_ns.report.step_part import step_part

SCHEMA = 2
"""Of the report (docs/report.md). Readers refuse another (`check_schema`)."""
MEASURED_SOURCES = Source.LAW
"""So many of the first sources are measurements (the signature's own, or those of the same launch);
the others are models."""
VALUES = "values"  # launch/record/leaders.py


class SchemaError(ValueError):
    """A report that another release wrote; the text is WHAT; WHAT TO DO."""


def build_report(
    run_dir: Path,
    *,
    exit_code: int,
    failed_by: str | None,
    wall_s: float,
    ended_by: str | None = None,
) -> dict[str, Any]:
    """The report as JSON data. `failed_by`: None, "job", "launcher" or "hub".
    `ended_by`: the signal by which the user ended the run.

    Raises OSError, ValueError, KeyError when run.json is missing or damaged, and OSError when another
    file is there but cannot be read. Without hub.json, or the statistics of a rank, what they would
    say is null.
    """
    run_dir = Path(run_dir)
    run = json.loads((run_dir / "run.json").read_text())
    hub = _read_hub(run_dir / "hub.json")
    statistics = _read_stats(run_dir / RANK_STATS_FILE)
    every = list(statistics.values())
    gpu = _gpu_of(run_dir)
    if hub:
        clients = hub["clients"]
    else:
        unknown = {"rank": None, "node": None, "device": -1}
        clients = [unknown | {"shm": name} for name in sorted(statistics)]
    # a rank that did not run counts as much as its representative
    stood_for = [one["shm"] for one in clients if one.get("representative") is not None]
    every += [statistics[name] for name in stood_for if name in statistics]
    latest_ns = max((stats.clock_ns for stats in every), default=0)
    warnings = hub["warnings"] if hub else {}
    report = {
        "schema": SCHEMA,
        "world_size": run["nodes"] * run["gpus_per_node"],
        "nodes": run["nodes"],
        "gpus_per_node": run["gpus_per_node"],
        "cluster": run["cluster"],
        "gpu": _gpu(gpu),
        "software": run.get("software"),
        "ranks": _ranks(clients, statistics),
        "memory_held": held_part(run_dir, clients),
        "simulated_ns": hub["simulated_ns"] if hub else latest_ns,
        "wall_s": round(wall_s, 3),
        "rollbacks": _of(hub, "rollbacks"),
        "revised": _of(hub, "revised"),
        "answers_past_idle": _of(hub, "answers_past_idle"),
        "answers_past_sleepers": _of(hub, "answers_past_sleepers"),
        "messages": _of(hub, "messages"),
        "bad_messages": _of(hub, "bad_messages"),
        "expired_values": _of(hub, "expired_values"),
        "hub_cpu_ns": _of(hub, "hub_cpu_ns"),
        "nccl": hub.get("nccl") if hub else None,
        "kernel_time_share": _kernel_time_share(every),
        "kernel_time_ns": _kernel_time_ns(every),
        "recorded_elsewhere": _recorded_elsewhere(hub, every),
        "scaled": hub["scaled"] if hub else None,
        "gpu_clock": _gpu_clock(every),
        "starts": start_part(run_dir),
        "folding": fold_part(run_dir, run, hub),
        "host_time": host_part(run_dir, run, every),
        "values": _values(run, every),
        "databases": run.get("databases", []),
        "leading": _leading(run, hub),
        "unsupported_calls": hub["unsupported_calls"] if hub else {},
        "warnings": warnings | dict.fromkeys(run.get("warnings", []), 1),
        "guesses": hub["guesses"] if hub else {},
        "errors": hub["errors"] if hub else [],
        "killed": hub["killed"] if hub else [],
        "exit_code": exit_code,
        "failed_by": failed_by,
        "ended_by": ended_by,
    }
    report["out_of_memory"] = _out_of_memory(report)
    report["arithmetic"] = arithmetic_part(gpu, hub, clients, every, run.get("model_flop"))
    return report | {"step": step_part(gpu, report, clients, run.get("work"))}


def check_schema(report: Mapping[str, Any]) -> None:
    """Raises SchemaError for a report that another release wrote, whose fields mean something else."""
    found = report["schema"]
    if found != SCHEMA:
        raise SchemaError(
            f"a report of schema {found!r:.80}, and this release reads {SCHEMA}; run the job again"
        )


def _gpu_of(run_dir: Path) -> GpuModel | None:
    """The run's GPU; None when the cluster's description is gone. Raises OSError when it cannot be
    read."""
    try:
        return read_cluster(run_dir).gpu_model
    except (FileNotFoundError, ValueError, KeyError, ConfigError):
        return None


def _gpu(model: GpuModel | None) -> dict[str, Any] | None:
    if model is None:
        return None
    return {
        "model": model.model,
        "name": model.name,
        "memory_bytes": model.memory_bytes,
    }


def _out_of_memory(report: dict[str, Any]) -> bool:
    """Whether the job failed when a GPU had no room: the last request of a rank was refused, and
    nothing as large was granted afterwards."""
    refused = any(rank["refused_bytes"] for rank in report["ranks"])
    return bool(report["exit_code"] and report["failed_by"] == "job" and refused)


def _kernel_time_share(statistics: list[RankStats]) -> dict[str, float]:
    """The share of GPU time from each source of kernel times; sources without any are left out."""
    sources = range(len(Source.LABELS))
    busy = [sum(stats.busy_ns[source] for stats in statistics) for source in sources]
    return {
        name: round(ns / sum(busy), 6) for name, ns in zip(Source.LABELS, busy, strict=True) if ns
    }


def _kernel_time_ns(statistics: list[RankStats]) -> dict[str, dict[str, int]]:
    """GPU time by class of kernel and source, all ranks together; what is zero is left out."""
    found: dict[str, dict[str, int]] = {}
    for at in range(len(KernelClass.LABELS) * len(Source.LABELS)):
        ns = sum(stats.work_ns[at] for stats in statistics)
        if ns:
            name, source = divmod(at, len(Source.LABELS))
            found.setdefault(KernelClass.LABELS[name], {})[Source.LABELS[source]] = ns
    return found


def _recorded_elsewhere(
    hub: dict[str, Any] | None, statistics: list[RankStats]
) -> dict[str, Any] | None:
    """The share of GPU time from records made under other library versions than the job's."""
    versions = hub.get("other_versions") if hub else None
    if versions is None:
        return None
    busy = sum(sum(stats.busy_ns) for stats in statistics)
    elsewhere = sum(stats.elsewhere_ns for stats in statistics)
    return {"time_share": round(elsewhere / busy, 6) if busy else 0.0, "versions": versions}


def _gpu_clock(statistics: list[RankStats]) -> dict[str, float] | None:
    """The mean clock while kernels ran, and the share of their time in which the power limit held it
    down; None where nothing is known of the GPU's power."""
    busy = sum(sum(stats.busy_ns) for stats in statistics)
    cycles = sum(stats.cycles for stats in statistics)
    if not busy or not cycles:
        return None
    held = sum(stats.held_ns for stats in statistics)
    return {"mean_mhz": round(1000 * cycles / busy, 1), "held_share": round(held / busy, 6)}


def _values(run: dict[str, Any], statistics: list[RankStats]) -> dict[str, Any]:
    return {
        "policy": run.get("values"),
        "unknown_reads": sum(stats.unknown_reads for stats in statistics),
        "chosen": sum(stats.chosen_values for stats in statistics),
        "replayed": sum(stats.replayed_values for stats in statistics),
        "repeated": sum(stats.repeated_values for stats in statistics),
        "hollow_bytes": max((stats.peak_hollow_bytes for stats in statistics), default=0),
    }


def _leading(run: dict[str, Any], hub: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the hub says about the leader, with what it recorded and how to measure the rest."""
    leading = hub.get("leading") if hub else None
    if not leading:
        return leading
    records = run.get("records")
    profile = None if records == VALUES else _profile_command(run, leading["unmeasured_ranks"])
    return leading | {"records": records, "profile": profile}


def _profile_command(run: dict[str, Any], ranks: list[int]) -> str | None:
    """The command that measures what is not measured yet; None when everything is, or when no rank
    can be named."""
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


def _read_hub(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):  # the hub was killed
        return None


def _read_stats(folder: Path) -> dict[str, RankStats]:
    statistics = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            statistics[path.name] = read_rank_stats(path)
        except ValueError:  # a process killed while it made its stats
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
        "representative": first.get("representative"),
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
        "refused_bytes": max((stats.refused_bytes for stats in statistics), default=0) or None,
        "refused_free_bytes": max(
            (stats.refused_free_bytes for stats in statistics if stats.refused_bytes), default=None
        ),
        "refused_step": max(
            (stats.refused_step for stats in statistics if stats.refused_bytes), default=None
        ),
        "steps": max((stats.steps for stats in statistics), default=0) if statistics else None,
        "kernel_launches": sum(stats.kernel_launches for stats in statistics)
        if statistics
        else None,
        "comm_launches": sum(stats.comm_launches for stats in statistics) if statistics else None,
        "messages": sum(c["messages"] for c in clients) if "messages" in first else None,
    }


def _of(hub: dict[str, Any] | None, field: str) -> int | None:
    return hub[field] if hub else None
