"""The tables `[contention]` and `[power]` of a GPU model's file.

Why it exists: these are measured shares (docs/kernel-times.md). A missing or impossible one must be
named before a run starts.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from phantora_ns.config.toml_table import Table
from phantora_ns.model.contention import Contention
from phantora_ns.model.power import BOUND_BY, Power


def contention_of(top: Table, multiprocessors: int) -> Contention:
    """The `[contention]` table of the file of a GPU model with `multiprocessors`. Raises
    ConfigError."""
    names = [field.name for field in fields(Contention)]
    if not top.has("contention"):
        raise top.error("contention", f"is missing; give {', '.join(names)}")
    table = top.table("contention")
    whole = {name: table.integer(name) for name in ("held", "tile_start")}
    shares = {name: _percent(table, name) for name in names if name not in whole}
    values: dict[str, Any] = {**shares, **whole}
    table.done()
    if whole["held"] >= multiprocessors:
        raise table.error("held", f"leaves none of the {multiprocessors} multiprocessors")
    for name in ("tile_rate", "throttle"):
        if not 0 < shares[name] <= 1:
            raise table.error(name, "is a share of a peak: above 0%, at most 100%")
    return Contention(**values)


def _percent(table: Table, name: str) -> float:
    """A share in percent, divided by 100. `Table.fraction` would multiply by 0.01, which can differ
    in the last bit."""
    table.fraction(name)
    return float(table.text(name).strip().removesuffix("%")) / 100


def power_of(table: Table) -> Power:
    """The `[power]` table of a GPU model's file. Raises ConfigError."""
    low, full, recorded, spread = (
        _permille(table, name) for name in ("low", "full", "recorded", "spread")
    )
    weights = tuple(_permille(table, f"weight_{name}") for name in BOUND_BY)
    gains = tuple(_permille(table, f"gain_{name}") for name in BOUND_BY)
    window_ns = table.time_ns("window")
    table.done()
    if window_ns <= 0:
        raise table.error("window", "is not longer than nothing")
    if not low < full:
        raise table.error("full", "is not above power.low")
    return Power(low, full, window_ns, weights, gains, recorded, spread)


def _permille(table: Table, name: str) -> int:
    share: float = table.fraction(name)
    if not 0 <= share <= 1:
        raise table.error(name, "is not between 0% and 100%")
    return round(1000 * share)
