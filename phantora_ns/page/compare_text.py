"""A comparison of runs as text for a terminal.

Why it exists: compare.py returns data; this file decides what a person sees first, and in which
units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phantora_ns.page.words import label_of

MOST_PARTS = 12


def text(comparison: Mapping[str, Any]) -> list[str]:
    """The lines."""
    letters = [run["letter"] for run in comparison["runs"]]
    lines = [f"{run['letter']}  {run['name']}" for run in comparison["runs"]] + [""]
    rows = [_row(row["label"], row["kind"], row["values"]) for row in comparison["metrics"]]
    lines += _table(["", *letters, *_against(letters)], rows)
    bands = [
        f"{run['letter']} {shown('time', run['band'][0])} to {shown('time', run['band'][1])}"
        for run in comparison["runs"]
        if run["band"]
    ]
    if bands:
        lines += ["", "80 % of real steps are expected within: " + ", ".join(bands)]
    parts = [
        _row(label_of(row["group"], row["kind"]), "time", row["values"])
        for row in comparison["step_parts"][:MOST_PARTS]
    ]
    lines += _titled("where the step changed, means of a step", letters, parts)
    kernels = [
        _row(label_of("compute", row["kind"]), "time", row["values"])
        for row in comparison["kernels"]
    ]
    lines += _titled("GPU time by class of kernel, whole run, mean of ranks", letters, kernels)
    if comparison["setup"]:
        lines += ["", "what differs in the set-up"]
        lines += _table(
            ["", *letters],
            [[row["field"], *map(_plain, row["values"])] for row in comparison["setup"]],
        )
    return lines


def _titled(title: str, letters: Sequence[str], rows: list[list[str]]) -> list[str]:
    return ["", title, *_table(["", *letters, *_against(letters)], rows)] if rows else []


def _against(letters: Sequence[str]) -> list[str]:
    return (
        ["change"] if len(letters) == 2 else [f"{letter} - {letters[0]}" for letter in letters[1:]]
    )


def _row(label: str, kind: str, values: Sequence[float | None]) -> list[str]:
    changes = [_change(kind, values[0], value) for value in values[1:]]
    return [label, *(shown(kind, value) for value in values), *changes]


def _change(kind: str, first: float | None, value: float | None) -> str:
    if first is None or value is None:
        return "-"
    if value == first:
        return "="
    difference = shown(kind, value - first, signed=True)
    return f"{difference} ({(value - first) / first:+.1%})" if first else difference


def shown(kind: str, value: float | None, signed: bool = False) -> str:
    """A number with its unit; a dash when it is not known."""
    if value is None:
        return "-"
    sign = "+" if signed and value > 0 else "-" if value < 0 else ""
    size = abs(value)
    if kind == "time":
        unit, of_unit = ("s", 1e9) if size >= 1e9 else ("ms", 1e6) if size >= 1e6 else ("us", 1e3)
        return f"{sign}{size / of_unit:.4g} {unit}"
    if kind == "bytes":
        return f"{sign}{size / 2**30:.2f} GiB" if size >= 2**24 else f"{sign}{size / 2**20:.3g} MiB"
    if kind == "share":
        return f"{sign}{size:.2%}"
    return f"{sign}{size:g}"


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side; the first is left-aligned."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
