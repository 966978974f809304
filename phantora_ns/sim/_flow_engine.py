"""The flow simulator's engine in plain Python: groups, history, rollback.

Why it exists: it is the readable definition of the engine. The compiled engine (`libflows/`) does the
same with the same arithmetic and is used where it has been built. Tests check that both give the same
bits.

How history works. A flow's log holds (tick, bytes left, rate) at each change of its rate; the last
entry is its present state. Rolling back means cutting logs: at any tick, the entries before it say
exactly what the flow was doing. So there are no snapshots, nothing is copied, and a rollback visits
only the flows that it concerns.

Which flows a rollback concerns: those reachable from the late flow's links through flows that were
still active at its start or came later (`_reach`). Flows inside and outside of this set never share a
link. The flows outside cannot notice the rollback, so they stay where they are, ahead in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from phantora_ns.sim._flow_check import FlowHistory, History
from phantora_ns.sim._flow_network import Network
from phantora_ns.sim._flow_records import BEGINNING, Component, FlowRecord, Group
from phantora_ns.sim._flow_time import FOREVER_NS, ns_to_tick, tick_to_ns

_SWEEP_AT_LEAST = 256


class PythonEngine:
    """Groups of flows by number. Times of its methods are nanoseconds; links are indices into
    `capacities`."""

    name = "python"

    def __init__(self, capacities: Iterable[float]) -> None:
        self._network = Network(capacities)
        self._groups: dict[int, Group] = {}
        self._numbers = count()
        self._late: list[tuple[int, tuple[int, ...]]] = []  # (tick, links) of late arrivals
        self._suspects: set[Group] = set()
        """Groups with a reported completion that a rollback may have moved."""
        self._horizon = BEGINNING
        self._settlings = 0
        self._swept = 0  # records made before the last sweep
        self._sweep_after = _SWEEP_AT_LEAST
        self.rollbacks = 0

    @property
    def events(self) -> int:
        """Ticks at which something was computed, repetitions included."""
        return self._network.events

    # ---- what flows.py uses ----

    def add_batch(
        self,
        starts: Sequence[int],
        sizes: Sequence[float],
        caps: Sequence[float],
        counts: Sequence[int],
        offsets: Sequence[int],
        links: Sequence[int],
    ) -> list[int]:
        """Groups of one flow each. Flow i has the route links[offsets[i]:offsets[i+1]], not empty,
        and a size > 0. Returns the groups' numbers."""
        numbers = []
        for i, start in enumerate(starts):
            group = self._new_group(start)
            self._add(group, sizes[i], caps[i], counts[i], links[offsets[i] : offsets[i + 1]])
            numbers.append(group.number)
        return numbers

    def add_group(
        self,
        start_ns: int,
        sizes: Sequence[float],
        caps: Sequence[float],
        counts: Sequence[int],
        offsets: Sequence[int],
        links: Sequence[int],
    ) -> int:
        """One group of flows (at least one) that start together. Returns its number."""
        group = self._new_group(start_ns)
        for i, size in enumerate(sizes):
            self._add(group, size, caps[i], counts[i], links[offsets[i] : offsets[i + 1]])
        return group.number

    def move(self, number: int, start_ns: int) -> None:
        """Moves the group's start to `start_ns`, as if it had been added with it. None of its flows
        may have been forgotten."""
        group = self._groups[number]
        group.start_ns = start_ns
        start = ns_to_tick(start_ns)
        for flow in group.members:
            before, flow.start = flow.start, start
            if not flow.log:  # it has not begun, or was rolled back to before its start
                self._network.await_start(flow)
            self._arrive(min(start, before), (link for link, _ in flow.entries))

    def withdraw(self, number: int) -> None:
        """Takes the group away, as if it had not been added: it starts when time ends, and nobody is
        told of it. Nothing of it may have been forgotten."""
        group = self._groups[number]
        group.reported = None
        self._suspects.discard(group)
        self.move(number, FOREVER_NS)

    def set_capacity(self, at_ns: int, link: int, bytes_per_ns: float) -> None:
        """Sets the link's capacity from `at_ns` to the next change."""
        tick = ns_to_tick(at_ns)
        self._network.links[link].set_capacity(tick, bytes_per_ns)
        self._network.change_capacity(tick, link)
        self._arrive(tick, (link,))

    def completion_ns(self, number: int) -> int:
        """When the group is complete. Runs as far as needed."""
        self.settle()
        group = self._groups[number]
        group.reported = self._run_to_end(group)
        return group.reported

    def changed(self) -> list[tuple[int, int]]:
        """(group, new time) of reported completions that moved, in order of group."""
        self.settle()
        moved = []
        for group in sorted(self._suspects, key=lambda suspect: suspect.number):
            time_ns = self._run_to_end(group)
            if time_ns != group.reported:
                group.reported = time_ns
                moved.append((group.number, time_ns))
        self._suspects.clear()
        return moved

    def commit(self, before_ns: int) -> list[tuple[int, int]]:
        """Runs up to `before_ns` and drops history. Returns (group, completion) of the groups that
        are forgotten for good."""
        self.settle()
        self._horizon = max(self._horizon, ns_to_tick(before_ns))
        self._run_before(self._horizon)
        enough = self._network.recorded - self._swept >= self._sweep_after
        return self._sweep() if enough else []

    def settle(self) -> None:
        """Rolls back what late flows and capacities may concern, then runs forward to where it
        was."""
        if not self._late:
            return
        self._settlings += 1
        for tick, seeds in sorted(self._late):
            self._put_back(tick, *self._reach(tick, seeds))
        self._late.clear()
        self._run_before(self._network.now + 1)

    def start_ns(self, number: int) -> int:
        """When the group starts."""
        return self._groups[number].start_ns

    def end_tick(self, number: int) -> int | None:
        """The exact end, in ticks, of a group that has ended."""
        return self._groups[number].end()

    def history(self) -> History:
        """The history that `_flow_check` examines."""
        flows: list[FlowHistory] = [
            (number, f.start, f.size, f.cap, f.entries, list(f.log), f.done if f.ended else None)
            for number, f in enumerate(self._flows())
        ]
        capacities = [list(link.capacities) for link in self._network.links]
        return self._network.now, self._horizon, flows, capacities

    def retained(self) -> int:
        """Number of objects that history and present hold: flows, log entries, past references,
        queue entries, capacity changes."""
        flows = sum(1 + len(flow.log) for flow in self._flows())
        links = sum(len(link.past) + len(link.capacities) for link in self._network.links)
        queues = self._network.queued() + len(self._suspects)
        return flows + links + queues + len(self._groups)

    # ---- adding ----

    def _new_group(self, start_ns: int) -> Group:
        group = Group(next(self._numbers), start_ns)
        self._groups[group.number] = group
        return group

    def _add(
        self, group: Group, size: float, cap: float, multiplicity: int, route: Iterable[int]
    ) -> None:
        weights: dict[int, int] = {}
        for link in route:
            weights[link] = weights.get(link, 0) + multiplicity
        entries = tuple(sorted(weights.items()))
        flow = FlowRecord(group, ns_to_tick(group.start_ns), float(size), float(cap), entries)
        group.members.append(flow)
        self._network.await_start(flow)
        self._arrive(flow.start, weights)

    def _arrive(self, tick: int, links: Iterable[int]) -> None:
        """Registers a change on `links` at `tick`, which may lie before the simulated time."""
        self._network.recorded += 1
        if tick <= self._network.now:
            self._late.append((tick, tuple(links)))

    def _flows(self) -> list[FlowRecord]:
        return [flow for group in self._groups.values() for flow in group.members]

    # ---- rollback ----

    def _reach(self, tick: int, seeds: Iterable[int]) -> tuple[list[FlowRecord], set[int]]:
        """The flows that a change on `seeds` at `tick` may concern, and their links.

        Flows that an earlier late arrival of this settling has put back are skipped. That arrival
        was at a lower tick, and from then on no other flow is on their links. They will be run to
        this tick before anything of this reach happens.
        """
        links = set(seeds)
        stack = list(links)
        flows: list[FlowRecord] = []
        while stack:
            link = self._network.links[stack.pop()]
            near = []
            while link.past and (link.past[-1].done or 0) >= tick:
                near.append(link.past.pop())
            for flow in (*near, *link.active):
                if flow.rolled == self._settlings:
                    continue
                flow.rolled = self._settlings
                flows.append(flow)
                fresh = [other for other, _ in flow.entries if other not in links]
                links.update(fresh)
                stack.extend(fresh)
        return flows, links

    def _put_back(self, tick: int, flows: list[FlowRecord], links: set[int]) -> None:
        """Restores the flows to their state just before `tick`."""
        self.rollbacks += bool(flows)
        left: set[Component] = set()
        again = Component(set())
        for flow in flows:
            if flow.group.reported is not None:
                self._suspects.add(flow.group)
            if flow.component is not None:
                flow.component.flows.discard(flow)
                left.add(flow.component)
            self._restore(flow, tick, again)
        for component in left:
            self._network.schedule(component)
        again.lost = len(again.flows)
        self._network.schedule(again)
        for link in links:
            for since, _ in self._network.links[link].capacities:
                if tick <= since <= self._network.now:
                    self._network.change_capacity(since, link)

    def _restore(self, flow: FlowRecord, tick: int, component: Component) -> None:
        active = [self._network.links[link].active for link, _ in flow.entries]
        if flow.cut(tick):
            flow.component = component
            component.flows.add(flow)
            for flows in active:
                flows.add(flow)
        else:
            flow.component = None
            for flows in active:
                flows.discard(flow)
            self._network.await_start(flow)

    # ---- running and forgetting ----

    def _run_before(self, horizon: int) -> None:
        while (tick := self._network.next_tick()) is not None and tick < horizon:
            self._network.step(tick)

    def _run_to_end(self, group: Group) -> int:
        """The group's completion in nanoseconds."""
        while (end := group.end()) is None:
            tick = self._network.next_tick()
            assert tick is not None  # a flow that has not ended has a future event
            self._network.step(tick)
        return tick_to_ns(end)

    def _sweep(self) -> list[tuple[int, int]]:
        """Drops what no rollback can need. It runs when as much has been recorded as the last sweep
        left, so it costs O(1) per record.

        A group whose reported completion moved stays until `changed` has returned it.
        """
        gone = []
        horizon = self._horizon
        for group in list(self._groups.values()):
            members = []
            for flow in group.members:
                if flow.ended and flow.done is not None and flow.done < horizon:
                    group.latest = max(group.latest, flow.done)
                else:
                    flow.forget(horizon)
                    members.append(flow)
            group.members = members
            time_ns = tick_to_ns(group.latest)
            if members or (group in self._suspects and group.reported != time_ns):
                continue
            self._suspects.discard(group)
            del self._groups[group.number]
            gone.append((group.number, time_ns))
        for link in self._network.links:
            link.forget(horizon)
        self._swept = self._network.recorded
        self._sweep_after = max(_SWEEP_AT_LEAST, self.retained())
        return gone
