"""RUN_DIR/hub.json: what the hub knows about the run when it ends.

Why it exists: the report is put together after the run (report/run_report.py) from this file and
the ranks' pages; the hub adds what only it saw: times of communication, messages, what was
unsupported.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from phantora_ns.hub.server import Hub

SCHEMA = 1


def result(hub: Hub) -> dict:
    """The content of hub.json; times in nanoseconds, fields in docs/report.md."""
    hub.graph.run()
    clients = []
    simulated_ns = 0
    for client in hub.everyone:
        totals = hub.graph.totals(client.number)
        simulated_ns = max(simulated_ns, totals.latest_ns, client.clock_ns)
        if not client.gone:
            simulated_ns = max(simulated_ns, client.bound_ns())
        clients.append({
            "client": client.number, "rank": client.rank, "node": client.node, "device": client.device, "shm": client.shm,
            "comm_ns": totals.comm_ns, "comm_wait_ns": totals.comm_wait_ns, "exposed_comm_ns": sum(totals.exposed_ns.values()),
            "exposed_comm_ns_by_device": {str(device): ns for device, ns in sorted(totals.exposed_ns.items())},
            "messages": client.messages,
        })  # fmt: skip
    return {
        "schema": SCHEMA, "simulated_ns": simulated_ns, "rollbacks": hub.graph.retimed, "revised": hub.graph.revised,
        "late": hub.graph.late, "messages": hub.messages, "bad_messages": hub.bad_messages,
        "expired_values": hub.communicators.expired,
        "internal_errors": hub.internal_errors, "hub_cpu_ns": time.process_time_ns(), "errors": hub.errors,
        "unsupported_calls": dict(sorted(hub.notes["unsupported"].items())),
        "warnings": dict(sorted(hub.notes["warning"].items())), "guesses": _guesses(hub),
        "leading": _leading(hub), "clients": clients,
    }  # fmt: skip


def _guesses(hub: Hub) -> dict[str, int]:
    """What ranks guessed, and how many signatures another GPU's measurements stand for."""
    times, found = hub.kernel_times, dict(sorted(hub.notes["guess"].items()))
    return found | (
        {f"kernel time by data sheet ratio from {times.scaled_from}": times.scaled}
        if times.scaled
        else {}
    )


def _leading(hub: Hub) -> dict | None:
    """Who led, what was measured, and what had to be estimated after all; None in a run without a
    leader."""
    awaiting, recorder = hub.awaiting, hub.recorder
    if awaiting.leader is None:
        return None
    unknown = [
        ranks
        for signature, ranks in awaiting.unknown.values()
        if not hub.kernel_times.measured(*signature)
    ]
    return {
        "leader": awaiting.leader, "led": sorted(awaiting.led), "awaited": awaiting.awaited,
        "estimated_after_waiting": {str(rank): count for rank, count in sorted(awaiting.estimated.items())},
        "unmeasured_signatures": len(unknown), "unmeasured_ranks": sorted(set().union(*unknown)),
        "host_recorded": recorder.host_recorded if recorder else False,
        "measured_signatures": recorder.signatures if recorder else 0, "samples": recorder.samples if recorder else 0,
        "problem": recorder.problem if recorder else None,
    }  # fmt: skip


def write_result(path: Path, hub: Hub) -> None:
    """Writes hub.json whole or not at all, and the last times for the traces. Raises OSError."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result(hub), indent=1) + "\n")
    os.replace(partial, path)
    if hub.traces is not None:
        hub.traces.finish()
