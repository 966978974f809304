"""Communicators in the hub: how they form, split and end, and the values that pass through them.

Why it exists: forming a communicator is a rendezvous of messages (by unique id, or by the order of
splits), while the event graph knows only the times. Values travel with operations, while the event
graph decides which operations match. This part connects the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import msgspec

from phantora_ns.hub import messages
from phantora_ns.hub.decoding import BadMessage
from phantora_ns.hub.folding import ADVICE, CannotFold, Folding, Members
from phantora_ns.hub.nccl_release import MixedReleases, NcclRelease
from phantora_ns.hub.payload import Exchange
from phantora_ns.hub.registry import Absent, Client, Group, Meeting, split_members
from phantora_ns.hub.requests import Joining, Splitting
from phantora_ns.hub.witnesses import meets_everyone
from phantora_ns.protocol import Collective, OpFlag
from phantora_ns.sim.graph import (
    FROM_ROOT,
    ROOTED,
    Communicator,
    EventGraph,
    ExpectedOverlap,
    Mismatch,
    Op,
    Rendezvous,
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
        self,
        graph: EventGraph,
        nodes: int,
        gpus_per_node: int,
        nccl: NcclRelease,
        folding: Folding | None = None,
    ) -> None:
        self._graph = graph
        self._folding = folding
        self._nccl = nccl
        self._nodes = nodes
        self._gpus_per_node = gpus_per_node
        self._groups: dict[int, Group] = {}
        self._meetings: dict[bytes, Meeting] = {}
        self._used: set[bytes] = set()
        """The identifiers of meetings that were complete; NCCL serves each once."""
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
        meeting = self._meetings.get(uid)
        if uid in self._used or (meeting is not None and meeting.deserted_by(rank)):
            raise JobError(
                f"{client.name} brings an old NCCL identifier: its place in that communicator was taken "
                "before; in the job; a store that outlives a restart of the ranks may have kept it",
                [client.number],
            )
        expression = self._graph.expression(client.number, message.expression)
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
        meeting.arrivals[rank] = (client, joining, message)
        if meeting.complete or self._all_running(meeting):
            del self._meetings[uid]
            self._used.add(uid)
            self._complete_init(meeting)
        return joining

    def _all_running(self, meeting: Meeting) -> bool:
        """Whether every member of a meeting has come that runs, when some do not."""
        if self._folding is None:
            return False
        came = {rank: arrival[0] for rank, arrival in meeting.arrivals.items()}
        return self._folding.fills(came, meeting.size)

    def _complete_init(self, meeting: Meeting) -> None:
        """Forms the communicator when every member has come. Raises JobError, CannotFold."""
        arrivals = [arrival for _, arrival in sorted(meeting.arrivals.items())]
        numbers = [client.number for client, _, _ in arrivals]
        devices: dict[int, int] = {client.number: message.device for client, _, message in arrivals}
        gpus = {
            client.node * self._gpus_per_node + devices[client.number] for client, *_ in arrivals
        }
        if len(gpus) < len(arrivals):
            names = ", ".join(
                f"{client.name} on node {client.node} device {devices[client.number]}"
                for client, *_ in arrivals
            )
            raise JobError(f"two ranks of one communicator share a GPU: {names}", numbers)
        try:
            self._nccl.meet([(client.name, message.nccl) for client, _, message in arrivals])
        except MixedReleases as error:
            raise JobError(str(error), numbers) from None
        members = Members([client for client, *_ in arrivals], False)
        if self._folding is not None:
            came = {rank: arrival[0] for rank, arrival in meeting.arrivals.items()}
            members = self._folding.members(came, meeting.size)

        def gpu_of(seat: Client | Absent) -> int:
            runs = seat.of if isinstance(seat, Absent) else seat
            return seat.node * self._gpus_per_node + devices[runs.number]

        number = self._form_all(members, gpu_of)
        for _, joining, _ in arrivals:
            joining.group_number = number
        self._bring_absent(meeting, members.whole)

    def _form_all(self, members: Members, gpu_of: Callable[[Client | Absent], int]) -> int:
        """Forms a communicator, and those like it of ranks that do not run. Returns the first's
        number."""
        number = self._form(members, gpu_of)
        for seat in members.seats:
            if isinstance(seat, Absent):
                seat.groups[number] = number
        if not members.whole:
            running = [seat for seat in members.seats if isinstance(seat, Client)]
            for absent in zip(*(client.absent for client in running)):
                own = self._form(Members(list(absent), False), gpu_of)
                for one in absent:
                    one.groups[number] = own
        return number

    def _bring_absent(self, meeting: Meeting, whole: bool) -> None:
        """Ranks that do not run come to a meeting when those that stand for them have. `whole`: they
        come to the same one; else each copy of the job's pattern has its own."""
        if self._folding is None:
            return
        own: dict[int, Rendezvous] = {}
        for client, request, message in meeting.arrivals.values():
            request.likeness = self._folding.likeness
            for at, absent in enumerate(client.absent):
                vertex = meeting.vertex
                if not whole:
                    vertex = own.setdefault(at, self._graph.rendezvous(meeting.size))
                expression = self._graph.expression(absent.number, message.expression)
                self._graph.join(vertex, absent.number, message.vertex, expression)
                request.others.append((absent, vertex, expression))

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
        meeting.arrivals[rank] = (client, splitting, message)
        if len(meeting.arrivals) == group.running:
            del group.open_splits[ordinal]
            self._complete_split(group, meeting)
        return splitting

    def _complete_split(self, group: Group, meeting: Meeting) -> None:
        """Forms one communicator per color when every member has come. Raises CannotFold."""

        def gpu_of(seat: Client | Absent) -> int:
            # an absent rank has its representative's device, which may have released the communicator
            runs = seat.of if isinstance(seat, Absent) else seat
            gpu = group.comm.gpus[group.comm.ranks[runs.number]]
            return seat.node * self._gpus_per_node + gpu % self._gpus_per_node

        wishes = {
            rank: (message.color, message.key) for rank, (_, _, message) in meeting.arrivals.items()
        }
        for ranks in split_members(wishes).values():
            came = [meeting.arrivals[rank][0] for rank in ranks]
            members = Members(list(came), False)
            if self._folding is not None and group.whole:
                members = self._folding.part(came)
            number = self._form_all(members, gpu_of)
            for rank in ranks:
                client, splitting, _ = meeting.arrivals[rank]
                splitting.group_number = number
                splitting.rank, splitting.size = members.seats.index(client), len(members.seats)
        self._bring_absent(meeting, group.whole)

    def leave(self, client: Client, number: int) -> None:
        """COMM_FREE. Raises BadMessage."""
        self._group(client, number)
        for absent in client.absent:
            self._release(absent.groups.pop(number), absent.number, client.clock_ns)
        self._release(number, client.number, client.clock_ns)

    def _release(self, number: int, member: int, at_ns: int) -> None:
        """A member has released a communicator. One that no other holds is deleted."""
        group = self._groups[number]
        group.left[member] = at_ns
        if len(group.left) == len(group.comm.clients):
            del self._groups[number]
        self._leave_to_roots(group)

    def _leave_to_roots(self, group: Group) -> None:
        """Begins the small broadcasts whose receivers have all left, whether or not their root has."""
        comm, left = group.comm, group.left
        if len(left) < len(comm.clients) - 1:
            return
        for root, transfers in comm.begun_alone().items():
            others = [at for client, at in left.items() if client != comm.clients[root]]
            if len(others) == len(comm.clients) - 1:
                for transfer in self._graph.leave_to_root(comm, transfers, max(others, default=0)):
                    self._drop_values(transfer)

    def _drop_values(self, transfer: Transfer) -> None:
        """Drops the values of an operation that nobody receives."""
        exchange: Exchange | None = transfer.values
        transfer.values = None
        if exchange is not None:
            self._unfinished_bytes -= exchange.held_bytes()
            exchange.drop()

    def depart(self, client: Client) -> None:
        """A client has ended: releases its communicators. O(communicators)."""
        for number, group in list(self._groups.items()):
            for member in client.numbers():
                if member in group.comm.ranks and member not in group.left:
                    self._release(number, member, client.end_ns())

    def launch(self, client: Client, message: messages.Ops) -> list[Waiter]:
        """OPS. Returns the fetches that it completes. Raises BadMessage, BadExpression, BadOp,
        JobError, CannotFold."""
        group = self._group(client, message.comm)
        comm = group.comm
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
            raise _disagreement(error, group) from None
        for index, sent in enumerate(message.ops):
            if sent.payload is not None or sent.flags & (OpFlag.WANTS_RESULT | OpFlag.UNDEFINED):
                transfer = transfers[index]
                self._take_values(comm, comm.ranks[client.number], transfer, ops[index], sent)
                if sent.flags & OpFlag.WANTS_RESULT:
                    rank = comm.ranks[client.number]
                    self._keep(client, (vertex, index), transfer.values, rank)
        for absent in client.absent:
            transfers += self._launch_absent(absent, message, overlap)
        ready: list[Waiter] = []
        # After the loop, because a rank that sends to itself issues both halves in this launch.
        for transfer in transfers:
            exchange = transfer.values
            if exchange is not None and transfer.matched:
                transfer.values = None
                ready.extend(self._complete(exchange))
        if group.left:
            numbers = {message.comm, *(absent.groups[message.comm] for absent in client.absent)}
            for number in sorted(numbers):
                self._leave_to_roots(self._groups[number])
        return ready

    def _launch_absent(
        self, absent: Absent, message: messages.Ops, overlap: ExpectedOverlap | None
    ) -> list[Transfer]:
        """OPS of a rank that does not run: what its representative launches, on its own communicator.
        It sends the same values, and reads none. Raises JobError, CannotFold."""
        assert self._folding is not None
        group = self._groups[absent.groups[message.comm]]
        comm, ops = group.comm, []
        issued = message.ops
        if group.whole:
            issued = _roots_exchanged(
                issued, comm.ranks[absent.of.number], comm.ranks[absent.number]
            )
        moves = group.whole and not meets_everyone(issued, len(group.ranks))
        for sent in issued:
            op = Op(sent.kind, sent.count_bytes, sent.dtype, sent.redop, sent.peer)
            if moves and op.kind >= Collective.SEND:
                op = op._replace(peer=self._folding.moved(group.ranks, op.peer, absent))
            ops.append(op)
        expression = self._graph.expression(absent.number, message.expression)
        try:
            transfers = self._graph.launch(
                comm, absent.number, message.vertex, expression, ops, overlap
            )
        except Mismatch as error:
            raise _disagreement(error, group) from None
        rank = comm.ranks[absent.number]
        for transfer, op, sent in zip(transfers, ops, issued, strict=True):
            if sent.payload is not None or sent.flags & OpFlag.UNDEFINED:
                self._take_values(comm, rank, transfer, op, sent)
        return transfers

    def _take_values(
        self,
        comm: Communicator,
        rank: int,
        transfer: Transfer,
        op: Op,
        sent: messages.Operation,
    ) -> None:
        """Stores the values of one operation of a launch."""
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

    def _form(self, members: Members, gpu_of: Callable[[Client | Absent], int]) -> int:
        seats = members.seats
        comm = self._graph.communicator(
            [seat.number for seat in seats],
            [gpu_of(seat) for seat in seats],
            [seat.name for seat in seats],
        )
        ranks = tuple(seat.rank for seat in seats)
        running = sum(isinstance(seat, Client) for seat in seats)
        group = self._groups[comm.number] = Group(comm, ranks, running, members.whole)
        if self._folding is not None:
            for seat in seats:
                if isinstance(seat, Client):
                    self._folding.witnesses.form(seat, group)
        return comm.number


def _disagreement(error: Mismatch, group: Group) -> JobError | CannotFold:
    """Whose mistake it is when members of a communicator disagree."""
    if group.running == len(group.ranks):
        return JobError(f"the members of a communicator disagree: {error}", group.comm.clients)
    return CannotFold(
        f"this job cannot be folded: if ranks that do not run do what others of their class do, the members "
        f"of a communicator disagree: {error}; in the job; {ADVICE}"
    )


def _roots_exchanged(
    ops: list[messages.Operation], own: int, other: int
) -> list[messages.Operation]:
    """The operations of a launch, when rank `other` does what rank `own` does. Where each rank is the
    root of one operation, they exchange their parts."""
    roots = [at for at, op in enumerate(ops) if op.kind in ROOTED and op.peer == own]
    others = [at for at, op in enumerate(ops) if op.kind in ROOTED and op.peer == other]
    exchanged = list(ops)
    for a, b in zip(roots, others):
        for to, of in ((a, b), (b, a)):
            flags = ops[of].flags
            payload = ops[of].payload if ops[to].kind in FROM_ROOT else ops[to].payload
            exchanged[to] = msgspec.structs.replace(ops[to], payload=payload, flags=flags)
    return exchanged


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
