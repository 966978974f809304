"""What held the highest peak of memory: the report's `memory_held`.

Why it exists: each process that was watched (`--memory-modules`) leaves a file, written by
startup/_phantora_modules.py. The report has the one of the rank with the highest peak. Beside the data,
here is how it is told to people: layers that repeat are one row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phantora_ns.protocol import Holder

FOLDER = "memory"


class Row(NamedTuple):
    """What modules of one name hold. `modules`: how many there are, in a name with `*`."""

    kind: str
    module: str
    modules: int
    bytes: int


def held_part(run_dir: Path, clients: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The report's part; None when the run was not to be watched. `rank` is None when it was, and no rank
    that was seen used memory. `clients`: the processes, with the names of their statistics, NODE-PID-TIME.
    Raises OSError when a file is there but cannot be read."""
    if not (run_dir / FOLDER).is_dir():  # launch/run/setup.py makes it
        return None
    found = []
    for client in clients:
        rank, process = client["rank"], client["shm"].rpartition("-")[0]
        try:
            held = json.loads((run_dir / FOLDER / f"{process}.json").read_text())
        except FileNotFoundError:  # the process was not watched
            continue
        if rank is not None and rank >= 0 and client.get("representative") is None:
            found.append((held["peak_bytes"], -rank, held["held"]))
    if not found:
        return {"rank": None, "peak_bytes": None, "held": None}
    peak, negative, rows = max(found, key=lambda one: one[:2])
    return {"rank": -negative, "peak_bytes": peak, "held": rows and _labelled(rows)}


def _labelled(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    named = [[Holder.LABELS[kind], module, size] for kind, module, size in rows]
    return sorted(named, key=lambda row: (-row[2], row[0], row[1]))


def by_kind(held: Sequence[Sequence[Any]]) -> list[tuple[str, int]]:
    """The sum of each kind, by size.

    >>> by_kind([["gradients", "a", 3], ["activations", "a", 4], ["gradients", "b", 2]])
    [('gradients', 5), ('activations', 4)]
    """
    sums: dict[str, int] = {}
    for kind, _, size in held:
        sums[kind] = sums.get(kind, 0) + size
    return sorted(sums.items(), key=lambda one: (-one[1], one[0]))


def by_layer(held: Sequence[Sequence[Any]]) -> list[Row]:
    """Modules that differ only in numbers in their names, as one, by size.

    >>> by_layer([["gradients", "layers.0.mlp", 4], ["gradients", "layers.1.mlp", 3]])
    [Row(kind='gradients', module='layers.*.mlp', modules=2, bytes=7)]
    """
    members: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for kind, module, size in held:
        alike = re.sub(r"(?<![^.])\d+(?![^.])", "*", module)
        members.setdefault((kind, alike), []).append((module, size))
    rows = [
        Row(kind, alike if len(of) > 1 else of[0][0], len(of), sum(size for _, size in of))
        for (kind, alike), of in members.items()
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.kind, row.module))
