"""Flows on links, run from tick to tick: starts, ends, capacity changes, and new rates after each.

Why it exists: running forward is separate from rolling back (`_flow_engine.py`). Future events are in
sorted containers, so that an event moves to its new tick when a rollback or a change of rate re-times
it.

A component is a set of flows. For each of its flows it contains every active flow that shares a link
with it. It may be larger than a connected component, because flows that linked its parts may have
ended. The rates do not depend on that (`_flow_fill`), so splitting only saves cost. A component is
split when it has lost half of its flows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from sortedcontainers import SortedList

from phantora_ns.sim._flow_fill import fair_rates
from phantora_ns.sim._flow_records import BEGINNING, Component, FlowRecord, Link


class Network:
    """Links, the flows on them, and the next events. `now`: everything up to and including this tick
    has been run."""

    def __init__(self, capacities: Iterable[float]) -> None:
        self.links = [Link([(BEGINNING, float(value))]) for value in capacities]
        self.now = BEGINNING
        self.events = 0
        """Ticks at which something was computed, repetitions included."""
        self.recorded = 0
        """Records made so far; the engine decides by it when to sweep."""
        self._order = count()
        self._starts: SortedList[tuple[int, int, FlowRecord]] = SortedList()
        self._ends: SortedList[tuple[int, int, Component]] = SortedList()
        self._changes: SortedList[tuple[int, int]] = SortedList()  # (tick, link)

    def next_tick(self) -> int | None:
        """When something happens next; None when nothing does."""
        queues = (self._ends, self._starts, self._changes)
        return min((queue[0][0] for queue in queues if queue), default=None)

    def queued(self) -> int:
        """Entries of the queues."""
        return len(self._starts) + len(self._ends) + len(self._changes)

    def await_start(self, flow: FlowRecord) -> None:
        """Queues the flow's start at `flow.start`, instead of at its previous start."""
        if flow.pending is not None:
            self._starts.remove(flow.pending)
        flow.pending = (flow.start, next(self._order), flow)
        self._starts.add(flow.pending)

    def change_capacity(self, tick: int, link: int) -> None:
        """The link's capacity changes at `tick`."""
        self._changes.add((tick, link))

    def step(self, tick: int) -> None:
        """Runs everything that happens at `tick`, the next one: ends, then starts and new capacities,
        then new rates, once."""
        self.events += 1
        touched: dict[Component, None] = {}
        ends, starts, changes = self._ends, self._starts, self._changes
        while ends and ends[0][0] == tick:
            component = ends.pop(0)[2]
            component.queued = None
            self._retire(component, tick)
            touched[component] = None
        while starts and starts[0][0] == tick:
            flow = starts.pop(0)[2]
            flow.pending = None
            touched[self._admit(flow)] = None
        while changes and changes[0][0] == tick:
            for flow in self.links[changes.pop(0)[1]].active:
                assert flow.component is not None
                touched[flow.component] = None
                break
        for component in touched:
            for part in self._split(component):
                self._rate(part, tick)
        self.now = max(self.now, tick)

    def schedule(self, component: Component) -> None:
        """Makes the first end of the component's flows its next event, instead of the previous
        one."""
        first = component.first_end()
        if component.queued is not None:
            if component.queued[0] == first:
                return
            self._ends.remove(component.queued)
            component.queued = None
        if first is not None:
            component.queued = (first, next(self._order), component)
            self._ends.add(component.queued)
            self.recorded += 1

    def _retire(self, component: Component, tick: int) -> None:
        for flow in [flow for flow in component.flows if flow.done == tick]:
            flow.ended, flow.component = True, None
            component.flows.discard(flow)
            component.lost += 1
            for link, _ in flow.entries:
                self.links[link].active.discard(flow)
                self.links[link].past.append(flow)

    def _admit(self, flow: FlowRecord) -> Component:
        """Puts a flow on its links. The components that it touches become one; smaller sets move into
        the largest."""
        component = flow.component = Component({flow})
        for link, _ in flow.entries:
            active = self.links[link].active
            other = next(iter(active)).component if active else component
            assert other is not None
            if other is not component:
                if len(other.flows) > len(component.flows):
                    component, other = other, component
                for moved in other.flows:
                    moved.component = component
                component.flows |= other.flows
                component.lost += other.lost
                self._dissolve(other)
            active.add(flow)
        return component

    def _dissolve(self, component: Component) -> None:
        component.flows = set()
        self.schedule(component)

    def _split(self, component: Component) -> list[Component]:
        """Splits the component into its connected parts if it has lost half of its flows."""
        if not component.flows or component.lost * 2 < len(component.flows):
            return [component] if component.flows else []
        rest, parts = component.flows, []
        while rest:
            part: set[FlowRecord] = set()
            stack = [rest.pop()]
            while stack:
                flow = stack.pop()
                part.add(flow)
                for link, _ in flow.entries:
                    near = self.links[link].active & rest
                    rest -= near
                    stack.extend(near)
            parts.append(Component(part))
            for flow in part:
                flow.component = parts[-1]
        self._dissolve(component)
        return parts

    def _rate(self, component: Component, tick: int) -> None:
        """Computes new rates from `tick` on."""
        flows = list(component.flows)
        rates = fair_rates(
            {i: (flow.entries, flow.cap) for i, flow in enumerate(flows)},
            lambda link: self.links[link].capacity(tick),
        )
        for i, rate in rates.items():
            self.recorded += flows[i].take_rate(tick, rate)
        self.schedule(component)
