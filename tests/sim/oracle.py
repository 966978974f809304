"""The flow model as its definition says, as naively as possible: what the flow simulator is tested
against.

Why it exists: an oracle must be obviously right. All flows are known from the start; time is
continuous and exact (fractions, or decimals of 50 digits where schedules are long and fractions
would grow without bound); at every event all rates are computed anew from nothing by progressive
filling; nothing is remembered, nothing rolled back. It shares with the simulator the definition of
a completion (`to_ns`), and no code.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from math import ceil, floor

SLACK = Fraction(1, 4096)


@dataclass(frozen=True)
class Spec:
    start: int
    links: tuple
    size: int
    cap: float | None = None
    count: int = 1


@dataclass(frozen=True)
class Change:
    at: int
    link: object
    capacity: float


def max_min_rates(flows: dict, capacities: dict) -> dict:
    """Textbook progressive filling: repeatedly fix the flows that the tightest link or cap stops;
    count everything afresh."""
    members = {
        link: [(i, f.count * f.links.count(link)) for i, f in flows.items() if link in f.links]
        for link in capacities
    }
    rates: dict = {}
    while len(rates) < len(flows):
        stops = {i: f.cap for i, f in flows.items() if i not in rates and f.cap is not None}
        for link, capacity in capacities.items():
            rest = capacity - sum(rates[i] * weight for i, weight in members[link] if i in rates)
            still_open = [(i, weight) for i, weight in members[link] if i not in rates]
            share = rest / sum(weight for _, weight in still_open) if still_open else None
            for i, _ in still_open:
                stops[i] = min(share, stops.get(i, share))
        level = min(stops.values())
        rates.update({i: level for i, stop in stops.items() if stop == level})
    return rates


def completions(
    capacities: dict, specs: Sequence[Spec], changes: Sequence[Change] = (), exact: bool = True
) -> list:
    """Exact completion time (ns, Fraction or Decimal) of each flow; `exact=False`: decimals of 50
    digits."""
    with localcontext() as context:
        context.prec = 50
        return _simulate(Fraction if exact else Decimal, capacities, specs, changes)


def _simulate(number, capacities, specs, changes) -> list:
    capacities = {link: number(value) for link, value in capacities.items()}
    specs = [
        Spec(s.start, s.links, s.size, None if s.cap is None else number(s.cap), s.count)
        for s in specs
    ]
    done: list = [None] * len(specs)
    left: dict = {}
    waiting = sorted(range(len(specs)), key=lambda i: specs[i].start)
    changes = sorted(changes, key=lambda change: change.at)
    now, rates = number(0), {}
    while waiting or left:
        ends = {i: now + left[i] / rates[i] for i in left}
        moments = [*ends.values()]
        if waiting:
            moments.append(number(specs[waiting[0]].start))
        if changes:
            moments.append(number(changes[0].at))
        then = min(moments)
        for i in list(left):
            left[i] -= rates[i] * (then - now)
            if ends[i] == then:
                done[i] = then
                del left[i]
        now = then
        while waiting and specs[waiting[0]].start == now:
            i = waiting.pop(0)
            if specs[i].size == 0 or (not specs[i].links and specs[i].cap is None):
                done[i] = now
            else:
                left[i] = number(specs[i].size)
        while changes and changes[0].at == now:
            change = changes.pop(0)
            capacities[change.link] = number(change.capacity)
        used = defaultdict(bool)
        for i in left:
            for link in specs[i].links:
                used[link] = True
        rates = max_min_rates(
            {i: specs[i] for i in left}, {link: c for link, c in capacities.items() if used[link]}
        )
    return done


def to_ns(exact) -> int:
    """The definition of a reported completion: rounded up, an excess of up to 2^-12 ns over a whole
    nanosecond not counted."""
    return ceil(Fraction(exact) - SLACK)


def near_rounding_edge(exact, width=Fraction(1, 1 << 15)) -> bool:
    """Is the end so close to where `to_ns` steps that float arithmetic may fall on either side? (1
    in 16,000 ends.)"""
    edge = Fraction(exact) - SLACK
    return min(edge - floor(edge), ceil(edge) - edge) < width
