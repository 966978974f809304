"""The tables `[contention]` and `[power]` of a GPU model's file.

Why it exists: these are measured shares (docs/kernel-times.md). A missing or impossible one must be
named before a run starts.
"""

from __future__ import annotations

from dataclasses import fields
from types import MappingProxyType
from typing import Any

from phantora_ns.config.toml_table import Table
from phantora_ns.model.contention import Contention
from phantora_ns.model.power import BOUND_BY, Power
from phantora_ns.protocol import BoundBy, Precision

SHORTEST_WINDOW_NS, LONGEST_WINDOW_NS = 10**6, 10**9  # libintercept/time/power.c divides by it
LARGEST_SPREAD = 0.1


def contention_of(top: Table, multiprocessors: int) -> Contention:
    """The `[contention]` table of the file of a GPU model with `multiprocessors`. Raises
    ConfigError."""
    names = [field.name for field in fields(Contention)]
    if not top.has("contention"):
        raise top.error("contention", f"is missing; give {', '.join(names)}")
    table = top.table("contention")
    held = table.integer("held")
    values: dict[str, Any] = {name: _percent(table, name) for name in names if name != "held"}
    table.done()
    if held >= multiprocessors:
        raise table.error("held", f"leaves none of the {multiprocessors} multiprocessors")
    return Contention(held=held, **values)


def _percent(table: Table, name: str) -> float:
    """A share in percent, divided by 100. `Table.fraction` would multiply by 0.01, which can differ
    in the last bit."""
    table.fraction(name)
    return float(table.text(name).strip().removesuffix("%")) / 100


RECORDED_IN = {BoundBy.COMPUTE: "recorded_in", BoundBy.ATTENTION: "attention_recorded_in"}
"""Tables of the clocks of single recordings, by what bounds the kernels."""


def power_of(table: Table) -> Power:
    """The `[power]` table of a GPU model's file. Raises ConfigError."""
    highest, recorded = (table.megahertz(key) for key in ("highest", "recorded"))
    memory, flop = table.watts("memory"), table.table("flop")
    runs = {number: table.table(key) for number, key in RECORDED_IN.items()}
    power = Power(
        limit=table.watts("limit"),
        idle=table.watts("idle"),
        drawn=tuple(table.watts(name, default=memory) for name in BOUND_BY),
        per_flop=tuple(flop.picojoules_per_flop(name, default=0.0) for name in Precision.LABELS),
        attention_per_flop=flop.picojoules_per_flop("attention", default=0.0),
        attention_base=table.watts("attention_base", default=0.0),
        exponent=table.number("exponent", low=1.0),
        link=table.nanojoules_per_byte("link"),
        awake=table.watts("links_awake"),
        window_ns=table.time_ns("window"),
        highest=highest,
        recorded=tuple(table.megahertz(f"recorded_{name}", default=recorded) for name in BOUND_BY),
        fastest=tuple(table.megahertz(f"fastest_{name}", default=0.0) for name in BOUND_BY),
        follows=tuple(
            table.fraction(f"follows_{name}", default=0.0 if name in ("memory", "fused") else 1.0)
            for name in BOUND_BY
        ),
        spread=_percent(table, "spread"),
        recorded_in=MappingProxyType(
            {
                number: MappingProxyType({uid: clocks.megahertz(uid) for uid in clocks.keys()})
                for number, clocks in runs.items()
            }
        ),
    )
    flop.done()
    table.done()
    if not power.idle < power.limit:
        raise table.error("limit", "is not above power.idle")
    for name, share in zip(BOUND_BY, power.follows, strict=True):
        if not 0 <= share <= 1:
            raise table.error(f"follows_{name}", "is not between 0% and 100%")
    if not SHORTEST_WINDOW_NS <= power.window_ns <= LONGEST_WINDOW_NS:
        raise table.error("window", "is not between 1 ms and 1 s")
    if not 0 <= power.spread < LARGEST_SPREAD:
        raise table.error("spread", "is not between 0% and 10%")
    for key, clock in [
        ("recorded", recorded),
        *((f"recorded_{name}", c) for name, c in zip(BOUND_BY, power.recorded, strict=True)),
        *((f"fastest_{name}", c) for name, c in zip(BOUND_BY, power.fastest, strict=True)),
        *(
            (f"{RECORDED_IN[number]}.{uid}", clock)
            for number, clocks in power.recorded_in.items()
            for uid, clock in clocks.items()
        ),
    ]:
        if clock > power.highest or ("recorded" in key and not clock):
            raise table.error(key, "is not between 1 MHz and power.highest")
    return power
