"""`phantora-ns trace diff REAL SIM`: which kernels, which overlap and which idle time make one step
longer than the other.

Why it exists: "6 % too fast" does not say what to fix. Here every nanosecond of both steps belongs to
one kernel, one exposed collective or one kind of idle time (breakdown.py). So the rows' differences
add up to the difference of the steps exactly. Pure functions over two traces; diff_text.py formats
the result for a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from phantora_ns.trace.activity_families import short
from phantora_ns.trace.breakdown import Breakdown, own
from phantora_ns.trace.kineto import Step, Trace, TraceError
from phantora_ns.trace.match import Pair, Unit, match, rounds_used, units

SCHEMA = 1
GROUPINGS = ("operator", "kernel", "family")
IDLE = (
    ("idle: host behind", "idle_host_ns"),
    ("idle: work queued", "idle_queued_ns"),
    ("idle: launch not in trace", "idle_unknown_ns"),
)


@dataclass
class Side:
    """One trace's part in a row: launches (library calls counted once), summed duration, and the
    owned part of the steps."""

    count: int = 0
    gpu_ns: int = 0
    owned_ns: int = 0

    def add(self, unit: Unit) -> None:
        self.count += 1
        self.gpu_ns += unit.gpu_ns
        self.owned_ns += unit.owned_ns

    @property
    def mean_ns(self) -> float | None:
        return self.gpu_ns / self.count if self.count else None


@dataclass
class Row:
    """One group of work on both sides. `unmatched`: work without a counterpart on the other side."""

    label: str
    kind: str  # "compute", "communication" or "idle"
    unmatched: bool = False
    real: Side = field(default_factory=Side)
    simulated: Side = field(default_factory=Side)
    bus_bytes: float | None = None

    @property
    def contribution_ns(self) -> int:
        """What this row adds to simulated minus real step time."""
        return self.simulated.owned_ns - self.real.owned_ns


@dataclass
class Diff:
    """The result. Sums are over all paired steps; `rows` add up to simulated.step_ns -
    real.step_ns."""

    real_path: str
    simulated_path: str
    steps: list[tuple[Step, Step]]
    left_out: tuple[int, int]
    by: str
    real: Breakdown
    simulated: Breakdown
    rows: list[Row]
    paired_by: dict[str, int]

    @property
    def difference_ns(self) -> int:
        return self.simulated.step_ns - self.real.step_ns


def pair_steps(
    real: Sequence[Step], simulated: Sequence[Step]
) -> tuple[list[tuple[Step, Step]], tuple[int, int]]:
    """Pairs steps of the same number if there are any, else in order. Also returns how many steps of
    each side have no partner."""
    numbers = {step.number: step for step in simulated if step.number is not None}
    pairs = [(step, numbers[step.number]) for step in real if step.number in numbers]
    if not pairs:
        pairs = list(zip(real, simulated, strict=False))
    return pairs, (len(real) - len(pairs), len(simulated) - len(pairs))


def _label(pair: Pair, by: str) -> str:
    first = pair.real or pair.simulated
    if first.collective is not None:
        size = first.collective.size_bytes
        return (
            first.collective.name
            + ("" if size is None else f" {size:,} B")
            + (f" x{first.collective.members}" if first.collective.members else "")
        )
    if by == "family":
        return first.family
    if by == "operator":
        return first.operator or f"(no operator) {first.family}"
    names = list(
        dict.fromkeys(short(unit.name) for unit in (pair.real, pair.simulated) if unit is not None)
    )
    return " | ".join(names) + (f"  in {first.operator}" if first.operator else "")


def diff(real: Trace, simulated: Trace, by: str = "kernel") -> Diff:
    """Compares two traces step by step, grouped by "operator", "kernel" or "family". O(n log n).

    Raises ValueError for another grouping, TraceError when a step has no length.
    """
    if by not in GROUPINGS:
        raise ValueError(f"{by!r} is not one of {', '.join(GROUPINGS)}")
    steps, left_out = pair_steps(real.steps, simulated.steps)
    totals = (Breakdown(), Breakdown())
    pairs: list[Pair] = []
    for step in steps:
        owned = [
            own(trace.activities, part) for trace, part in zip((real, simulated), step, strict=True)
        ]
        for total, part in zip(totals, owned, strict=True):
            total.add(part.parts)
        pairs += match(units(owned[0]), units(owned[1]))
    for trace, total in zip((real, simulated), totals, strict=True):
        if total.step_ns <= 0:
            raise TraceError(f"{trace.path}: its steps take no time")
    rows = _rows(pairs, lambda pair: _label(pair, by)) + _idle_rows(*totals)
    rows.sort(
        key=lambda row: (-abs(row.contribution_ns), -row.real.gpu_ns, row.label, row.unmatched)
    )
    return Diff(real.path, simulated.path, steps, left_out, by, *totals, rows, rounds_used(pairs))


def _rows(pairs: Sequence[Pair], label: Callable[[Pair], str]) -> list[Row]:
    rows: dict[tuple[str, str, bool], Row] = {}
    for pair in pairs:
        first = pair.real or pair.simulated
        kind = "communication" if first.collective is not None else "compute"
        key = (label(pair), kind, not pair.by)
        row = rows.setdefault(key, Row(*key))
        if first.collective is not None:
            row.bus_bytes = first.collective.bus_bytes()
        if pair.real is not None:
            row.real.add(pair.real)
        if pair.simulated is not None:
            row.simulated.add(pair.simulated)
    return list(rows.values())


def _idle_rows(real: Breakdown, simulated: Breakdown) -> list[Row]:
    return [
        Row(
            label,
            "idle",
            False,
            Side(0, 0, getattr(real, name)),
            Side(0, 0, getattr(simulated, name)),
        )
        for label, name in IDLE
        if getattr(real, name) or getattr(simulated, name)
    ]


def bus_bandwidth(row: Row, side: Side) -> float | None:
    """GB/s (10^9 bytes) of a communication row as nccl-tests define it, over the mean duration,
    waiting included."""
    return row.bus_bytes / side.mean_ns if row.bus_bytes is not None and side.mean_ns else None


def as_json(result: Diff) -> dict[str, Any]:
    """The result as JSON data; docs/accuracy.md says what each field means. Times are ns over all
    paired steps."""

    def totals(parts: Breakdown) -> dict[str, int]:
        return asdict(parts) | {
            "communication_ns": parts.communication_ns,
            "idle_ns": parts.idle_ns,
        }

    real, simulated = totals(result.real), totals(result.simulated)
    return {
        "schema": SCHEMA,
        "real_file": result.real_path,
        "simulated_file": result.simulated_path,
        "by": result.by,
        "steps": [[one.number, other.number] for one, other in result.steps],
        "steps_left_out": {"real": result.left_out[0], "simulated": result.left_out[1]},
        "real": real,
        "simulated": simulated,
        "difference": {name: simulated[name] - real[name] for name in real},
        "paired_by": result.paired_by,
        "rows": [
            {
                "label": row.label,
                "kind": row.kind,
                "unmatched": row.unmatched,
                "real": asdict(row.real),
                "simulated": asdict(row.simulated),
                "ratio": row.simulated.gpu_ns / row.real.gpu_ns
                if row.real.gpu_ns and row.simulated.count
                else None,
                "contribution_ns": row.contribution_ns,
                "contribution": row.contribution_ns / result.real.step_ns,
                "bus_gb_per_s": {
                    "real": bus_bandwidth(row, row.real),
                    "simulated": bus_bandwidth(row, row.simulated),
                }
                if row.kind == "communication"
                else None,
            }
            for row in result.rows
        ],
    }
