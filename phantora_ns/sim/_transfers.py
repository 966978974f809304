"""The vertices of communication: where clients reach a launch, what it transfers, where it ends.

Why it exists: unlike every other vertex, the end of communication is decided by the flow simulator.
"""

from __future__ import annotations

from typing import Any

from phantora_ns.sim._courses import Course, ExpectedOverlap
from phantora_ns.sim._operations import Load, Op
from phantora_ns.sim._overlap import Overlap
from phantora_ns.sim._vertices import TimeExpression, Vertex
from phantora_ns.sim.flows import Flow


class LaunchBegin(Vertex):
    """The vertex where one client reached a launch of communication. From here to `end`,
    communication runs on its GPU."""

    __slots__ = ("overlap", "end")

    def __init__(self, overlap: Overlap) -> None:
        super().__init__()
        self.overlap = overlap
        self.end: Transfer | LaunchEnd | None = None


class Transfer(Vertex):
    """One matched operation: a collective, or a send with its receive. Its time is its end.

    It starts (`start_ns`) when every member has reached it; its flows start at `flows_ns`
    of the flow simulator, whose time is ahead by `shift_ns`.
    `matched`: every member has issued its part. `values` belongs to the caller, who may attach data
    to it.
    """

    __slots__ = (
        "op",
        "first_rank",
        "ordinal",
        "loads",
        "matched",
        "course",
        "least_ns",
        "alone_ns",
        "start_ns",
        "flows_ns",
        "shift_ns",
        "flow",
        "completion_queued",
        "values",
        "begins",
        "overlap",
    )

    def __init__(self, op: Op, first_rank: int, ordinal: int, contributors: int) -> None:
        super().__init__(contributors)
        self.op = op
        self.first_rank = first_rank
        self.ordinal = ordinal
        self.loads: dict[int, Load] = {}
        """For a message: the loads of its sender's and its receiver's launch, by SEND and RECV."""
        self.matched = False
        self.course: Course | None = None
        self.least_ns = 0
        """A lower bound of its time, from its start; 0 while nothing is known."""
        self.alone_ns = 0
        """As `least_ns`, and the same for every equal operation of the communicator; 0 for a message."""
        self.start_ns: int | None = None
        self.flows_ns = self.shift_ns = 0
        self.flow: Flow | None = None
        self.completion_queued: tuple[int, int, int, Vertex] | None = None
        """Its entry in the work queue, which asks for its completion."""
        self.values: Any = None
        self.begins: list[LaunchBegin] = []  # where clients reached it, if it is a whole launch
        self.overlap: ExpectedOverlap | None = None
        """Where most compute is expected beside it, of all members' GPUs; None: no compute is."""


class LaunchEnd(Vertex):
    """The end of a grouped launch on one rank: when the last of its transfers has ended."""

    __slots__ = ("transfers", "begins")

    def __init__(self, transfers: tuple[Transfer, ...]) -> None:
        super().__init__()
        self.transfers = transfers
        self.begins: list[LaunchBegin] = []
        self.absorb(TimeExpression(0, [(transfer, 0) for transfer in transfers]))

    @property
    def start_ns(self) -> int:
        """When the first of its transfers started; all of them must have started."""
        return min(
            transfer.start_ns for transfer in self.transfers if transfer.start_ns is not None
        )

    def retire(self) -> None:
        """As Vertex.retire; also drops the transfers."""
        super().retire()
        self.transfers = ()
        self.begins = []
