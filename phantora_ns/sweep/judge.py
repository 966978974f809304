"""What the points of a sweep came to: a row of numbers for each, the best that fits, and the Pareto front.

Why it exists: a table of reports is not an answer. Rule: pure; every number is a report's, or one of the
sweep's file times one. What failed is a row with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phantora_ns.sweep.grid import Settings

OK, OUT_OF_MEMORY, FAILED = "ok", "out of memory", "failed"
HOUR_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Row:
    """A point and its result. `step_ns` and its band are of a point that ended well; `peak_bytes` also of one that
    ran out of memory: how far any other came is no result. `work`: how much a step does, in the sweep's unit.
    `pace_ns`: the step's time, or with an amount of work the time for one unit of it, which compares steps of
    different size. `cost`: of a
    step, or of a million units of work, in the currency of the prices. `why`: of a failure. `doubts`: what to
    check before trusting it. None: not known. `front`: no other row is at least as good in every aim, and
    better in one. `marks`: what speaks for the row, in words."""

    number: int
    settings: Settings
    state: str
    gpus: int
    nodes: int
    gpu: str
    memory_bytes: int
    step_ns: int | None
    low_ns: int | None
    high_ns: int | None
    peak_bytes: int | None
    work: float | None
    pace_ns: float | None
    rate: float | None
    """Units of work a second."""
    cost: float | None
    wall_s: float
    exit_code: int
    why: str | None
    doubts: list[str]
    command: str
    folder: str
    best: bool = False
    cheapest: bool = False
    front: bool = False
    marks: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the page and for programs."""
        return asdict(self)


def row_of(point: Mapping[str, Any], result: Mapping[str, Any], prices: Mapping[str, float]) -> Row:
    """The row of a finished point, as results.py keeps both."""
    result, work = _trusted(result), point["work"]
    step_ns = result["step_ns"]
    pace = step_ns / (work or 1) if step_ns else None
    price = prices.get(point["gpu"], prices.get(""))
    cost = None
    if pace is not None and price is not None:
        cost = pace * point["gpus"] * price / HOUR_NS * (1e6 if work else 1)
    fields = (
        "number",
        "settings",
        "gpus",
        "nodes",
        "gpu",
        "memory_bytes",
        "work",
        "command",
        "folder",
    )
    results = (
        "state",
        "step_ns",
        "low_ns",
        "high_ns",
        "peak_bytes",
        "wall_s",
        "exit_code",
        "why",
        "doubts",
    )
    return Row(
        **{name: point[name] for name in fields},
        **{name: result[name] for name in results},
        pace_ns=pace,
        rate=work * 1e9 / step_ns if step_ns and work else None,
        cost=cost,
    )


def _trusted(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result without the numbers of a run that did not come to its end."""
    state = result["state"]
    left_out = [] if state == OK else ["step_ns", "low_ns", "high_ns"]
    left_out += [] if state in (OK, OUT_OF_MEMORY) else ["peak_bytes"]
    return {**result, **dict.fromkeys(left_out)}


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows with the best, the cheapest and the Pareto front marked. The best is the fastest that
    fits; of equals, the one with less memory, then fewer GPUs."""
    from dataclasses import replace

    good = [row for row in rows if row.state == OK and row.pace_ns is not None]
    best = min(good, key=lambda row: (row.pace_ns, row.peak_bytes or 0, row.gpus), default=None)
    paid = [row for row in good if row.cost is not None]
    cheapest = min(paid, key=lambda row: (row.cost, row.pace_ns), default=None)
    front = {row.number for row in pareto(good)}
    found = [
        replace(
            row,
            best=best is not None and row.number == best.number,
            cheapest=cheapest is not None and row.number == cheapest.number,
            front=row.number in front,
        )
        for row in rows
    ]
    return [replace(row, marks=marks(row, best)) for row in found]


def marks(row: Row, best: Row | None) -> tuple[str, ...]:
    """What speaks for the row. A row that another one beats in every aim has no marks."""
    found = [name for name in ("best", "cheapest") if getattr(row, name)]
    if best is None or not row.front or row.best:
        return tuple(found)
    _, memory, gpus, cost = (one < other for one, other in zip(aims(row), aims(best)))
    found += ["less memory"] if memory else []
    found += ["fewer GPUs"] if gpus else []
    found += ["cheaper"] if cost and not row.cheapest else []
    return tuple(found or ["as good as the best"])


def aims(row: Row) -> tuple[float, ...]:
    """What is to be small: time, memory, GPUs, cost."""
    missing = float("inf")
    return (
        row.pace_ns if row.pace_ns is not None else missing,
        row.peak_bytes if row.peak_bytes is not None else missing,
        row.gpus,
        row.cost if row.cost is not None else 0.0,
    )


def pareto(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other one is as good as in every aim and better in one."""
    return [
        row
        for row in rows
        if not any(
            all(a <= b for a, b in zip(aims(other), aims(row))) and aims(other) != aims(row)
            for other in rows
        )
    ]
