"""Communicators: which operation of one rank belongs to which operation of the others.

Why it exists: matching follows NCCL's rules and nothing else. Collectives match by their order on the
communicator, sends and receives by their order per source and destination. Rule: a match depends on
each rank's own order of calls, never on whose message arrived first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from phantora_ns.protocol import Collective, DataType
from phantora_ns.sim._courses import Course, Courses, ExpectedOverlap
from phantora_ns.sim._operations import (
    MAX_BYTES,
    RECV,
    REDUCING,
    ROOTED,
    SEND,
    BadOp,
    Load,
    Mismatch,
    Op,
)
from phantora_ns.sim._transfers import Transfer
from phantora_ns.sim.collectives import Plan

HELD_BYTES = 4 << 20
"""What NCCL's buffers hold between two ranks: the default of NCCL_BUFFSIZE in NCCL's user guide."""

PLAN_CACHE = 1024
"""Different operations remembered per communicator; a job repeats a few dozen of them every step."""


class Communicator:
    """The ranks that may exchange data with each other: rank i is client `clients[i]` on global GPU
    `gpus[i]`.

    `names`: the members' names for error messages.
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
        "_held_bytes",
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
        self._courses: dict[tuple[object, ...], Course] = {}
        self._held_bytes = 0

    def validate(self, ops: Sequence[Op]) -> None:
        """Raises BadOp when one of `ops` is invalid on this communicator."""
        size = len(self.clients)
        for op in ops:
            if not 0 <= op.kind <= RECV:
                raise BadOp(f"unknown operation kind {op.kind}")
            if not 0 <= op.count_bytes < MAX_BYTES:
                raise BadOp(f"a size of {op.count_bytes} bytes")
            if not 0 <= op.dtype < len(DataType.LABELS):
                raise BadOp(f"unknown data type {op.dtype}")
            if (op.kind in ROOTED or op.kind >= SEND) and not 0 <= op.peer < size:
                raise BadOp(f"peer {op.peer} of a communicator of {size}")

    def match(self, rank: int, op: Op, load: Load | None) -> Transfer:
        """The transfer that `op`, the next operation of `rank`, is part of: a new one, or one that
        other ranks have joined.

        `load` is that of the launch. Raises Mismatch when the members disagree.
        """
        if op.kind < SEND:
            return self._match_collective(rank, op)
        transfer = self._match_message(rank, op)
        assert load is not None
        transfer.loads[op.kind] = load
        return transfer

    def _match_collective(self, rank: int, op: Op) -> Transfer:
        ordinal = self._issued[rank]
        self._issued[rank] += 1
        entry = self._open.get(ordinal)
        if entry is None:
            entry = self._open[ordinal] = (Transfer(op, rank, ordinal, len(self.clients)), set())
        transfer, joined = entry
        first = transfer.op
        if (
            first.kind != op.kind
            or first.count_bytes != op.count_bytes
            or first.dtype != op.dtype
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

    def begun_alone(self) -> dict[int, list[Transfer]]:
        """The broadcasts that their root has begun and no other member, by root, in order."""
        found: dict[int, list[Transfer]] = {}
        for _, (transfer, joined) in sorted(self._open.items()):
            root = transfer.op.peer
            if transfer.op.kind == Collective.BROADCAST and joined == {root}:
                found.setdefault(root, []).append(transfer)
        return found

    def leave_to_root(self, transfers: Sequence[Transfer]) -> list[Transfer]:
        """Matches broadcasts of `begun_alone` to which no other member comes any more, as many as NCCL's buffers hold:
        on a GPU the root's part ends without receivers. Returns those."""
        found = []
        for transfer in transfers:
            if self._held_bytes + transfer.op.count_bytes > HELD_BYTES:
                break
            self._held_bytes += transfer.op.count_bytes
            transfer.matched = True
            del self._open[transfer.ordinal]
            found.append(transfer)
        return found

    def course(self, transfer: Transfer, courses: Courses) -> Course:
        """The course of `transfer`. Courses are cached, because a job repeats its operations."""
        if transfer.op.kind >= SEND:
            return self._message_course(transfer, courses)
        return self._collective_course(transfer.op, transfer.overlap, courses)

    def least_ns(self, transfer: Transfer, courses: Courses) -> int:
        """A lower bound of the time of a transfer that is not matched yet; 0 for a message, which
        depends on its other side's launch too."""
        if transfer.op.kind >= SEND:
            return 0
        return self._collective_course(transfer.op, None, courses).least_ns

    def _collective_course(
        self, op: Op, overlap: ExpectedOverlap | None, courses: Courses
    ) -> Course:
        return self._course(
            (op._replace(redop=-1),),
            overlap,
            courses,
            lambda: courses.collectives.plan(
                op.kind,
                self.gpus,
                op.count_bytes,
                op.dtype,
                op.peer if op.kind in ROOTED else 0,  # of the others it may be anything
            ),
        )

    def _message_course(self, transfer: Transfer, courses: Courses) -> Course:
        op = transfer.op
        source, destination, _ = self._pair_key(transfer.first_rank, op)
        sender, receiver = transfer.loads[SEND], transfer.loads[RECV]
        transfer.loads = {}
        ranks = len(sender.ranks | receiver.ranks)
        load = (sender.sent, receiver.received, ranks)
        return self._course(
            (source, destination, op.count_bytes, *load),
            transfer.overlap,
            courses,
            lambda: courses.collectives.plan_message(
                self.gpus[source],
                self.gpus[destination],
                op.count_bytes,
                sent=sender.sent,
                received=receiver.received,
                gpus=ranks,
                members=self.gpus,
            ),
        )

    def _course(
        self,
        key: tuple[object, ...],
        overlap: ExpectedOverlap | None,
        courses: Courses,
        plan: Callable[[], Plan],
    ) -> Course:
        alone = self._courses.get((*key, 0))
        if alone is None:
            alone = self._remember((*key, 0), courses.of(plan()))
        parts = 0 if overlap is None else overlap.parts(alone.length_ns)
        if not parts:
            return alone
        course = self._courses.get((*key, parts))
        if course is None:
            course = self._remember((*key, parts), courses.of(plan(), parts))
        return course

    def _remember(self, key: tuple[object, ...], course: Course) -> Course:
        if len(self._courses) >= PLAN_CACHE:
            self._courses.clear()
        self._courses[key] = course
        return course

    def _mismatch(self, what: str, *calls: tuple[int, Op]) -> Mismatch:
        """Lists the calls in rank order, so that the text does not depend on the order of arrival."""
        return Mismatch(
            f"{what}: "
            + ", ".join(f"{self.names[rank]} calls {op.describe()}" for rank, op in sorted(calls))
        )

    def _pair_key(self, rank: int, op: Op) -> tuple[int, int, int]:
        return (rank, op.peer, SEND) if op.kind == SEND else (op.peer, rank, RECV)

    def _match_message(self, rank: int, op: Op) -> Transfer:
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
