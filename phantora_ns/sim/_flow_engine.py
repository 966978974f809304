"""The flow simulator's engine in plain Python: events, components, history, rollback.

Why it exists: it is the readable statement of what the engine does. The compiled engine
(`libflows/`) does the same in the same arithmetic and is used where it has been built; both give
the same bits, which is tested.

How history works. A flow's log holds (tick, bytes left, rate) at each change of its rate; its last
entry is its present state. Rolling back is cutting logs: at any tick, the entries before it say
exactly what the flow was doing. So there are no snapshots, nothing is copied, and nothing that a
rollback does not concern is visited.

Which flows a rollback concerns: those that can be reached from the late flow's links through flows
that were still active at its start or came later (`_reach`). Links are never shared between flows
inside and outside of this set, so those outside cannot notice, and stay where they are, ahead in
time.

A component is a set of flows that contains, for each of its flows, every active flow that shares a
link with it. It may be larger than a connected one (flows that linked its parts may have ended):
the rates do not depend on that (`_flow_fill`), so splitting is a matter of cost alone and is done
when a component has lost half of its flows.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from phantora_ns.sim._flow_fill import fair_rates
from phantora_ns.sim._flow_time import bytes_left, end_tick, ns_to_tick, tick_to_ns

_SWEEP_AT_LEAST = 256
_BEGINNING = -(1 << 200)  # of time, in ticks


class _Group:
    """What a handle stands for: flows that start together; complete when the last of them is."""

    __slots__ = ("number", "start_ns", "members", "latest", "reported")

    def __init__(self, number: int, start_ns: int):
        self.number, self.start_ns = number, start_ns
        self.members: list[_Flow] = []  # those that have not been forgotten
        self.latest = _BEGINNING  # the last end of those that have
        self.reported: int | None = None

    def end(self) -> int | None:
        """The tick of the last end; None before."""
        if any(not flow.ended for flow in self.members):
            return None
        return max([self.latest, *(flow.done for flow in self.members)])


class _Flow:
    __slots__ = (
        "group",
        "start",
        "size",
        "cap",
        "entries",
        "log",
        "done",
        "ended",
        "component",
        "rolled",
    )

    def __init__(
        self,
        group: _Group,
        start: int,
        size: float,
        cap: float,
        entries: tuple[tuple[int, int], ...],
    ):
        self.group, self.start, self.size, self.cap, self.entries = group, start, size, cap, entries
        self.log: list[tuple[int, float, float]] = []
        self.done: int | None = (
            None  # the tick of the end: foreseen while active, final (until a rollback) once ended
        )
        self.ended = False
        self.component: _Component | None = None
        self.rolled = 0  # number of the last settling that put this flow back


class _Component:
    __slots__ = ("flows", "next", "lost")

    def __init__(self, flows: set[_Flow]):
        self.flows, self.next, self.lost = flows, None, 0


@dataclass
class _Link:
    capacities: list[tuple[int, float]]  # (tick from which it holds, bytes/ns), by tick
    active: set[_Flow] = field(default_factory=set)
    past: list[_Flow] = field(
        default_factory=list
    )  # ended flows that a rollback may bring back, by end

    def capacity(self, tick: int) -> float:
        for since, value in reversed(self.capacities):
            if since <= tick:
                return value
        raise AssertionError("a link has a capacity from the beginning of time")


class PythonEngine:
    """Groups of flows by number. Times at this face are nanoseconds, links are indices into
    `capacities`."""

    name = "python"

    def __init__(self, capacities: Iterable[float]):
        self._links = [_Link([(_BEGINNING, float(value))]) for value in capacities]
        self._groups: dict[int, _Group] = {}
        self._numbers = count()
        self._order = count()
        self._pending: list[tuple[int, int, _Flow]] = []
        self._events: list[tuple[int, int, _Component]] = []
        self._changes: list[tuple[int, int]] = []  # (tick, link): capacity changes still to be run
        self._late: list[tuple[int, tuple[int, ...]]] = []
        self._suspects: set[_Group] = (
            set()
        )  # with a reported completion that a rollback may have moved
        self._now = self._horizon = _BEGINNING  # every event up to and including _now has been run
        self._settlings = 0
        self._grown = 0  # records made since the last sweep
        self._sweep_at = _SWEEP_AT_LEAST
        self.rollbacks = 0
        self.events = 0

    # ---- the face that flows.py uses ----

    def add_batch(self, starts, sizes, caps, counts, offsets, links) -> list[int]:
        """Groups of one flow; flow i has route links[offsets[i]:offsets[i+1]], not empty, and size
        > 0. Returns their numbers."""
        numbers = []
        for i, start in enumerate(starts):
            group = self._new_group(start)
            self._add(group, sizes[i], caps[i], counts[i], links[offsets[i] : offsets[i + 1]])
            numbers.append(group.number)
        return numbers

    def add_group(self, start_ns, sizes, caps, counts, offsets, links) -> int:
        """One group of flows (at least one) that start together. Returns its number."""
        group = self._new_group(start_ns)
        for i, size in enumerate(sizes):
            self._add(group, size, caps[i], counts[i], links[offsets[i] : offsets[i + 1]])
        return group.number

    def _new_group(self, start_ns: int) -> _Group:
        group = _Group(next(self._numbers), start_ns)
        self._groups[group.number] = group
        return group

    def _add(
        self, group: _Group, size: float, cap: float, multiplicity: int, route: Iterable[int]
    ) -> None:
        weights: dict[int, int] = {}
        for link in route:
            weights[link] = weights.get(link, 0) + multiplicity
        flow = _Flow(
            group,
            ns_to_tick(group.start_ns),
            float(size),
            float(cap),
            tuple(sorted(weights.items())),
        )
        group.members.append(flow)
        heappush(self._pending, (flow.start, next(self._order), flow))
        if flow.start <= self._now:
            self._late.append((flow.start, tuple(weights)))
        self._grown += 1

    def move(self, number: int, start_ns: int) -> None:
        """The group starts at `start_ns` instead, as if it had been added so. None of its flows has
        been forgotten."""
        group = self._groups[number]
        group.start_ns = start_ns
        for flow in group.members:
            self._move(flow, ns_to_tick(start_ns))

    def _move(self, flow: _Flow, start: int) -> None:
        before = flow.start
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

    def completion_ns(self, number: int) -> int:
        self._settle()
        group = self._groups[number]
        group.reported = self._run_to_end(group)
        return group.reported

    def _run_to_end(self, group: _Group) -> int:
        for flow in group.members:
            while not flow.ended:
                self._step()
        return tick_to_ns(group.end())

    def changed(self) -> list[tuple[int, int]]:
        """(group, new time) of reported completions that moved, by group."""
        self._settle()
        moved = []
        for group in sorted(self._suspects, key=lambda suspect: suspect.number):
            time_ns = self._run_to_end(group)
            if time_ns != group.reported:
                group.reported = time_ns
                moved.append((group.number, time_ns))
        self._suspects.clear()
        return moved

    def commit(self, before_ns: int) -> list[tuple[int, int]]:
        """Runs up to `before_ns` and forgets; returns (group, completion) of the groups that are
        forgotten for good."""
        self._settle()
        self._horizon = max(self._horizon, ns_to_tick(before_ns))
        while (tick := self._next_tick()) is not None and tick < self._horizon:
            self._step()
        return self._sweep() if self._grown >= self._sweep_at else []

    def settle(self) -> None:
        self._settle()

    def start_ns(self, number: int) -> int:
        """When the group starts."""
        return self._groups[number].start_ns

    def end_tick(self, number: int) -> int | None:
        """The exact end, in ticks, of a group that has ended."""
        return self._groups[number].end()

    def _flows(self) -> list[_Flow]:
        return [flow for group in self._groups.values() for flow in group.members]

    def history(self):
        """For `check`: (now, since, flows, capacities), `since` being the tick from which the
        history is complete; flows as (number, start, size, cap, entries, log, end or None);
        capacities as one list of (tick, bytes/ns) per link."""
        flows = [
            (number, f.start, f.size, f.cap, f.entries, list(f.log), f.done if f.ended else None)
            for number, f in enumerate(self._flows())
        ]
        return self._now, self._horizon, flows, [list(link.capacities) for link in self._links]

    def retained(self) -> int:
        """Objects that history and present hold: flows, log entries, past references, queue
        entries, capacity changes."""
        flows = sum(1 + len(flow.log) for flow in self._flows())
        links = sum(len(link.past) + len(link.capacities) for link in self._links)
        queues = len(self._pending) + len(self._events) + len(self._changes) + len(self._suspects)
        return flows + links + queues + len(self._groups)

    # ---- rollback ----

    def _settle(self) -> None:
        """Take back what the late flows and capacities may concern, then run up to where we
        were."""
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

        Flows put back by an earlier (hence lower) late arrival of this settling are passed by:
        nobody else is on their links from then on, and they will be run to this tick before
        anything of this reach happens.
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
            if flow.group.reported is not None:
                self._suspects.add(flow.group)
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

    # ---- running ----

    def _next_tick(self) -> int | None:
        while self._events and self._events[0][2].next != self._events[0][0]:
            heappop(self._events)
        return min(
            (queue[0][0] for queue in (self._events, self._pending, self._changes) if queue),
            default=None,
        )

    def _step(self) -> None:
        """Everything that happens at the next tick: ends, then starts and new capacities, then new
        rates, once."""
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
        """Put a flow on its links; the components that it touches become one, the smaller sets
        moving into the largest."""
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
        """New rates from `tick` on. A flow whose rate does not change gets no entry: see rule 3 of
        `_flow_time`."""
        flows = list(component.flows)
        rates = fair_rates(
            {i: (flow.entries, flow.cap) for i, flow in enumerate(flows)},
            lambda link: self._links[link].capacity(tick),
        )
        for i, rate in rates.items():
            flow = flows[i]
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

    # ---- forgetting ----

    def _sweep(self) -> list[tuple[int, int]]:
        """Drop what no rollback can need. Run when as much has been recorded as the last sweep
        left: amortised O(1) a record.

        A group whose reported completion moved, which `changed` has not told yet, stays until it
        does.
        """
        gone = []
        for group in list(self._groups.values()):
            for flow in group.members:
                if flow.ended and flow.done < self._horizon:
                    group.latest = max(group.latest, flow.done)
                else:
                    keep = next(
                        (
                            i
                            for i in range(len(flow.log) - 1, 0, -1)
                            if flow.log[i][0] < self._horizon
                        ),
                        0,
                    )
                    del flow.log[:keep]
            group.members = [
                flow for flow in group.members if not flow.ended or flow.done >= self._horizon
            ]
            time_ns = tick_to_ns(group.latest)
            if group.members or (group in self._suspects and group.reported != time_ns):
                continue
            self._suspects.discard(group)
            del self._groups[group.number]
            gone.append((group.number, time_ns))
        for link in self._links:
            link.past = [flow for flow in link.past if flow.done >= self._horizon]
            keep = next(
                i
                for i in range(len(link.capacities) - 1, -1, -1)
                if link.capacities[i][0] < self._horizon
            )
            del link.capacities[:keep]
        self._events = [entry for entry in self._events if entry[2].next == entry[0]]
        self._events.sort()
        self._grown = 0
        self._sweep_at = max(_SWEEP_AT_LEAST, self.retained())
        return gone
