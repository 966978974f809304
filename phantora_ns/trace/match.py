"""Pairs the GPU work of a real step with that of a simulated one.

Why it exists: a difference in step time is useful only with the kernel that causes it. So each piece
of work must find its counterpart, although library calls have other names on the two sides. Work is
paired in rounds, from certain (same operator, name and grid) to guessed (same family, in order). The
result counts the pairs of each round. Work without a partner is listed, never dropped.

Calls of a library operator are paired by their order when both steps have equally many of them. One
kernel's name covers products of many shapes, so the order says more than the name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from phantora_ns.kernels.binary.names import demangle
from phantora_ns.trace.activity_families import LIBRARY_OPERATORS, family
from phantora_ns.trace.breakdown import Owned
from phantora_ns.trace.kineto import Activity, Collective


@dataclass(frozen=True, slots=True)
class Unit:
    """A kernel or copy, or everything that one call of a library operator launched. `gpu_ns`: sum of
    durations inside the step; `owned_ns`: the part of the step that it owns (breakdown.py); `name`:
    that of its longest piece."""

    name: str
    names: tuple[str, ...]
    operator: str
    shapes: str
    family: str
    grid: tuple[int, ...]
    gpu_ns: int
    owned_ns: int
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """One piece of work on both sides; None where there is no counterpart. `by`: the round that
    paired them, "" for none."""

    real: Unit | None
    simulated: Unit | None
    by: str


def units(owned: Owned) -> list[Unit]:
    """A step's work in launch order; the pieces of one library call form one unit. O(n)."""
    groups: dict[Hashable, list[int]] = {}
    for index, activity in enumerate(owned.activities):
        together = (
            activity.collective is None
            and activity.instance is not None
            and activity.operator in LIBRARY_OPERATORS
        )
        groups.setdefault(
            ("call", activity.operator, activity.instance) if together else index, []
        ).append(index)
    return [
        _unit(
            [owned.activities[i] for i in group],
            [owned.lengths_ns[i] for i in group],
            sum(owned.owned_ns[i] for i in group),
        )
        for group in groups.values()
    ]


def _unit(pieces: list[Activity], lengths_ns: list[int], owned_ns: int) -> Unit:
    longest = pieces[max(range(len(pieces)), key=lambda i: (lengths_ns[i], -i))]
    kind = (
        "communication"
        if longest.collective
        else family(longest.name, longest.operator, longest.category)
    )
    return Unit(
        demangle(longest.name),
        tuple(demangle(piece.name) for piece in pieces),
        longest.operator,
        longest.shapes,
        kind,
        longest.grid,
        sum(lengths_ns),
        owned_ns,
        longest.collective,
    )


Round = tuple[str, Callable[[Unit], Hashable | None]]

IN_ORDER = "library operator, in order, equally many"
COMPUTE_ROUNDS: tuple[Round, ...] = (
    ("operator, name, shapes and grid", lambda u: (u.operator, u.names, u.shapes, u.grid)),
    ("operator, name and grid", lambda u: (u.operator, u.names, u.grid)),
    ("operator and name", lambda u: (u.operator, u.names)),
    ("name", lambda u: u.names if u.operator not in LIBRARY_OPERATORS else None),
    (
        "operator and shapes, in order",
        lambda u: (u.operator, u.shapes) if u.operator and u.shapes else None,
    ),
    ("operator and family, in order", lambda u: (u.operator, u.family) if u.operator else None),
    ("family, in order", lambda u: u.family),
)
COMMUNICATION_ROUNDS: tuple[Round, ...] = (
    ("collective, size and group", lambda u: u.collective),
    (
        "collective and size",
        lambda u: (u.collective.name, u.collective.size_bytes) if u.collective.size_bytes else None,
    ),
    ("collective, in order", lambda u: u.collective.name),
    # Real traces do not give the direction of a grouped message.
    (
        "message, in order",
        lambda u: "message" if u.collective.name in ("send", "recv", "send_recv") else None,
    ),
)


def match(real: Sequence[Unit], simulated: Sequence[Unit]) -> list[Pair]:
    """Pairs the units of both steps: within a round, equal keys in order of launch. Units without a
    partner come last.

    O(rounds * n). Communication is paired only with communication.
    """
    pairs: list[Pair] = []
    real, simulated = _equally_many(real, simulated, pairs)
    for rounds, wanted in ((COMPUTE_ROUNDS, False), (COMMUNICATION_ROUNDS, True)):
        left = [u for u in real if (u.collective is not None) == wanted]
        right = [u for u in simulated if (u.collective is not None) == wanted]
        for name, key in rounds:
            left, right = _round(left, right, name, key, pairs)
        pairs += [Pair(unit, None, "") for unit in left] + [Pair(None, unit, "") for unit in right]
    return pairs


def _equally_many(
    real: Sequence[Unit], simulated: Sequence[Unit], pairs: list[Pair]
) -> tuple[list[Unit], list[Unit]]:
    """Pairs the calls of library operators that both sides make equally often (of equal shapes, where
    both traces have them)."""

    def calls(side: Sequence[Unit], shapes: bool) -> dict[Hashable, list[Unit]]:
        found: dict[Hashable, list[Unit]] = defaultdict(list)
        for unit in side:
            if unit.collective is None and unit.operator in LIBRARY_OPERATORS:
                found[unit.operator, unit.shapes if shapes else ""].append(unit)
        return found

    shapes = all(
        u.shapes for side in (real, simulated) for u in side if u.operator in LIBRARY_OPERATORS
    )
    left, right = calls(real, shapes), calls(simulated, shapes)
    equal = {key for key in left if len(left[key]) == len(right.get(key, ()))}
    for key in left:
        if key in equal:
            pairs += [
                Pair(one, other, IN_ORDER) for one, other in zip(left[key], right[key], strict=True)
            ]

    def rest(side: Sequence[Unit]) -> list[Unit]:
        return [
            u
            for u in side
            if u.collective is not None or (u.operator, u.shapes if shapes else "") not in equal
        ]

    return rest(real), rest(simulated)


def _round(
    left: list[Unit],
    right: list[Unit],
    name: str,
    key: Callable[[Unit], Hashable | None],
    pairs: list[Pair],
) -> tuple[list[Unit], list[Unit]]:
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    for index, unit in enumerate(right):
        value = key(unit)
        if value is not None:
            waiting[value].append(index)
    for indices in waiting.values():
        indices.reverse()
    taken, remaining = set(), []
    for unit in left:
        value = key(unit)
        partners = waiting.get(value) if value is not None else None
        if partners:
            index = partners.pop()
            taken.add(index)
            pairs.append(Pair(unit, right[index], name))
        else:
            remaining.append(unit)
    return remaining, [unit for index, unit in enumerate(right) if index not in taken]


def rounds_used(pairs: Sequence[Pair]) -> dict[str, int]:
    """How many pairs each round made, and how many units have no partner ("unmatched")."""
    counts = Counter(pair.by or "unmatched" for pair in pairs)
    names = [
        IN_ORDER,
        *(name for name, _key in (*COMPUTE_ROUNDS, *COMMUNICATION_ROUNDS)),
        "unmatched",
    ]
    return {name: counts[name] for name in names if counts[name]}
