"""What a transfer does once it starts.

Why it exists: a plan (sim/collectives.py) lists flows. The event graph must know which of them can
meet other flows on a link, because only those can still change the transfer's end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from phantora_ns.sim.collectives import FlowSpec, Plan
from phantora_ns.sim.flows import FlowArguments, FlowGroup


PARTS = 64
"""An overlap is told in so many parts of the communication, so that courses can be kept."""


class Course(NamedTuple):
    """What a transfer does, derived from a Plan."""

    before_ns: int
    after_ns: int
    shared: FlowGroup | None  # the flows over links that others may use
    private_ns: int  # the longest of the flows that use no link
    estimate_ns: int  # the flows' end when no other uses their links, or 1 ns more
    algorithm: str
    protocol: str
    channels: int

    @property
    def length_ns(self) -> int:
        """Its time when no other flow uses its links, or one nanosecond more."""
        return self.before_ns + max(self.private_ns, self.estimate_ns) + self.after_ns

    @property
    def least_ns(self) -> int:
        """A lower bound of its time. The flow simulator rounds an end down that lies just beyond a whole nanosecond
        (sim/_flow_time.py)."""
        return max(0, self.length_ns - 1)


class ExpectedOverlap(NamedTuple):
    """Compute is expected beside a launch of communication, but for its last `waited_ns`, while it
    waits for the end."""

    waited_ns: int

    def longer(self, other: ExpectedOverlap | None) -> ExpectedOverlap:
        """The one with more compute."""
        return self if other is None else min(self, other)

    def parts(self, length_ns: int) -> int:
        """Of communication that takes `length_ns` alone, how many of PARTS compute overlaps."""
        overlapped_ns = max(0, length_ns - self.waited_ns)
        return PARTS if overlapped_ns >= length_ns else PARTS * overlapped_ns // length_ns


class Collectives(Protocol):
    """What the event graph asks of a CollectiveModel (sim/collectives.py)."""

    def plan(
        self, kind: int, gpus: Sequence[int], count_bytes: int, dtype: int, root: int
    ) -> Plan: ...

    def plan_message(
        self,
        a: int,
        b: int,
        size_bytes: int,
        /,
        *,
        sent: tuple[int, int],
        received: tuple[int, int],
        gpus: int,
        members: Sequence[int],
    ) -> Plan: ...


class Courses:
    """Makes courses from plans, for one topology.

    `contention`: the share by which overlapping compute slows communication. `group`: the flow
    simulator's method of that name.
    """

    def __init__(
        self,
        collectives: Collectives,
        capacities: Mapping[int, float],
        group: Callable[[Iterable[FlowArguments]], FlowGroup],
        contention: float = 0.0,
    ) -> None:
        self.collectives = collectives
        self._capacities = capacities
        self._group = group
        self._contention = contention

    def of(self, plan: Plan, parts: int = 0) -> Course:
        """Splits a plan's flows into those that can meet others on a link and those that cannot.

        `parts`: of PARTS of the work, during how many compute overlaps the transfer. Contention
        lowers the rate that NCCL reaches by itself (the flows' own caps), not the capacity of links:
        throughout, so that they end when they would if it did so only in these parts. O(flows).
        """
        slower = 1 + self._contention * parts / PARTS
        shared: list[FlowArguments] = []
        private_ns = 0
        estimate_ns = 0
        for flow in plan.flows:
            if not flow.size_bytes:
                continue
            if slower > 1 and flow.rate_cap is not None:
                flow = replace(flow, rate_cap=flow.rate_cap / slower)
            alone_ns = self._alone_ns(flow)
            estimate_ns = max(estimate_ns, alone_ns)
            if flow.links:
                shared.append((flow.links, flow.size_bytes, flow.rate_cap, flow.count))
            else:
                private_ns = max(private_ns, alone_ns)
        return Course(
            plan.before_ns,
            plan.after_ns,
            self._group(shared) if shared else None,
            private_ns,
            estimate_ns,
            plan.algorithm,
            plan.protocol,
            plan.channels,
        )

    def _alone_ns(self, flow: FlowSpec) -> int:
        rate = min((self._capacities[link] for link in flow.links), default=math.inf)
        if flow.rate_cap is not None:
            rate = min(rate, flow.rate_cap)
        return 0 if rate == math.inf else math.ceil(flow.size_bytes / rate)
