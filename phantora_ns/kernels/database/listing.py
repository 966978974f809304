"""Kernel-time databases as tables for people: what `phantora-ns kernels list`, `show` and `diff`
print.

Why it exists: the command line holds no logic, and these tables can be tested without it. Times are
in us and ms here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phantora_ns.kernels import signature
from phantora_ns.kernels.binary import names
from phantora_ns.kernels.database.database import Database, Entry
from phantora_ns.kernels.database.durations import Statistics
from phantora_ns.kernels.database.interchange import operator
from phantora_ns.kernels.families import family
from phantora_ns.protocol import SignatureKind

WIDTH = 110  # of a signature in a table, in characters


def summary_header() -> str:
    """The first line of `list`."""
    return f"{'GPU':<8}{'runs':>6}{'signatures':>12}{'durations':>12}{'time':>11}  file"


def summary_line(database: Database) -> str:
    """One line about a file: what it holds, and how much GPU time was measured in all. Raises
    DatabaseError."""
    found = database.summary()
    return (
        f"{database.gpu:<8}{found['runs']:>6}{found['signatures']:>12}{found['durations']:>12}"
        f"{found['total_ns'] / 1e9:>9.2f} s  {database.path}"
    )


def run_lines(database: Database) -> Iterator[str]:
    """A line for each run: where its numbers come from. Raises DatabaseError."""
    for run in database.runs():
        score = "" if run.host.score is None else f"host score {run.host.score:.0f} ns"
        versions = [
            f"{name} {run.fields[name]}"
            for name in ("driver", "cuda", "torch", "cudnn", "cublas")
            if run.fields[name]
        ]
        said = [
            run.fields["date"],
            run.fields["device"],
            *versions,
            run.fields["clocks"],
            run.fields["host_cpu"],
            score,
        ]
        rank = f" rank {run.fields['rank']}" if run.fields["rank"] else ""
        yield (
            f"  {run.configuration or '(no name)'}{rank}: {len(run.samples)} signatures, {run.count} durations; "
            f"{', '.join(filter(None, said)) or 'nothing known of where'} [{run.uid}]"
        )


def readable(kind: int, fields: list, width: int | None = WIDTH) -> str:
    """One line about a signature, kernel names demangled; cut after `width` characters (None:
    whole)."""
    if kind == SignatureKind.KERNEL and fields and isinstance(fields[0], str):
        fields = [names.demangle(fields[0]).removeprefix("void "), *fields[1:]]
        if width is not None:  # the launch says more than the tail of a template
            launch = signature.describe(kind, ["", *fields[1:]]).strip()
            room = max(20, width - len(launch) - 1)
            fields[0] = _cut(fields[0], room)
    text = signature.describe(kind, fields)
    return text if width is None else _cut(text, width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


@dataclass(frozen=True, slots=True)
class Filter:
    """Which signatures to show; None: any. `match` is a part of the readable signature, whatever
    its case."""

    family: str | None = None
    operator: str | None = None
    match: str | None = None

    def __call__(self, entry: Entry) -> bool:
        return (
            (self.operator is None or operator(entry.context) == self.operator)
            and (self.family is None or family_of(entry) == self.family)
            and (
                self.match is None
                or self.match.lower() in readable(entry.kind, entry.fields, None).lower()
            )
        )


def family_of(entry: Entry) -> str:
    """The family of a database's entry."""
    return family(entry.kind, entry.fields, entry.context)


def _spread(found: Statistics) -> float:
    return (found.high - found.low) / found.median


def signature_lines(
    entries: Iterable[Entry], limit: int, width: int | None = WIDTH
) -> Iterator[str]:
    """A table of signatures, those with most measured time first; `limit` 0: all. The spread is the
    distance from the 10th to the 90th percentile, as a share of the median."""
    rows = sorted(entries, key=lambda e: (-e.statistics.total, signature.encode(e.kind, e.fields)))
    yield f"{'family':<18}{'operator':<34}{'count':>8}{'median us':>12}{'spread':>8}{'total ms':>11}  signature"
    for entry in rows[: limit or None]:
        s = entry.statistics
        yield (
            f"{_cut(family_of(entry), 17):<18}{_cut(operator(entry.context) or '-', 33):<34}{s.count:>8}"
            f"{s.median / 1e3:>12.2f}{_spread(s):>8.0%}{s.total / 1e6:>11.3f}  "
            f"{readable(entry.kind, entry.fields, width)}"
        )
    total = sum(e.statistics.total for e in rows)
    yield (
        f"{len(rows)} signatures, {sum(e.statistics.count for e in rows)} durations, {total / 1e6:.3f} ms"
        + (
            f"; {len(rows) - limit} not shown (--limit 0 shows all)"
            if limit and len(rows) > limit
            else ""
        )
    )


def difference_lines(a: Database, b: Database, worst: int) -> Iterator[str]:
    """What two files say of the same signatures: the ratio of their medians (b over a) by family,
    the `worst` signatures by measured time that they disagree about, and how many are in one file
    only. Raises DatabaseError."""
    left, right = (
        {signature.encode(e.kind, e.fields): e for e in database.signatures()}
        for database in (a, b)
    )
    both = sorted(left.keys() & right.keys())
    groups: dict[str, list[tuple[float, Entry, Entry]]] = defaultdict(list)
    for data in both:
        one, other = left[data], right[data]
        groups[family_of(one)].append((other.statistics.median / one.statistics.median, one, other))
    yield f"A: {a.path} ({a.gpu}), {len(left)} signatures"
    yield f"B: {b.path} ({b.gpu}), {len(right)} signatures"
    yield (
        f"{'medians, B / A':<18}{'signatures':>11}{'median':>9}{'10 %':>8}{'90 %':>8}{'worst':>8}"
        f"{'time A ms':>12}{'B / A':>8}"
    )
    everything = [row for _, group in sorted(groups.items()) for row in group]
    for name, group in [*sorted(groups.items()), ("all", everything)] if both else []:
        yield _family_line(name, group)
    yield f"in both: {len(both)}; only in A: {len(left) - len(both)}; only in B: {len(right) - len(both)}"
    differing = [row for row in everything if row[0] != 1]
    differing.sort(
        key=lambda r: (-abs(r[0] - 1) * _weight(r[1]), signature.encode(r[1].kind, r[1].fields))
    )
    for ratio, one, other in differing[:worst]:
        yield (
            f"  {ratio:>8.3f}  {one.statistics.median / 1e3:>10.2f} us x{one.statistics.count} -> "
            f"{other.statistics.median / 1e3:>10.2f} us x{other.statistics.count}  {operator(one.context) or '-'}  "
            f"{readable(one.kind, one.fields)}"
        )


def _weight(entry: Entry) -> float:
    """The time that a signature stands for: its median, as often as it was measured."""
    return entry.statistics.median * entry.statistics.count


def _family_line(name: str, rows: list[tuple[float, Entry, Entry]]) -> str:
    ratios = sorted(row[0] for row in rows)
    last, time = len(ratios) - 1, sum(_weight(one) for _, one, _ in rows)
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    total = sum(ratio * _weight(one) for ratio, one, _ in rows) / time
    return (
        f"{_cut(name, 17):<18}{len(rows):>11}{ratios[len(ratios) // 2]:>9.3f}{ratios[last // 10]:>8.3f}"
        f"{ratios[last - last // 10]:>8.3f}{worst:>8.3f}{time / 1e6:>12.3f}{total:>8.3f}"
    )
