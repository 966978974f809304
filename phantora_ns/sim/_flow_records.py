"""The flow simulator's Python engine: its records of groups, flows, components and links.

Why it exists: a rollback only cuts logs (`_flow_engine.py`). So the records define how a log is cut,
and what a flow was doing at any tick.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phantora_ns.sim._flow_time import bytes_left, end_tick

BEGINNING = -(1 << 200)  # earliest tick, before any start


class Group:
    """The flows behind a handle. They start together; the group is complete when its last one is."""

    __slots__ = ("number", "start_ns", "members", "latest", "reported")

    def __init__(self, number: int, start_ns: int) -> None:
        self.number, self.start_ns = number, start_ns
        self.members: list[FlowRecord] = []  # members that have not been forgotten
        self.latest = BEGINNING  # the last end of forgotten members
        self.reported: int | None = None

    def end(self) -> int | None:
        """The tick of the last end; None while a member has not ended."""
        ends = [flow.done for flow in self.members if flow.ended and flow.done is not None]
        if len(ends) < len(self.members):
            return None
        return max([self.latest, *ends])


class FlowRecord:
    """A flow and its log of (tick, bytes left, rate), one entry per change of its rate; the last
    entry is its present state.

    `done` is the tick of its end. It is a forecast while the flow is active, and final (until a
    rollback) once the flow has `ended`. `rolled`: the number of the last settling that put it back.
    """

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
        "pending",
    )

    def __init__(
        self,
        group: Group,
        start: int,
        size: float,
        cap: float,
        entries: tuple[tuple[int, int], ...],
    ) -> None:
        self.group, self.start, self.size, self.cap, self.entries = group, start, size, cap, entries
        self.log: list[tuple[int, float, float]] = []
        self.done: int | None = None
        self.ended = False
        self.component: Component | None = None  # while it is active
        self.rolled = 0
        self.pending: tuple[int, int, FlowRecord] | None = None  # its entry in the queue of starts

    def cut(self, tick: int) -> bool:
        """Rolls the flow back to just before `tick`. Returns whether it had begun by then."""
        self.ended, self.done = False, None
        while self.log and self.log[-1][0] >= tick:
            self.log.pop()
        if self.log:
            self.done = end_tick(*self.log[-1])
        return bool(self.log)

    def take_rate(self, tick: int, rate: float) -> bool:
        """Sets the flow's rate from `tick` on. Returns whether the rate is new. An unchanged rate
        gets no entry: see rule 3 of `_flow_time`."""
        left = self.size
        if self.log:
            since, left, old = self.log[-1]
            if rate == old:
                return False
            left = bytes_left(left, old, tick - since)
        self.log.append((tick, left, rate))
        self.done = end_tick(tick, left, rate)
        return True

    def forget(self, before: int) -> None:
        """Drops the log entries that no rollback to `before` or later needs."""
        log = self.log
        del log[: next((i for i in range(len(log) - 1, 0, -1) if log[i][0] < before), 0)]


class Component:
    """Flows whose rates are computed together. `lost`: how many have left since it was last
    split."""

    __slots__ = ("flows", "lost", "queued")

    def __init__(self, flows: set[FlowRecord]) -> None:
        self.flows, self.lost = flows, 0
        self.queued: tuple[int, int, Component] | None = None  # its entry in the event queue

    def first_end(self) -> int | None:
        """The tick of the first end of its flows."""
        return min((flow.done for flow in self.flows if flow.done is not None), default=None)


@dataclass
class Link:
    """One link: capacities by tick, active flows, and ended flows that a rollback may restore, in
    order of end."""

    capacities: list[tuple[int, float]]  # (tick from which it holds, bytes/ns), by tick
    active: set[FlowRecord] = field(default_factory=set)
    past: list[FlowRecord] = field(default_factory=list)

    def capacity(self, tick: int) -> float:
        """Bytes/ns at `tick`."""
        for since, value in reversed(self.capacities):
            if since <= tick:
                return value
        raise AssertionError("a link has a capacity from the beginning of time")

    def set_capacity(self, tick: int, bytes_per_ns: float) -> None:
        """Sets the capacity from `tick` on; replaces a value set for the same tick."""
        others = [entry for entry in self.capacities if entry[0] != tick]
        self.capacities = sorted([*others, (tick, bytes_per_ns)])

    def forget(self, before: int) -> None:
        """Drops what no rollback to `before` or later needs."""
        self.past = [flow for flow in self.past if flow.done is not None and flow.done >= before]
        since = [tick for tick, _ in self.capacities]
        del self.capacities[: max(i for i, tick in enumerate(since) if tick < before)]
