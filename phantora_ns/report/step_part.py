"""The report's part on training steps: how long one takes, and how sure that is.

Why it exists: the report has the run's sums, the hub has the marks of steps, and the law of the band
(band.py) wants a step. This puts them together. What is not known is null, with a reason.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from phantora_ns.model.gpu import GpuModel
from phantora_ns.report.band import Evidence, band_of
from phantora_ns.report.host_part import unknown_share
from phantora_ns.report.steps import Steps, steps_of

MEASURED = "measured"  # --host-time
SHARES = ("fitted", "waiting", "beside", "spread", "unknown", "nodes", "told")
"""What the band was made of besides the step's times and the kernels'."""


def step_part(
    gpu: GpuModel | None,
    report: dict[str, Any],
    clients: list[dict[str, Any]],
    work: dict[str, Any] | None,
) -> dict[str, Any] | None:
    """`step` of the report (docs/report.md); None when no rank told where its steps end. `gpu`: None when the
    cluster's description is gone. `report`: the rest of it. `clients`: those of hub.json. `work`: what the
    user says that a step does, `amount` and `unit`."""
    steps = _first(clients)
    if steps is None:
        return None
    return _timed(steps, gpu, report) | {"work": _work(work, steps, report["world_size"])}


def _work(work: dict[str, Any] | None, steps: Steps, gpus: int) -> dict[str, Any] | None:
    if work is None:
        return None
    per_s = work["amount"] * 1e9 / steps.mean_ns
    return work | {"per_s": round(per_s, 3), "per_gpu_s": round(per_s / gpus, 3)}


def _timed(steps: Steps, gpu: GpuModel | None, report: dict[str, Any]) -> dict[str, Any]:
    reason = _why_none(gpu, report)
    if gpu is None or reason:
        return asdict(steps) | {"band": None, "evidence": None, "no_band": reason}
    evidence = _evidence(steps, gpu, report)
    shares = {name: value for name, value in asdict(evidence).items() if name in SHARES}
    return asdict(steps) | {
        "band": band_of(evidence).as_json(),
        "evidence": shares,
        "no_band": None,
    }


def _first(clients: list[dict[str, Any]]) -> Steps | None:
    """The steps of the lowest rank that has any."""
    ranked = (client for client in clients if client["rank"] is not None and client["rank"] >= 0)
    for client in sorted(ranked, key=lambda client: client["rank"]):
        found = steps_of(client["rank"], client.get("steps", []))
        if found is not None:
            return found
    return None


def _why_none(gpu: GpuModel | None, report: dict[str, Any]) -> str | None:
    """Why there is no band, None if there is one."""
    if gpu is None:
        return "the cluster's description is gone"
    if not gpu.power.known:
        return f"nothing was measured on {gpu.name}"
    if not report["kernel_time_ns"]:
        return "no kernel ran"
    return None


def _evidence(steps: Steps, gpu: GpuModel, report: dict[str, Any]) -> Evidence:
    ranks = [
        rank for rank in report["ranks"] if rank["gpu_busy_ns"] and rank["comm_ns"] is not None
    ]
    busy_ns = sum(rank["gpu_busy_ns"] for rank in ranks)
    comm_ns = sum(rank["comm_ns"] for rank in ranks)
    waiting = sum(rank["comm_wait_ns"] for rank in ranks) / comm_ns if comm_ns else 0.0
    # Communication has no sums of its own by step. Its share of the GPU's time is that of the run.
    moving_ns = comm_ns * (1 - waiting) / busy_ns * steps.busy_ns if busy_ns else 0.0
    beside = max(0.0, moving_ns - steps.exposed_ns * (1 - waiting)) / max(1, steps.mean_ns)
    host = report["host_time"]
    return Evidence(
        step_ns=steps.mean_ns,
        busy_ns=steps.busy_ns,
        exposed_ns=steps.exposed_ns,
        host_ns=steps.host_ns,
        work_ns=report["kernel_time_ns"],
        fitted=bool(report["databases"]),
        waiting=round(min(1.0, waiting), 6),
        beside=round(min(1.0, beside), 6),
        spread=gpu.power.spread,
        unknown=1.0 if host["mode"] == MEASURED else round(unknown_share(host), 6),
        nodes=report["nodes"],
        told=host["told"],
    )
