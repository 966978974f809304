"""Communicators in the hub: how they form, split and end, and the values that pass through them.

Why it exists: forming a communicator is a rendezvous of messages (by unique id, or by the order of
splits), while the event graph knows only the times. Values travel with operations, while the event
graph decides which operations match. This part connects the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from phantora_ns.hub import messages
from phantora_ns.hub.decoding import BadMessage
from phantora_ns.hub.nccl_release import MixedReleases, NcclRelease
from phantora_ns.hub.payload import Exchange
from phantora_ns.hub.registry import Client, Group, Meeting, split_members
from phantora_ns.hub.requests import Joining, Splitting
from phantora_ns.protocol import Collective, OpFlag
from phantora_ns.sim.graph import (
    Communicator,
    EventGraph,
    ExpectedOverlap,
    Mismatch,
    Op,
    Transfer,
)

MAX_RANKS = 1 << 20
"""Largest number of ranks in a communicator."""
MAX_RESULTS = 65536
"""Results kept per client for later FETCHes; the oldest are dropped first."""
MAX_VALUE_BYTES = 256 << 20
"""Values kept for later FETCHes of all clients; the oldest are dropped first. A client need not fetch
what it never reads."""
MAX_UNFINISHED_BYTES = 1 << 30
"""Values kept of operations that some member has not issued yet. Values beyond it are dropped, and
counted when they are requested."""


class JobError(Exception):
    """An error of the job itself, on which real NCCL would hang or fail. `members`: the clients that
    it concerns."""

    def __init__(self, text: str, members: Iterable[int]) -> None:
        super().__init__(text)
        self.members = tuple(members)


class Waiter(NamedTuple):
    """A FETCH: a client's request for one rank's result of an exchange."""

    client: Client
    number: int
    exchange: Exchange
    rank: int

    def result(self) -> bytes:
        """The content of the receive buffer."""
        return self.exchange.result(self.rank)

    def unknown(self) -> bool:
        """Whether the content was not computed."""
        return self.exchange.result_unknown()

    def absent(self) -> list[int]:
        """The clients whose part is missing."""
        return self.exchange.absent()

    @property
    def what(self) -> str:
        """The operation, for a person."""
        return self.exchange.what


class Communicators:
    """All communicators of a run, formed and forming."""

    def __init__(
        self, graph: EventGraph, nodes: int, gpus_per_node: int, nccl: NcclRelease
    ) -> None:
        self._graph = graph
        self._nccl = nccl
        self._nodes = nodes
        self._gpus_per_node = gpus_per_node
        self._groups: dict[int, Group] = {}
        self._meetings: dict[bytes, Meeting] = {}
        # Complete exchanges that may still be fetched, oldest first, with their bytes.
        self._kept: dict[Exchange, int] = {}
        self._kept_bytes = 0
        self._unfinished_bytes = 0
        self.expired = 0
        """Results requested after their values had been dropped; answered as having no values."""

    def join(
        self,
        client: Client,
        message: messages.CommInit,
    ) -> Joining:
        """COMM_INIT: `client` comes to the communicator with its `uid`. Raises BadMessage,
        BadExpression, JobError."""
        request, uid, device = message.request, message.uid, message.device
        rank, size = message.rank, message.nranks
        if not 0 <= rank < size <= MAX_RANKS:
            raise BadMessage(f"rank {rank} of a communicator of {size}", request)
        if not (0 <= client.node < self._nodes and 0 <= device < self._gpus_per_node):
            raise BadMessage(f"node {client.node} device {device} is not in the cluster", request)
        if not 0 <= message.nccl < 1 << 31:
            raise BadMessage(f"{message.nccl} is no version of NCCL", request)
        expression = self._graph.expression(client.number, message.expression)
        meeting = self._meetings.get(uid)
        if meeting is None:
            meeting = Meeting(size, self._graph.rendezvous(size))
        if meeting.size != size or rank in meeting.arrivals:
            raise BadMessage(
                f"rank {rank} of {size} does not fit the communicator being formed", request
            )
        if any(arrival[0] is client for arrival in meeting.arrivals.values()):
            raise BadMessage("one process cannot be two ranks of one communicator", request)
        self._graph.join(meeting.vertex, client.number, message.vertex, expression)
        self._meetings[uid] = meeting
        joining = Joining(client, request, meeting.vertex, expression)
        if client.device < 0:
            client.device = device
        meeting.arrivals[rank] = (client, joining, (device, message.nccl))
        if meeting.complete:
            del self._meetings[uid]
            self._complete_init(meeting)
        return joining

    def _complete_init(self, meeting: Meeting) -> None:
        """Forms the communicator when every member has come. Raises JobError."""
        arrivals = [meeting.arrivals[rank] for rank in range(meeting.size)]
        members = [member for member, _, _ in arrivals]
        numbers = [member.number for member in members]
        gpus = [member.node * self._gpus_per_node + local for member, _, (local, _) in arrivals]
        if len(set(gpus)) < meeting.size:
            names = ", ".join(
                f"{member.name} on node {member.node} device {local}"
                for member, _, (local, _) in arrivals
            )
            raise JobError(f"two ranks of one communicator share a GPU: {names}", numbers)
        try:
            self._nccl.meet([(member.name, code) for member, _, (_, code) in arrivals])
        except MixedReleases as error:
            raise JobError(str(error), numbers) from None
        number = self._form(list(zip(members, gpus, strict=True)))
        for _, joining, _ in arrivals:
            joining.group_number = number

    def split(self, client: Client, message: messages.CommSplit) -> Splitting:
        """COMM_SPLIT: `client` comes to its next split of a communicator. Raises BadMessage,
        BadExpression."""
        group = self._group(client, message.comm)
        members = len(group.comm.clients)
        rank = group.comm.ranks[client.number]
        ordinal = group.splits.get(rank, 0)
        meeting = group.open_splits.get(ordinal)
        if meeting is None:
            meeting = Meeting(members, self._graph.rendezvous(members))
        expression = self._graph.expression(client.number, message.expression)
        self._graph.join(meeting.vertex, client.number, message.vertex, expression)
        group.open_splits[ordinal] = meeting
        group.splits[rank] = ordinal + 1
        splitting = Splitting(client, message.request, meeting.vertex, expression)
        meeting.arrivals[rank] = (client, splitting, (message.color, message.key))
        if meeting.complete:
            del group.open_splits[ordinal]
            self._complete_split(group.comm, meeting)
        return splitting

    def _complete_split(self, comm: Communicator, meeting: Meeting) -> None:
        """Forms one communicator per color when every member has come."""
        wishes = {rank: arrival[2] for rank, arrival in meeting.arrivals.items()}
        for members in split_members(wishes).values():
            number = self._form([(meeting.arrivals[rank][0], comm.gpus[rank]) for rank in members])
            for new_rank, rank in enumerate(members):
                splitting = meeting.arrivals[rank][1]
                splitting.group_number = number
                splitting.rank, splitting.size = new_rank, len(members)

    def leave(self, client: Client, number: int) -> None:
        """COMM_FREE. Raises BadMessage."""
        group = self._group(client, number)
        group.left.add(client.number)
        if len(group.left) == len(group.comm.clients):
            del self._groups[number]

    def depart(self, client: Client) -> None:
        """A client has ended: releases its communicators. Those that no other client holds are
        deleted. O(communicators)."""
        for number, group in list(self._groups.items()):
            if client.number in group.comm.ranks:
                group.left.add(client.number)
                if len(group.left) == len(group.comm.clients):
                    del self._groups[number]

    def launch(self, client: Client, message: messages.Ops) -> list[Waiter]:
        """OPS. Returns the fetches that it completes. Raises BadMessage, BadExpression, BadOp,
        JobError."""
        comm = self._group(client, message.comm).comm
        vertex, extra = message.vertex, message.extra
        overlap = ExpectedOverlap(extra.waited_ns or 0) if extra.overlap else None
        ops = [Op(o.kind, o.count_bytes, o.dtype, o.redop, o.peer) for o in message.ops]
        expression = self._graph.expression(client.number, message.expression)
        for op, sent in zip(ops, message.ops, strict=True):
            payload = sent.payload
            if payload is not None:
                comm.validate((op,))
                if len(payload) != _exchange(op, len(comm.clients)).send_bytes():
                    raise BadMessage(f"{op.describe()} with a payload of {len(payload)} bytes")
        try:
            transfers = self._graph.launch(comm, client.number, vertex, expression, ops, overlap)
        except Mismatch as error:
            raise JobError(
                f"the members of a communicator disagree: {error}", comm.clients
            ) from None
        for index, sent in enumerate(message.ops):
            if sent.payload is not None or sent.flags & (OpFlag.WANTS_RESULT | OpFlag.UNDEFINED):
                transfer, key = transfers[index], (vertex, index)
                self._take_values(client, key, comm, transfer, ops[index], sent)
        ready: list[Waiter] = []
        # After the loop, because a rank that sends to itself issues both halves in this launch.
        for transfer in transfers:
            exchange = transfer.values
            if exchange is not None and transfer.matched:
                transfer.values = None
                ready.extend(self._complete(exchange))
        return ready

    def _take_values(
        self,
        client: Client,
        key: tuple[int, int],
        comm: Communicator,
        transfer: Transfer,
        op: Op,
        sent: messages.Operation,
    ) -> None:
        """Stores the values of one operation of a launch, and whether its result is wanted."""
        rank = comm.ranks[client.number]
        exchange: Exchange | None = transfer.values
        if exchange is None:
            exchange = transfer.values = _exchange(op, len(comm.clients))
            exchange.absent = partial(comm.absent, transfer)
            exchange.what = op.describe()
        if sent.payload is not None and not exchange.expired:
            held_bytes = self._unfinished_bytes + len(sent.payload)
            if held_bytes > MAX_UNFINISHED_BYTES and not transfer.matched:
                self._unfinished_bytes -= exchange.held_bytes()
                exchange.drop()
                exchange.expired = True
            else:
                self._unfinished_bytes = held_bytes
                exchange.payloads[rank] = sent.payload
        if sent.flags & OpFlag.UNDEFINED:
            exchange.unknown.add(rank)
        if sent.flags & OpFlag.WANTS_RESULT:
            self._keep(client, key, exchange, rank)

    def delivered(self, waiter: Waiter) -> None:
        """Records that a fetch was answered. The last one drops the values."""
        exchange = waiter.exchange
        exchange.wanted -= 1
        self.expired += exchange.expired
        if exchange.wanted <= 0 and exchange in self._kept:
            self._kept_bytes -= self._kept.pop(exchange)
            exchange.drop()

    def fetch(self, client: Client, message: messages.Fetch) -> Waiter:
        """FETCH: which result the client waits for. If the exchange is not complete yet, the
        `launch` that completes it returns the waiter. Raises BadMessage."""
        request, vertex, index = message.request, message.vertex, message.index
        entry = client.results.pop((vertex, index), None)
        if entry is None and not 0 < vertex <= client.results_dropped_to:
            raise BadMessage(
                f"operation {index} of vertex {vertex} has no result to fetch", request
            )
        exchange, rank = entry or (_EXPIRED, 0)
        waiter = Waiter(client, request, exchange, rank)
        if not exchange.complete:
            exchange.waiters.append(waiter)
        return waiter

    def _keep(self, client: Client, key: tuple[int, int], exchange: Exchange, rank: int) -> None:
        if len(client.results) >= MAX_RESULTS:
            oldest = next(iter(client.results))
            client.results_dropped_to = oldest[0]
            client.results.pop(oldest)[0].wanted -= 1
        client.results[key] = (exchange, rank)
        exchange.wanted += 1

    def _complete(self, exchange: Exchange) -> list[Waiter]:
        """Completes an exchange whose values have all come; returns its waiters. The values are kept
        for later FETCHes, within the budget."""
        exchange.complete = True
        exchange.absent = list  # no member is missing; the values outlive the transfer
        self._unfinished_bytes -= exchange.held_bytes()
        waiters, exchange.waiters = exchange.waiters, []
        if exchange.wanted and exchange.payloads:
            held = self._kept[exchange] = exchange.held_bytes()
            self._kept_bytes += held
            while self._kept_bytes > MAX_VALUE_BYTES and len(self._kept) > 1:
                oldest = next(iter(self._kept))
                self._kept_bytes -= self._kept.pop(oldest)
                oldest.drop()
                oldest.expired = True
        return waiters

    def _group(self, client: Client, number: int) -> Group:
        group = self._groups.get(number)
        if group is None or client.number not in group.comm.ranks or client.number in group.left:
            raise BadMessage(f"communicator {number} is not one of this process")
        return group

    def _form(self, members: list[tuple[Client, int]]) -> int:
        comm = self._graph.communicator(
            [client.number for client, _ in members],
            [gpu for _, gpu in members],
            [client.name for client, _ in members],
        )
        self._groups[comm.number] = Group(comm)
        return comm.number


def _exchange(op: Op, size: int) -> Exchange:
    return Exchange(
        op.kind,
        op.count_bytes,
        op.dtype,
        op.redop,
        op.peer,
        1 if op.kind in (Collective.SEND, Collective.RECV) else size,
    )


_EXPIRED = Exchange(Collective.SEND, 0, 0, -1, -1, 1)
"""Represents results that have been dropped."""
_EXPIRED.complete = _EXPIRED.expired = True
