"""The timeline of hosts and streams, as much of it as fits a page.

Why it exists: a page must open at once whatever the run was, so it holds a bounded number of spans.
Rule: whole steps of whole ranks are kept or left out, never single spans, and what is left out is
said.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

MOST_SPANS = 250_000
"""About 1.2 MB of a page."""


def timeline(
    excerpts: Mapping[int, Mapping[str, Any]], counted: Sequence[int], notes: list[str]
) -> dict[str, Any]:
    """Names, and rows of spans: [begin after the end of the span before, duration, name] as three
    lists. `notes` gets what was left out."""
    kept, shown = _keep(excerpts, counted)
    ranks, numbers = (
        sorted({rank for rank, _ in kept}),
        sorted({n for _, n in kept if n is not None}),
    )
    if not shown:
        traced = len(excerpts)
        notes.append(
            f"The timeline shows steps {_listed(numbers)} of {len(ranks)} of the {traced} traced "
            f"ranks: more than {MOST_SPANS} spans do not fit."
        )
    names: dict[str, int] = {}
    rows = []
    for rank in ranks:
        windows = None if shown else _windows(excerpts[rank], {n for r, n in kept if r == rank})
        for row in excerpts[rank]["rows"]:
            spans = [span for span in row["spans"] if _inside(span[0], windows)]
            if spans:
                rows.append({"rank": rank, "row": row["row"]} | _packed(spans, names))
    return {
        "names": list(names),
        "rows": rows,
        "steps": [
            {"rank": rank, "number": step["number"], "start_ns": step["start_ns"]}
            | {"end_ns": step["end_ns"]}
            for rank in ranks[:1]
            for step in excerpts[rank]["steps"]
        ],
    }


def _keep(
    excerpts: Mapping[int, Mapping[str, Any]], counted: Sequence[int]
) -> tuple[set[tuple[int, int | None]], bool]:
    """(rank, step) pairs that are kept, and whether that is everything. One typical step of as many
    ranks as fit, spread evenly, then further steps of all of these."""
    sizes = {rank: _sizes(excerpt) for rank, excerpt in excerpts.items()}
    everything = {(rank, number) for rank, found in sizes.items() for number in found}
    if sum(sum(found.values()) for found in sizes.values()) <= MOST_SPANS:
        return everything, True
    numbers = sorted({number for _, number in everything if number is not None})
    typical = counted[len(counted) // 2] if counted else None
    order = [typical, *(number for number in numbers if number != typical)]
    ranks = sorted(sizes)
    while len(ranks) > 1 and sum(sizes[rank].get(typical, 0) for rank in ranks) > MOST_SPANS:
        ranks = ranks[::2]
    room = MOST_SPANS
    kept: set[tuple[int, int | None]] = set()
    for number in order:
        need = sum(sizes[rank].get(number, 0) for rank in ranks)
        if need <= room or not kept:
            kept |= {(rank, number) for rank in ranks}
            room -= need
    return kept, False


def _sizes(excerpt: Mapping[str, Any]) -> dict[int | None, int]:
    """Spans of each step."""
    rows = [[span[0] for span in row["spans"]] for row in excerpt["rows"]]
    return {
        step["number"]: sum(
            bisect_left(starts, step["end_ns"]) - bisect_left(starts, step["start_ns"])
            for starts in rows
        )
        for step in excerpt["steps"]
    }


def _windows(excerpt: Mapping[str, Any], numbers: set[int | None]) -> list[tuple[int, int]]:
    return [
        (step["start_ns"], step["end_ns"]) for step in excerpt["steps"] if step["number"] in numbers
    ]


def _inside(at_ns: int, windows: Sequence[tuple[int, int]] | None) -> bool:
    return windows is None or any(begin <= at_ns < end for begin, end in windows)


def _packed(spans: Sequence[Sequence[Any]], names: dict[str, int]) -> dict[str, list[int]]:
    """Differences are small numbers, which compress well."""
    gaps, lengths, kinds = [], [], []
    before_ns = 0
    for start_ns, length_ns, name in spans:
        gaps.append(start_ns - before_ns)
        lengths.append(length_ns)
        kinds.append(names.setdefault(name, len(names)))
        before_ns = start_ns + length_ns
    return {"gaps": gaps, "lengths": lengths, "kinds": kinds}


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:12])) + (", ..." if len(numbers) > 12 else "")
