"""The report's part on arithmetic: how much was multiplied, and which share of the GPU's peak that is.

Why it exists: people judge a step by how much of the hardware it uses. This is HFU, hardware FLOP
utilisation: it counts what was done, recomputed activations too. MFU needs the model's own count, which
only the job knows. Rule: kernels that multiply and whose work is not known are counted beside it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from phantora_ns.model.gpu import GpuModel
from phantora_ns.protocol import Precision, RankStats
from phantora_ns.report.digits import digits
from phantora_ns.report.steps import Done, done_of

COUNTED = [
    at for at in range(len(Precision.LABELS)) if at not in (Precision.NONE, Precision.UNCOUNTED)
]


def arithmetic_part(
    gpu: GpuModel | None,
    hub: dict[str, Any] | None,
    clients: list[dict[str, Any]],
    statistics: list[RankStats],
) -> dict[str, Any] | None:
    """`arithmetic` of the report (docs/report.md); None when no rank told where its steps end. `clients`:
    those of hub.json."""
    done = _of_ranks(clients)
    if not done:
        return None
    busy_ns = sum(sum(stats.busy_ns) for stats in statistics)
    uncounted_ns = sum(stats.uncounted_ns for stats in statistics)
    hfu, reason = _hfu(done, gpu)
    flop = {Precision.LABELS[at]: _of_a_step(done, at) for at in COUNTED}
    return {
        "flop": {name: sum_ for name, sum_ in sorted(flop.items(), key=lambda it: -it[1]) if sum_},
        "hfu": hfu,
        "no_hfu": reason,
        "uncounted": {
            "launches": _of_a_step(done, Precision.UNCOUNTED),
            "time_share": round(uncounted_ns / busy_ns, 6) if busy_ns else 0.0,
            "kernels": (hub or {}).get("uncounted", []),
        },
    }


def _of_ranks(clients: list[dict[str, Any]]) -> list[Done]:
    """Of each rank that told its steps. Where torchrun has started a job again, a rank is several processes;
    the first one with steps counts, as in step_part.py."""
    found: dict[int, Done] = {}
    for client in clients:
        rank, done = client["rank"], done_of(client.get("steps", []))
        if done is not None and rank is not None and rank >= 0:
            found.setdefault(rank, done)
    return list(found.values())


def _of_a_step(done: list[Done], at: int) -> int:
    """Of all ranks together, in the mean of their steps."""
    return round(sum(Fraction(one.flop[at], one.steps) for one in done))


def _hfu(done: list[Done], gpu: GpuModel | None) -> tuple[float | None, str | None]:
    """Time that the arithmetic takes at the peak, over the time that it took; or why it is not known."""
    if gpu is None:
        return None, "the cluster's description is gone"
    at_peak_ns = 0.0
    for at in COUNTED:
        flop, name = sum(one.flop[at] for one in done), Precision.LABELS[at]
        if flop and not gpu.peak_flop_per_ns.get(name):
            return None, f"the peak of {gpu.name} in {name} is not known"
        if flop:
            at_peak_ns += flop / gpu.peak_flop_per_ns[name]
    time_ns = sum(one.time_ns for one in done)
    return (round(at_peak_ns / time_ns, 6), None) if time_ns else (None, "steps take no time")


def arithmetic_text(part: dict[str, Any] | None) -> str | None:
    """The summary's line: `HFU 41.2%: 512 TFLOP a step in bf16`; None without any arithmetic."""
    if part is None or not (part["flop"] or part["uncounted"]["launches"]):
        return None
    work = ", ".join(
        f"{digits(flop / 1e12, 4)} TFLOP a step in {name}" for name, flop in part["flop"].items()
    )
    head = f"HFU {part['hfu']:.1%}" if part["hfu"] is not None else f"HFU unknown, {part['no_hfu']}"
    text = f"{head}: {work or 'no products of known size'}"
    uncounted = part["uncounted"]
    if uncounted["launches"]:
        text += (
            f"; not counted: {uncounted['launches']} launches a step that multiply, or may, "
            f"{uncounted['time_share']:.1%} of GPU time ({_listed(uncounted['kernels'])})"
        )
    return text


def _listed(names: list[str], most: int = 3) -> str:
    more = f", and {len(names) - most} more in the report" if len(names) > most else ""
    return ", ".join(names[:most]) + more
