"""The flow simulator's engine in plain Python: events, components, history, rollback.

Why it exists: it is the readable statement of what the engine does. The compiled engine (`libflows/`) does the same in
the same arithmetic and is used where it has been built; both give the same bits, which is tested.

How history works. A flow's log holds (tick, bytes left, rate) at each change of its rate; its last entry is its present
state. Rolling back is cutting logs: at any tick, the entries before it say exactly what the flow was doing. So there are
no snapshots, nothing is copied, and nothing that a rollback does not concern is visited.

Which flows a rollback concerns: those that can be reached from the late flow's links through flows that were still active
at its start or came later (`_reach`). Links are never shared between flows inside and outside of this set, so those
outside cannot notice, and stay where they are, ahead in time.

A component is a set of flows that contains, for each of its flows, every active flow that shares a link with it. It may
be larger than a connected one (flows that linked its parts may have ended): the rates do not depend on that
(`_flow_fill`), so splitting is a matter of cost alone and is done when a component has lost half of its flows.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from phantora_ns.sim._flow_fill import fair_rates
from phantora_ns.sim._flow_time import bytes_left, end_tick, ns_to_tick, tick_to_ns

_SWEEP_AT_LEAST = 256


class _Flow:
    __slots__ = ("slot", "start", "size", "cap", "entries", "log", "done", "ended", "component", "reported", "rolled")

    def __init__(self, slot: int, start: int, size: float, cap: float, entries: tuple[tuple[int, int], ...]):
        self.slot, self.start, self.size, self.cap, self.entries = slot, start, size, cap, entries
        self.log: list[tuple[int, float, float]] = []
        self.done: int | None = None  # the tick of the end: foreseen while active, final (until a rollback) once ended
        self.ended = False
        self.component: _Component | None = None
        self.reported: int | None = None
        self.rolled = 0  # number of the last settling that put this flow back


class _Component:
    __slots__ = ("flows", "next", "lost")

    def __init__(self, flows: set[_Flow]):
        self.flows, self.next, self.lost = flows, None, 0


@dataclass
class _Link:
    capacities: list[tuple[int, float]]  # (tick from which it holds, bytes/ns), by tick
    active: set[_Flow] = field(default_factory=set)
    past: list[_Flow] = field(default_factory=list)  # ended flows that a rollback may bring back, by end

    def capacity(self, tick: int) -> float:
        for since, value in reversed(self.capacities):
            if since <= tick:
                return value
        raise AssertionError("a link has a capacity from the beginning of time")


class PythonEngine:
    """Flows by slot number. Times at this face are nanoseconds, links are indices into `capacities`."""

    name = "python"

    def __init__(self, capacities: Iterable[float]):
        beginning = -(1 << 200)
        self._links = [_Link([(beginning, float(value))]) for value in capacities]
        self._flows: dict[int, _Flow] = {}
        self._slots = count()
        self._order = count()
        self._pending: list[tuple[int, int, _Flow]] = []
        self._events: list[tuple[int, int, _Component]] = []
        self._changes: list[tuple[int, int]] = []  # (tick, link): capacity changes still to be run
        self._late: list[tuple[int, tuple[int, ...]]] = []
        self._suspects: set[_Flow] = set()
        self._now = self._horizon = beginning  # every event up to and including _now has been run
        self._settlings = 0
        self._grown = 0  # records made since the last sweep
        self._sweep_at = _SWEEP_AT_LEAST
        self.rollbacks = 0
        self.events = 0

    # ---- the face that flows.py uses ---------------------------------------------------------------------------------

    def add_batch(self, starts, sizes, caps, counts, offsets, links) -> list[int]:
        """Flows i with route links[offsets[i]:offsets[i+1]]; sizes > 0, routes not empty. Returns their slots."""
        slots = []
        for i, start in enumerate(starts):
            weights: dict[int, int] = {}
            for link in links[offsets[i] : offsets[i + 1]]:
                weights[link] = weights.get(link, 0) + counts[i]
            flow = _Flow(next(self._slots), ns_to_tick(start), float(sizes[i]), float(caps[i]), tuple(sorted(weights.items())))
            self._flows[flow.slot] = flow
            heappush(self._pending, (flow.start, next(self._order), flow))
            if flow.start <= self._now:
                self._late.append((flow.start, tuple(weights)))
            slots.append(flow.slot)
        self._grown += len(slots)
        return slots

    def move(self, slot: int, start_ns: int) -> None:
        """The flow starts at `start_ns` instead, as if it had been added so."""
        flow, start, before = self._flows[slot], ns_to_tick(start_ns), self._flows[slot].start
        flow.start = start
        if not flow.log:  # it has not begun, or has been put back
            self._pending = [entry for entry in self._pending if entry[2] is not flow]
            heapify(self._pending)
            heappush(self._pending, (start, next(self._order), flow))
        if min(start, before) <= self._now:
            self._late.append((min(start, before), tuple(link for link, _ in flow.entries)))
        self._grown += 1

    def set_capacity(self, at_ns: int, link: int, bytes_per_ns: float) -> None:
        tick = ns_to_tick(at_ns)
        table = [entry for entry in self._links[link].capacities if entry[0] != tick]
        self._links[link].capacities = sorted([*table, (tick, bytes_per_ns)])
        heappush(self._changes, (tick, link))
        self._grown += 1
        if tick <= self._now:
            self._late.append((tick, (link,)))

    def completion_ns(self, slot: int) -> int:
        self._settle()
        flow = self._flows[slot]
        while not flow.ended:
            self._step()
        flow.reported = tick_to_ns(flow.done)
        return flow.reported

    def changed(self) -> list[tuple[int, int]]:
        """(slot, new time) of reported completions that moved, by slot."""
        self._settle()
        moved = []
        for flow in sorted(self._suspects, key=lambda suspect: suspect.slot):
            while not flow.ended:
                self._step()
            if tick_to_ns(flow.done) != flow.reported:
                flow.reported = tick_to_ns(flow.done)
                moved.append((flow.slot, flow.reported))
        self._suspects.clear()
        return moved

    def commit(self, before_ns: int) -> list[tuple[int, int]]:
        """Runs up to `before_ns` and forgets; returns (slot, completion) of the flows that are forgotten for good."""
        self._settle()
        self._horizon = max(self._horizon, ns_to_tick(before_ns))
        while (tick := self._next_tick()) is not None and tick < self._horizon:
            self._step()
        return self._sweep() if self._grown >= self._sweep_at else []

    def settle(self) -> None:
        self._settle()

    def start_ns(self, slot: int) -> int:
        """When the flow starts."""
        return tick_to_ns(self._flows[slot].start)

    def end_tick(self, slot: int) -> int | None:
        """The exact end, in ticks, of a flow that has ended."""
        return self._flows[slot].done if self._flows[slot].ended else None

    def history(self):
        """For `check`: (now, since, flows, capacities), `since` being the tick from which the history is complete; flows as
        (slot, start, size, cap, entries, log, end or None); capacities as one list of (tick, bytes/ns) per link."""
        flows = [
            (f.slot, f.start, f.size, f.cap, f.entries, list(f.log), f.done if f.ended else None) for f in self._flows.values()
        ]
        return self._now, self._horizon, flows, [list(link.capacities) for link in self._links]

    def retained(self) -> int:
        """Objects that history and present hold: flows, log entries, past references, queue entries, capacity changes."""
        flows = sum(1 + len(flow.log) for flow in self._flows.values())
        links = sum(len(link.past) + len(link.capacities) for link in self._links)
        return flows + links + len(self._pending) + len(self._events) + len(self._changes) + len(self._suspects)

    # ---- rollback ----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take back what the late flows and capacities may concern, then run up to where we were."""
        if not self._late:
            return
        self._settlings += 1
        for tick, seeds in sorted(self._late):
            self._put_back(tick, self._reach(tick, seeds))
        self._late.clear()
        while (tick := self._next_tick()) is not None and tick <= self._now:
            self._step()

    def _reach(self, tick: int, seeds: Iterable[int]) -> tuple[list[_Flow], set[int]]:
        """The flows that something new on `seeds` at `tick` may concern, and their links.

        Flows put back by an earlier (hence lower) late arrival of this settling are passed by: nobody else is on their
        links from then on, and they will be run to this tick before anything of this reach happens.
        """
        links = set(seeds)
        stack = list(links)
        flows: list[_Flow] = []
        while stack:
            link = self._links[stack.pop()]
            while link.past and link.past[-1].done >= tick:
                self._take_up(link.past.pop(), flows, links, stack)
            for flow in link.active:
                self._take_up(flow, flows, links, stack)
        return flows, links

    def _take_up(self, flow: _Flow, flows: list[_Flow], links: set[int], stack: list[int]) -> None:
        if flow.rolled == self._settlings:
            return
        flow.rolled = self._settlings
        flows.append(flow)
        for link, _ in flow.entries:
            if link not in links:
                links.add(link)
                stack.append(link)

    def _put_back(self, tick: int, reach: tuple[list[_Flow], set[int]]) -> None:
        flows, links = reach
        self.rollbacks += bool(flows)
        left: set[_Component] = set()
        again = _Component(set())
        for flow in flows:
            if flow.reported is not None:
                self._suspects.add(flow)
            if flow.component is not None:
                flow.component.flows.discard(flow)
                left.add(flow.component)
            self._restore(flow, tick, again)
        for component in left:
            self._schedule(component)
        again.lost = len(again.flows)
        self._schedule(again)
        for link in links:
            for since, _ in self._links[link].capacities:
                if tick <= since <= self._now:
                    heappush(self._changes, (since, link))

    def _restore(self, flow: _Flow, tick: int, component: _Component) -> None:
        """As it was just before anything happened at `tick`."""
        flow.ended, flow.done = False, None
        while flow.log and flow.log[-1][0] >= tick:
            flow.log.pop()
        if flow.log:
            flow.done = end_tick(*flow.log[-1])
            flow.component = component
            component.flows.add(flow)
            for link, _ in flow.entries:
                self._links[link].active.add(flow)
        else:
            flow.component = None
            for link, _ in flow.entries:
                self._links[link].active.discard(flow)
            heappush(self._pending, (flow.start, next(self._order), flow))

    # ---- running -----------------------------------------------------------------------------------------------------

    def _next_tick(self) -> int | None:
        while self._events and self._events[0][2].next != self._events[0][0]:
            heappop(self._events)
        return min((queue[0][0] for queue in (self._events, self._pending, self._changes) if queue), default=None)

    def _step(self) -> None:
        """Everything that happens at the next tick: ends, then starts and new capacities, then new rates, once."""
        tick = self._next_tick()
        self.events += 1
        touched: dict[_Component, None] = {}
        while self._events and self._events[0][0] == tick:
            component = heappop(self._events)[2]
            if component.next == tick:
                self._retire(component, tick)
                touched[component] = None
        while self._pending and self._pending[0][0] == tick:
            touched[self._admit(heappop(self._pending)[2])] = None
        while self._changes and self._changes[0][0] == tick:
            for flow in self._links[heappop(self._changes)[1]].active:
                touched[flow.component] = None
                break
        for component in touched:
            for part in self._split(component):
                self._rate(part, tick)
        self._now = max(self._now, tick)

    def _retire(self, component: _Component, tick: int) -> None:
        component.next = None
        for flow in [flow for flow in component.flows if flow.done == tick]:
            flow.ended, flow.component = True, None
            component.flows.discard(flow)
            component.lost += 1
            for link, _ in flow.entries:
                self._links[link].active.discard(flow)
                self._links[link].past.append(flow)

    def _admit(self, flow: _Flow) -> _Component:
        """Put a flow on its links; the components that it touches become one, the smaller sets moving into the largest."""
        component = flow.component = _Component({flow})
        for link, _ in flow.entries:
            active = self._links[link].active
            other = next(iter(active)).component if active else component
            if other is not component:
                if len(other.flows) > len(component.flows):
                    component, other = other, component
                for moved in other.flows:
                    moved.component = component
                component.flows |= other.flows
                component.lost += other.lost
                other.flows, other.next = set(), None
            active.add(flow)
        component.next = None
        return component

    def _split(self, component: _Component) -> list[_Component]:
        if not component.flows or component.lost * 2 < len(component.flows):
            return [component] if component.flows else []
        rest, parts = component.flows, []
        while rest:
            part, stack = set(), [rest.pop()]
            while stack:
                flow = stack.pop()
                part.add(flow)
                for link, _ in flow.entries:
                    near = self._links[link].active & rest
                    rest -= near
                    stack.extend(near)
            parts.append(_Component(part))
            for flow in part:
                flow.component = parts[-1]
        component.flows, component.next = set(), None
        return parts

    def _rate(self, component: _Component, tick: int) -> None:
        """New rates from `tick` on. A flow whose rate does not change gets no entry: see rule 3 of `_flow_time`."""
        by_slot = {flow.slot: flow for flow in component.flows}
        rates = fair_rates(
            {slot: (flow.entries, flow.cap) for slot, flow in by_slot.items()}, lambda link: self._links[link].capacity(tick)
        )
        for slot, rate in rates.items():
            flow = by_slot[slot]
            left = flow.size
            if flow.log:
                since, left, old = flow.log[-1]
                if rate == old:
                    continue
                left = bytes_left(left, old, tick - since)
            flow.log.append((tick, left, rate))
            self._grown += 1
            flow.done = end_tick(tick, left, rate)
        self._schedule(component)

    def _schedule(self, component: _Component) -> None:
        component.next = min((flow.done for flow in component.flows), default=None)
        if component.next is not None:
            heappush(self._events, (component.next, next(self._order), component))
            self._grown += 1

    # ---- forgetting --------------------------------------------------------------------------------------------------

    def _sweep(self) -> list[tuple[int, int]]:
        """Drop what no rollback can need. Run when as much has been recorded as the last sweep left: amortised O(1) a record.

        Reported completions that moved and that `changed` has not told yet stay until it does.
        """
        gone = []
        for flow in list(self._flows.values()):
            if flow.ended and flow.done < self._horizon:
                if flow in self._suspects:
                    if flow.reported != tick_to_ns(flow.done):
                        continue
                    self._suspects.discard(flow)
                del self._flows[flow.slot]
                gone.append((flow.slot, tick_to_ns(flow.done)))
            else:
                keep = next((i for i in range(len(flow.log) - 1, 0, -1) if flow.log[i][0] < self._horizon), 0)
                del flow.log[:keep]
        for link in self._links:
            link.past = [flow for flow in link.past if flow.done >= self._horizon]
            keep = next(i for i in range(len(link.capacities) - 1, -1, -1) if link.capacities[i][0] < self._horizon)
            del link.capacities[:keep]
        self._events = [entry for entry in self._events if entry[2].next == entry[0]]
        self._events.sort()
        self._grown = 0
        self._sweep_at = max(_SWEEP_AT_LEAST, self.retained())
        return gone
