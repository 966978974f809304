"""A sweep as a table: of data for programs and the page, and of words for a terminal.

Why it exists: the same rows are shown while the sweep runs, at its end, and on the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from phantora_ns.page.answers import milliseconds
from phantora_ns.sweep.grid import Settings
from phantora_ns.sweep.judge import OK, Row
from phantora_ns.sweep.results import LOG
from phantora_ns.sweep.spec import Spec

SCHEMA = 1
GIB = 2**30


def as_json(spec: Spec, rows: Sequence[Row], total: int, title: str) -> dict[str, Any]:
    """Everything that the page shows."""
    return {
        "schema": SCHEMA,
        "title": title,
        "axes": spec.axes,
        "varying": spec.varying,
        "work": spec.work,
        "unit": spec.unit,
        "price": dict(spec.price),
        "total": total,
        "points": [row.as_json() for row in rows],
    }


def in_order(rows: Sequence[Row]) -> list[Row]:
    """The fastest first; what did not end well comes last, in the sweep's order."""
    return sorted(
        rows,
        key=lambda row: (row.state != OK, row.pace_ns is None, row.pace_ns or 0, row.number),
    )


def headings(spec: Spec) -> list[str]:
    """Of the columns that `cells` fills."""
    rate = [f"{spec.unit}/s"] if spec.work else []
    cost = [f"per million {spec.unit}" if spec.work else "per step"] if spec.price else []
    return [*spec.varying, "step", *rate, "peak", "of the GPU", "GPUs", *cost, ""]


def cells(spec: Spec, row: Row) -> list[str]:
    """A row in words."""
    rate = [_rate(row)] if spec.work else []
    cost = ["–" if row.cost is None else f"{row.cost:.4g}"] if spec.price else []
    peak, share = "–", "–"
    if row.peak_bytes is not None:
        peak, share = f"{row.peak_bytes / GIB:.2f} GiB", f"{row.peak_bytes / row.memory_bytes:.0%}"
    return [
        *(setting(row.settings, axis) for axis in spec.varying),
        "–" if row.step_ns is None else milliseconds(row.step_ns),
        *rate,
        peak,
        share,
        str(row.gpus),
        *cost,
        verdict(row),
    ]


def _rate(row: Row) -> str:
    return "–" if row.rate is None else f"{row.rate:,.0f}" if row.rate >= 100 else f"{row.rate:.4g}"


def setting(settings: Settings, axis: str) -> str:
    """A value as it was given."""
    value = settings.get(axis)
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def verdict(row: Row) -> str:
    """What is said of a row: its failure and why, or what it is best in."""
    if row.state != OK:
        return f"{row.state}: {row.why}" if row.why else row.state
    return ", ".join(row.marks) if row.pace_ns is not None else "fits; it told no steps"


def line(row: Row, label: str) -> str:
    """A finished point in a log."""
    if row.state != OK:
        return f"{label}: {row.state}: {row.why}"
    step = "no steps" if row.step_ns is None else f"step {milliseconds(row.step_ns)}"
    peak = "" if row.peak_bytes is None else f", {row.peak_bytes / GIB:.2f} GiB"
    return f"{label}: {step}{peak}, {row.gpus} GPU{'' if row.gpus == 1 else 's'}; took {row.wall_s:.0f} s"


def closing(spec: Spec, rows: Sequence[Row]) -> list[str]:
    """The answer in a few lines."""
    lines = [f"{len(rows)} points: {by_state(rows)}"]
    for mark in ("best", "cheapest"):
        row = next((row for row in rows if getattr(row, mark)), None)
        if row is not None and row.step_ns is not None and row.peak_bytes is not None:
            named = " ".join(f"{axis}={setting(row.settings, axis)}" for axis in spec.varying)
            rate = f", {_rate(row)} {spec.unit}/s" if row.rate is not None else ""
            cost = f", {row.cost:.4g} {headings(spec)[-2]}" if row.cost is not None else ""
            lines.append(
                f"{mark} that fits: {named}: step {milliseconds(row.step_ns)}{rate}, "
                f"{row.peak_bytes / GIB:.2f} GiB, {row.gpus} GPUs{cost}"
            )
            if mark == "best":
                lines += _shorter(spec, rows, row)
            lines.append(f"  {row.command}")
            lines += [f"  check: {doubt}" for doubt in row.doubts]
    failed = [row for row in rows if row.state != OK]
    if failed:
        others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        lines.append(f"what failed runs printed: {failed[0].folder}/{LOG}{others}")
    return lines


def by_state(rows: Sequence[Row]) -> str:
    """`2 ok, 1 out of memory, 1 failed`."""
    return ", ".join(f"{n} {state}" for state, n in Counter(row.state for row in rows).items())


def kept(rows: Sequence[Row], total: int, folder: object) -> str:
    """That so many of `total` points are not run, because they have the results `rows`."""
    bad = any(row.state != OK for row in rows)
    how, cure = (f" ({by_state(rows)})", "; --again runs all points again") if bad else ("", "")
    return f"{len(rows)} of {total} points have a result already{how}; in {folder}{cure}"


def _shorter(spec: Spec, rows: Sequence[Row], best: Row) -> list[str]:
    """Why the row with the shortest step is not the best one, if it is not."""
    timed = [row for row in rows if row.state == OK and row.step_ns and row.work]
    least = min(timed, key=lambda row: row.step_ns or 0, default=best)
    if not (least.step_ns and best.step_ns and least.work and best.work):
        return []
    if least.step_ns >= best.step_ns:
        return []
    named = " ".join(f"{axis}={setting(least.settings, axis)}" for axis in spec.varying)
    return [
        f"  not the shortest step: {milliseconds(least.step_ns)} with {named}, which does "
        f"{least.work:,.6g} {spec.unit} a step, not {best.work:,.6g}"
    ]


def progress(
    finished: Mapping[str, int], running: int, total: int, left_s: float | None = None
) -> str:
    """How far a sweep is."""
    done = sum(finished.values())
    failed = done - finished.get(OK, 0)
    text = f"{done} of {total} points, {running} running"
    text += f", {failed} that did not end well" if failed else ""
    return text + (f", {about(left_s)} left" if left_s is not None else "")


def about(seconds: float) -> str:
    """An estimate in words.

    >>> about(41), about(254), about(9000)
    ('about 41 s', 'about 4 min', 'about 2.5 h')
    """
    if seconds < 90:
        return f"about {seconds:.0f} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"
