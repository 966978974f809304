"""RUN_DIR/hub.json: the hub's knowledge about the run when it ends.

Why it exists: after the run, report/run_report.py makes the report from this file and the ranks'
statistics. The hub contributes what only it saw: times of communication, messages, diagnostics.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from phantora_ns.hub.registry import Absent, Client
from phantora_ns.hub.server import Hub

SCHEMA = 1


def result(hub: Hub) -> dict[str, Any]:
    """The content of hub.json; times in nanoseconds, fields in docs/report.md."""
    hub.graph.run()
    if hub.folding is not None:
        said = hub.folding.finish()
        if said is not None:
            hub.diagnostics.error(said)
    diagnostics = hub.diagnostics
    ranks: list[Client | Absent] = []
    for client in hub.clients.everyone:
        ranks += (client, *client.absent)
    clients = [_client(hub, rank) for rank in ranks]
    return {
        "schema": SCHEMA,
        "simulated_ns": max((latest_ns for _, latest_ns in clients), default=0),
        "rollbacks": hub.graph.retimed,
        "revised": hub.graph.revised,
        "late": hub.graph.late,
        "answers_past_idle": hub.releases.past_idle,
        "answers_past_sleepers": hub.releases.past_sleepers,
        "messages": diagnostics.messages,
        "bad_messages": diagnostics.bad_messages,
        "expired_values": hub.communicators.expired,
        "nccl": _nccl(hub),
        "internal_errors": diagnostics.internal_errors,
        "hub_cpu_ns": time.process_time_ns(),
        "errors": diagnostics.errors,
        "killed": diagnostics.killed,
        "unsupported_calls": diagnostics.of("unsupported"),
        "warnings": diagnostics.of("warning"),
        "guesses": _guesses(hub),
        "scaled": _scaled(hub),
        "uncounted": sorted(hub.lookups.uncounted),
        "other_versions": _other_versions(hub),
        "leading": _leading(hub),
        "folding": _folding(hub),
        "clients": [entry for entry, _ in clients],
    }


def _client(hub: Hub, rank: Client | Absent) -> tuple[dict[str, Any], int]:
    """The entry of a client, or of a rank that does not run, and the latest time of any of its
    vertices."""
    totals = hub.graph.totals(rank.number)
    latest_ns = totals.latest_ns
    if isinstance(rank, Client):
        latest_ns = max(latest_ns, rank.end_ns())
    client = rank.of if isinstance(rank, Absent) else rank
    exposed_ns = dict(sorted(totals.exposed_ns.items()))
    return {
        "client": rank.number,
        "rank": rank.rank,
        "representative": None if rank is client else client.rank,
        "node": rank.node,
        "device": client.device,
        "shm": client.shm,
        "comm_ns": totals.comm_ns,
        "comm_wait_ns": totals.comm_wait_ns,
        "exposed_comm_ns": sum(exposed_ns.values()),
        "exposed_comm_ns_by_device": {str(device): ns for device, ns in exposed_ns.items()},
        "messages": client.messages if rank is client else 0,
        "steps": [list(mark) for mark in hub.graph.marks(rank.number)],
    }, latest_ns


def _folding(hub: Hub) -> dict[str, Any] | None:
    """How the job was folded; None when every rank ran."""
    if hub.folding is None:
        return None
    return hub.folding.describe() | {"answers_past_absent": hub.releases.past_absent}


def _other_versions(hub: Hub) -> list[str] | None:
    """Library versions of records that answered, each with what differs from the job's; None when
    those are not known."""
    times = hub.lookups.models.times
    if times.versions is None:
        return None
    return sorted(other.words(times.versions) for other in times.other_versions)


def _nccl(hub: Hub) -> dict[str, str | None] | None:
    """The job's release of NCCL and the one whose choices were made; None without communicators."""
    version, choices = hub.nccl.version, hub.nccl.choices
    if choices is None:
        return None
    return {"version": str(version) if version else None, "choices": str(choices)}


def _guesses(hub: Hub) -> dict[str, int]:
    """The guesses of ranks, how many signatures took another GPU model's measurements because this one has
    none, and how many those of a kernel with another name."""
    times, found = hub.lookups.models.times, hub.diagnostics.of("guess")
    if times.scaled and times.unmeasured:
        found[f"kernel time scaled from {times.scaled_from}"] = times.scaled
    if times.renamed:
        found["kernel time recorded under the name of another PyTorch release"] = times.renamed
    return found


def _scaled(hub: Hub) -> dict[str, Any] | None:
    """How many signatures took another GPU model's measurements."""
    times = hub.lookups.models.times
    return {"from": times.scaled_from, "signatures": times.scaled} if times.scaled else None


def _leading(hub: Hub) -> dict[str, Any] | None:
    """Which ranks led, what was measured, and what was estimated after waiting; None in a run
    without a leader."""
    awaiting, recorder = hub.lookups.awaiting, hub.recorder
    if awaiting.leader is None:
        return None
    measured = hub.lookups.models.times.measured
    unknown = [ranks for signature, ranks in awaiting.unknown.values() if not measured(*signature)]
    estimated = sorted(awaiting.estimated.items())
    return {
        "leader": awaiting.leader,
        "led": sorted(awaiting.led),
        "awaited": awaiting.awaited,
        "estimated_after_waiting": {str(rank): count for rank, count in estimated},
        "unmeasured_signatures": len(unknown),
        "unmeasured_ranks": sorted(set().union(*unknown)),
        "host_recorded": recorder.host_recorded if recorder else False,
        "measured_signatures": recorder.signatures if recorder else 0,
        "samples": recorder.samples if recorder else 0,
        "problem": recorder.problem if recorder else None,
    }


def write_result(path: Path, hub: Hub) -> None:
    """Writes hub.json completely or not at all, and the last times for the traces. Raises OSError."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result(hub), indent=1) + "\n")
    os.replace(partial, path)
    if hub.traces is not None:
        hub.traces.finish()
