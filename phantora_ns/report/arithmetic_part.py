"""The report's part on arithmetic: how much was multiplied, and which share of the GPU's peak that is.

Why it exists: people judge a step by how much of the hardware it uses. This is HFU, hardware FLOP
utilisation: it counts what was done, recomputed activations too. MFU needs the model's own count, which
only the user knows (`--model-flop`). Rules: both divide by the step that the summary shows
(step_part.py), so that a reader's own division gives the same; kernels that multiply and whose work is
not known are counted beside them.
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
    model_flop: float | None = None,
) -> dict[str, Any] | None:
    """`arithmetic` of the report (docs/report.md); None when no rank told where its steps end. `clients`:
    those of hub.json. `model_flop`: what the user says that the model needs for a step of all ranks."""
    done = _of_ranks(clients)
    if not done:
        return None
    busy_ns = sum(sum(stats.busy_ns) for stats in statistics)
    uncounted_ns = sum(stats.uncounted_ns for stats in statistics)
    step_ns = Fraction(done[0].time_ns, done[0].steps)
    hfu, reason = _hfu(done, step_ns, gpu)
    sums = {Precision.LABELS[at]: _of_a_step(done, at) for at in COUNTED}
    flop = {name: sum_ for name, sum_ in sorted(sums.items(), key=lambda it: -it[1]) if sum_}
    mfu, no_mfu = None, None
    if model_flop is not None:
        mfu, no_mfu = _mfu(model_flop / _count_ranks(clients), step_ns, next(iter(flop), None), gpu)
    return {
        "flop": flop,
        "hfu": hfu,
        "no_hfu": reason,
        "model_flop": model_flop,
        "mfu": mfu,
        "no_mfu": no_mfu,
        "uncounted": {
            "launches": _of_a_step(done, Precision.UNCOUNTED),
            "time_share": round(uncounted_ns / busy_ns, 6) if busy_ns else 0.0,
            "kernels": (hub or {}).get("uncounted", []),
        },
    }


def _of_ranks(clients: list[dict[str, Any]]) -> list[Done]:
    """The work of each rank whose steps are known, in order of ranks. After a restart by torchrun a rank has had
    several processes; the first one with steps counts, as in step_part.py."""
    found: dict[int, Done] = {}
    for client in clients:
        rank, done = client["rank"], done_of(client.get("steps", []))
        if done is not None and rank is not None and rank >= 0:
            found.setdefault(rank, done)
    return [found[rank] for rank in sorted(found)]


def _of_a_step(done: list[Done], at: int) -> int:
    """Of all ranks together, in the mean of their steps."""
    return round(sum(Fraction(one.flop[at], one.steps) for one in done))


def _hfu(
    done: list[Done], step_ns: Fraction, gpu: GpuModel | None
) -> tuple[float | None, str | None]:
    """The time that one step's arithmetic takes at the GPU's peak (mean of all ranks), divided by the step's time;
    or why it is not known."""
    if gpu is None:
        return None, "the cluster's description is gone"
    at_peak_ns = 0.0
    for at in COUNTED:
        flop, name = _of_a_step(done, at), Precision.LABELS[at]
        if flop and not gpu.peak_flop_per_ns.get(name):
            return None, f"the peak of {gpu.name} in {name} is not known"
        if flop:
            at_peak_ns += flop / gpu.peak_flop_per_ns[name]
    if not step_ns:
        return None, "steps take no time"
    return round(at_peak_ns / len(done) / float(step_ns), 6), None


def _count_ranks(clients: list[dict[str, Any]]) -> int:
    """The job's GPUs: a server may have more, which stay idle."""
    return len({one["rank"] for one in clients if one["rank"] is not None and one["rank"] >= 0})


def _mfu(
    flop_of_rank: float, step_ns: Fraction, precision: str | None, gpu: GpuModel | None
) -> tuple[float | None, str | None]:
    """Time that the model's FLOP of a step and a rank take at the peak of `precision`, over the step's; or why
    it is not known."""
    if gpu is None:
        return None, "the cluster's description is gone"
    if precision is None:
        return None, "no products of known size, so it is not known in which precision they are"
    peak = gpu.peak_flop_per_ns.get(precision)
    if not peak:
        return None, f"the peak of {gpu.name} in {precision} is not known"
    if not step_ns:
        return None, "steps take no time"
    return round(flop_of_rank / peak / float(step_ns), 6), None


def arithmetic_text(part: dict[str, Any] | None) -> str | None:
    """The summary's line: `HFU 41.2%: 512 TFLOP a step in bf16`, with `--model-flop` `HFU 41.2%, MFU 39.8%: ...`;
    None without any arithmetic."""
    if part is None:
        return None
    model_flop = part.get("model_flop")  # missing in reports of earlier releases
    if not (part["flop"] or part["uncounted"]["launches"] or model_flop is not None):
        return None
    work = ", ".join(
        f"{digits(flop / 1e12, 4)} TFLOP a step in {name}" for name, flop in part["flop"].items()
    )
    head = f"HFU {part['hfu']:.1%}" if part["hfu"] is not None else f"HFU unknown, {part['no_hfu']}"
    if model_flop is not None:
        known = part["mfu"] is not None
        head += f", MFU {part['mfu']:.1%}" if known else f", MFU unknown, {part['no_mfu']}"
    text = f"{head}: {work or 'no products of known size'}"
    if model_flop is not None:
        text += f"; {digits(model_flop / 1e12, 4)} TFLOP of the model (--model-flop)"
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
