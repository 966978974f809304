"""Communicators: which operation of one rank belongs to which of the others, and the transfers that
come of it.

Why it exists: matching follows NCCL's rules and nothing else (collectives by their order on the
communicator, sends and receives by order per source and destination), while sim/graph.py knows only
nodes and times. The rule kept here: what is matched depends on each rank's own order of calls,
never on whose message came first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from phantora_ns.sim._graph_nodes import Node

KIND_NAMES = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter", "send", "recv",
)  # fmt: skip
SEND, RECV = 8, 9
ROOTED = frozenset((3, 4, 6, 7))
REDUCING = frozenset((0, 2, 4))
DTYPE_NAMES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "fp16",
    "fp32",
    "fp64",
    "bf16",
    "fp8e4m3",
    "fp8e5m2",
)
REDOP_NAMES = ("sum", "prod", "max", "min", "avg")
MAX_BYTES = 1 << 56
PLAN_CACHE = 1024
"""Different operations remembered per communicator; a job repeats a few dozen every step."""


class Op(NamedTuple):
    """One operation as a rank issues it; the fields are those of OPS in docs/wire-protocol.md."""

    kind: int
    count_bytes: int
    dtype: int
    redop: int
    peer: int

    def describe(self) -> str:
        """For a person: what, how much, of which type."""
        words = [KIND_NAMES[self.kind], f"{self.count_bytes} bytes", DTYPE_NAMES[self.dtype]]
        if self.kind in REDUCING:
            words.append(
                REDOP_NAMES[self.redop]
                if 0 <= self.redop < len(REDOP_NAMES)
                else f"redop {self.redop}"
            )
        if self.kind in ROOTED:
            words.append(f"root {self.peer}")
        return f"{words[0]}({', '.join(words[1:])})"


class Mismatch(ValueError):
    """Members of a communicator disagree about an operation; the text names them and what each
    asked for."""


class BadOp(ValueError):
    """An operation that no communicator could run: unknown kind, negative size, a peer that is no
    member."""


class Course(NamedTuple):
    """What a transfer does once it starts, derived from a Plan (sim/collectives.py)."""

    before_ns: int
    after_ns: int
    # the flows over links that others may use, as the flow simulator's group; None when there are
    # none
    shared: object
    private_ns: int  # the longest of the flows that use no link
    estimate_ns: int  # no flow can end sooner; only the order of work follows it
    algorithm: str
    protocol: str
    channels: int


def course_of(plan, capacities, slowdown: float, group) -> Course:
    """Splits a plan's flows into those that can meet others on a link and those that cannot.
    O(flows).

    `slowdown` divides the rate that NCCL reaches by itself (the flows' own caps), not what links
    carry. `group` is the flow simulator's method of that name.
    """
    shared = []
    private_ns = 0
    estimate_ns = 0
    for flow in plan.flows:
        if not flow.size_bytes:
            continue
        rate = min((capacities[link] for link in flow.links), default=math.inf)
        if flow.rate_cap is not None:
            if slowdown != 1.0:
                flow = replace(flow, rate_cap=flow.rate_cap / slowdown)
            rate = min(rate, flow.rate_cap)
        alone_ns = 0 if rate == math.inf else math.ceil(flow.size_bytes / rate)
        estimate_ns = max(estimate_ns, alone_ns)
        if flow.links:
            shared.append((flow.links, flow.size_bytes, flow.rate_cap, flow.count))
        else:
            private_ns = max(private_ns, alone_ns)
    return Course(
        plan.before_ns,
        plan.after_ns,
        group(shared) if shared else None,
        private_ns,
        estimate_ns,
        plan.algorithm,
        plan.protocol,
        plan.channels,
    )


class Load(NamedTuple):
    """What one rank's launch sends and receives point to point, as (messages, bytes) with other
    ranks, and which ranks it names, its own included. It decides how fast each of its messages can
    go."""

    sent: tuple[int, int]
    received: tuple[int, int]
    ranks: frozenset[int]


def load_of(rank: int, ops: Sequence[Op]) -> Load | None:
    """The load of a launch of `rank`; None when it has no sends or receives. O(ops)."""
    pairs = [op for op in ops if op.kind >= SEND]
    if not pairs:
        return None
    sizes = {
        kind: [op.count_bytes for op in pairs if op.kind == kind and op.peer != rank]
        for kind in (SEND, RECV)
    }
    sent, received = ((len(found), sum(found)) for found in (sizes[SEND], sizes[RECV]))
    return Load(sent, received, frozenset((rank, *(op.peer for op in pairs))))


class Transfer(Node):
    """One matched operation: a collective, or a send with its receive. Its time is its end.

    It starts (`start_ns`) when every member has reached it, its flows at `flows_ns`; `matched` says
    that every member has issued its part. `values` belongs to the caller, who may tie data to it.
    """

    __slots__ = (
        "op",
        "first_rank",
        "ordinal",
        "loads",
        "matched",
        "course",
        "start_ns",
        "flows_ns",
        "handles",
        "asking",
        "values",
        "begins",
        "beside",
    )

    def __init__(self, op: Op, first_rank: int, ordinal: int, contributors: int) -> None:
        super().__init__(contributors)
        self.op = op
        self.first_rank = first_rank
        self.ordinal = ordinal
        self.loads: dict[
            int, Load
        ] = {}  # of a message: of its sender's and its receiver's launch, by SEND and RECV
        self.matched = False
        self.course: Course | None = None
        self.start_ns: int | None = None
        self.flows_ns = 0
        self.handles: tuple = ()
        self.asking = False
        self.values = None
        self.beside = False  # compute is queued beyond its start on some member's GPU
        self.begins: list = []  # where each client reached it, if it is a launch of its own


class Communicator:
    """The ranks that may exchange data with each other: rank i is client `clients[i]` on global GPU
    `gpus[i]`.

    `names` are what to call the members in an error message.
    """

    __slots__ = (
        "number",
        "clients",
        "gpus",
        "names",
        "ranks",
        "_issued",
        "_open",
        "_waiting",
        "_courses",
    )

    def __init__(
        self, number: int, clients: Sequence[int], gpus: Sequence[int], names: Sequence[str]
    ) -> None:
        self.number = number
        self.clients = tuple(clients)
        self.gpus = tuple(gpus)
        self.names = tuple(names)
        self.ranks = {client: rank for rank, client in enumerate(self.clients)}
        self._issued = [0] * len(self.clients)
        self._open: dict[int, tuple[Transfer, set[int]]] = {}
        self._waiting: dict[tuple[int, int, int], deque[Transfer]] = {}
        self._courses: dict[tuple, Course] = {}

    def validate(self, ops: Sequence[Op]) -> None:
        """Raises BadOp when one of `ops` makes no sense on this communicator."""
        size = len(self.clients)
        for op in ops:
            if not 0 <= op.kind <= RECV:
                raise BadOp(f"unknown operation kind {op.kind}")
            if not 0 <= op.count_bytes < MAX_BYTES:
                raise BadOp(f"a size of {op.count_bytes} bytes")
            if not 0 <= op.dtype < len(DTYPE_NAMES):
                raise BadOp(f"unknown data type {op.dtype}")
            if (op.kind in ROOTED or op.kind >= SEND) and not 0 <= op.peer < size:
                raise BadOp(f"peer {op.peer} of a communicator of {size}")

    def match(self, rank: int, op: Op, load: Load | None) -> Transfer:
        """The transfer that `op`, issued next by `rank`, is part of: a new one, or one that others
        have joined.

        `load` is that of the launch. Raises Mismatch when the members disagree.
        """
        if op.kind >= SEND:
            transfer = self._match_pair(rank, op)
            transfer.loads[op.kind] = load
            return transfer
        ordinal = self._issued[rank]
        self._issued[rank] += 1
        entry = self._open.get(ordinal)
        if entry is None:
            entry = self._open[ordinal] = (Transfer(op, rank, ordinal, len(self.clients)), set())
        transfer, joined = entry
        first = transfer.op
        alike = (
            first.kind == op.kind
            and first.count_bytes == op.count_bytes
            and first.dtype == op.dtype
        )
        if (
            not alike
            or (op.kind in ROOTED and first.peer != op.peer)
            or (op.kind in REDUCING and first.redop != op.redop)
        ):
            raise self._mismatch(
                f"collective {ordinal} of communicator {self.number}",
                (transfer.first_rank, first),
                (rank, op),
            )
        joined.add(rank)
        if len(joined) == len(self.clients):
            transfer.matched = True
            del self._open[ordinal]
        return transfer

    def absent(self, transfer: Transfer) -> list[int]:
        """The clients that have not issued their part of `transfer`, in rank order."""
        if transfer.matched:
            return []
        if transfer.op.kind >= SEND:
            return [self.clients[transfer.op.peer]]
        _, joined = self._open[transfer.ordinal]
        return [client for rank, client in enumerate(self.clients) if rank not in joined]

    def course(self, transfer: Transfer, collectives, capacities, beside: float, group) -> Course:
        """What `transfer` does, from the collective model; remembered, since a job repeats its
        operations.

        `beside`: the share by which compute beside it slows communication; `group`: see course_of.
        """
        op = transfer.op
        if op.kind >= SEND:
            source, destination, _ = self._pair_key(transfer.first_rank, op)
            sender, receiver = transfer.loads[SEND], transfer.loads[RECV]
            transfer.loads = {}
            ranks = len(sender.ranks | receiver.ranks)
            key = (
                source,
                destination,
                op.count_bytes,
                sender.sent,
                receiver.received,
                ranks,
                transfer.beside,
            )
        else:
            key = (op._replace(redop=-1), transfer.beside)
        course = self._courses.get(key)
        if course is None:
            if op.kind >= SEND:
                plan = collectives.plan_message(
                    self.gpus[source], self.gpus[destination], op.count_bytes, sent=sender.sent, received=receiver.received,
                    gpus=ranks, members=self.gpus,
                )  # fmt: skip
            else:
                plan = collectives.plan(
                    op.kind, self.gpus, op.count_bytes, op.dtype, max(op.peer, 0)
                )
            if len(self._courses) >= PLAN_CACHE:
                self._courses.clear()
            course = self._courses[key] = course_of(
                plan, capacities, 1 + beside if transfer.beside else 1.0, group
            )
        return course

    def _mismatch(self, what: str, *calls: tuple[int, Op]) -> Mismatch:
        """In rank order, so that the text does not depend on who came first."""
        return Mismatch(
            f"{what}: "
            + ", ".join(f"{self.names[rank]} calls {op.describe()}" for rank, op in sorted(calls))
        )

    def _pair_key(self, rank: int, op: Op) -> tuple[int, int, int]:
        return (rank, op.peer, SEND) if op.kind == SEND else (op.peer, rank, RECV)

    def _match_pair(self, rank: int, op: Op) -> Transfer:
        source, destination, own = self._pair_key(rank, op)
        opposite = (source, destination, RECV if own == SEND else SEND)
        queue = self._waiting.get(opposite)
        if queue:
            transfer = queue.popleft()
            transfer.matched = True
            if not queue:
                del self._waiting[opposite]
            if transfer.op.count_bytes != op.count_bytes:
                what = f"message from rank {source} to rank {destination} of communicator {self.number}"
                raise self._mismatch(what, (transfer.first_rank, transfer.op), (rank, op))
            return transfer
        transfer = Transfer(op, rank, 0, 2)
        self._waiting.setdefault((source, destination, own), deque()).append(transfer)
        return transfer
