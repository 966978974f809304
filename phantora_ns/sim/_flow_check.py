"""The invariants of a flow simulation, asserted on its recorded history.

Why it exists: `FlowSimulator.check()` must be able to find errors of an engine, so it shares no code
with the engines. It reads their logs and applies the definition of max-min fairness (Bertsekas and
Gallager, Data Networks, section 6.5.2: a feasible allocation is max-min fair if and only if each flow
has a bottleneck).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from phantora_ns.sim._flow_time import NS_PER_TICK

# Rates are sums of floats: wide enough for rounding (1e-16 per step), too narrow for a wrong share.
_RELATIVE = 1e-9
_BYTES = 1e-6  # bytes per rounding of a log's arithmetic, relative to the flow's size


Entries = Sequence[tuple[int, int]]
"""(link, weight) of a flow's route."""
Log = Sequence[tuple[int, float, float]]
"""(tick, bytes left, rate) at each change of a flow's rate."""
FlowHistory = tuple[int, int, float, float, Entries, Log, int | None]
"""(number, start, size, cap, entries, log, end or None) of a flow."""
History = tuple[int, int, list[FlowHistory], list[list[tuple[int, float]]]]
"""(now, since, flows, capacities): the history is complete from tick `since` on; capacities are a
list of (tick, bytes/ns) per link."""


def check_history(
    now: int,
    since: int,
    flows: Iterable[FlowHistory],
    capacities: Sequence[Sequence[tuple[int, float]]],
) -> None:
    """Asserts, from tick `since` to `now`: logs are in order, bytes are conserved, and flows end where
    their bytes run out. At each instant of change: no link exceeds its capacity, and every active
    flow is at its cap or crosses a bottleneck.

    The arguments are those of an engine's `history()`. O(changes x flows active at once).
    """
    flows = list(flows)
    for flow in flows:
        _check_log(now, flow)
    instants = {tick for _, _, _, _, _, log, _ in flows for tick, _, _ in log if tick >= since}
    instants |= {tick for table in capacities for tick, _ in table if since <= tick <= now}
    instants |= {done for *_, done in flows if done is not None and done >= since}
    at: dict[int, dict[int, float]] = defaultdict(dict)
    for slot, _, _, _, _, log, done in flows:
        for tick, _, rate in log:
            at[max(tick, since)][slot] = rate
        if done is not None:
            at[max(done, since)][slot] = 0.0
    routes = {slot: (entries, cap) for slot, _, _, cap, entries, _, _ in flows}
    active: dict[int, float] = {}
    for tick in sorted(instants | set(at)):
        active.update(at.get(tick, {}))
        active = {slot: rate for slot, rate in active.items() if rate}
        _check_instant(tick, active, routes, capacities)


def _check_log(now: int, flow: FlowHistory) -> None:
    slot, start, size, cap, entries, log, done = flow
    assert entries and all(weight >= 1 for _, weight in entries), f"flow {slot}: no route"
    assert all(earlier[0] <= later[0] for earlier, later in zip(log, log[1:], strict=False)), (
        f"flow {slot}: log out of order"
    )
    if not log:
        assert done is None and start > now, (
            f"flow {slot}: started at {start}, now {now}, and never moved"
        )
        return
    assert log[0][0] >= start and (log[0][0] > start or log[0][1] == size), (
        f"flow {slot}: log does not begin with the flow"
    )
    assert log[-1][0] <= now, f"flow {slot}: log goes beyond now"
    tolerance = _BYTES + size * 1e-12 * len(log)
    for (tick, left, rate), (later, left_later, _) in zip(log, log[1:], strict=False):
        moved = rate * (later - tick) * NS_PER_TICK
        assert abs(left - moved - left_later) <= tolerance, (
            f"flow {slot}: {left} - {moved} bytes became {left_later}"
        )
    assert all(0 < rate <= cap for _, _, rate in log), f"flow {slot}: rate outside of (0, {cap}]"
    tick, left, rate = log[-1]
    if done is None:
        assert left - rate * (now - tick) * NS_PER_TICK > -rate * NS_PER_TICK - tolerance, (
            f"flow {slot}: should have ended"
        )
    else:
        missing = left - rate * (done - tick) * NS_PER_TICK
        assert abs(missing) <= rate * NS_PER_TICK + tolerance, (
            f"flow {slot}: ends with {missing} bytes left"
        )


def _check_instant(
    tick: int,
    active: Mapping[int, float],
    routes: Mapping[int, tuple[Entries, float]],
    capacities: Sequence[Sequence[tuple[int, float]]],
) -> None:
    load: dict[int, float] = defaultdict(float)
    fastest: dict[int, float] = defaultdict(float)
    for slot, rate in active.items():
        for link, weight in routes[slot][0]:
            load[link] += weight * rate
            fastest[link] = max(fastest[link], rate)
    full = set()
    for link, carried in load.items():
        capacity = next(
            value for from_tick, value in reversed(capacities[link]) if from_tick <= tick
        )
        assert carried <= capacity * (1 + _RELATIVE), (
            f"tick {tick}: link {link} carries {carried} of {capacity}"
        )
        if carried >= capacity * (1 - _RELATIVE):
            full.add(link)
    for slot, rate in active.items():
        entries, cap = routes[slot]
        fair = rate >= cap * (1 - _RELATIVE) or any(
            link in full and rate >= fastest[link] * (1 - _RELATIVE) for link, _ in entries
        )
        assert fair, f"tick {tick}: flow {slot} at {rate} bytes/ns has no bottleneck"
