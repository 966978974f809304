"""Whether the ranks that stand for others do what those would do, as far as running ranks can show.

Why it exists: an absent rank is taken to do what its representative does. Three other members of its
class run as witnesses, or one. Everything that they report is compared with the representative's, one thing
after another: vertices and their time expressions (which hold every kernel's time), communication with
its sizes and values, synchronisations, ends of steps. Queries are left out: which of them a rank can
answer by itself depends on how far the hub knew time when it answered the one before. What a rank does
upon an answer shows in what it reports next.

One witness decides (`Fold.deciding`): it must agree to the end. It is the one that is farthest from the
representative, so shards that become smaller from some rank on are seen. The first and the last member
may differ then, since jobs let them log or save what others do not, and no absent rank is taken for
them; their differences are reported.

Where only the first member runs beside the representative, it decides by what it does, not by when. It
communicates with rank 0 or with ranks of its copy. Rank 0 is the root of broadcasts and finishes them earlier, so
the whole copy does its work at other times than the other copies do.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from phantora_ns.hub import messages
from phantora_ns.hub.registry import Client, Group
from phantora_ns.model.fold import REPRESENTATIVE, Fold
from phantora_ns.protocol import Collective
from phantora_ns.sim.graph import FROM_ROOT, ROOTED, Op

Item = tuple[Any, ...]
"""One thing that a rank reported: its kind, then what must be equal."""


TRAVELLING = ("vertex", "wait")
"""Kinds that travel with some later message, which may be one of a watchdog: their order among
themselves is that of the rank, their order among the others is not."""


COUNTED = (
    "kernel_launches",
    "comm_launches",
    "launches",
    "busy_ns",
    "peak_driver_bytes",
    "torch_peak_allocated",
    "torch_peak_reserved",
)
"""Rank statistics that must be equal in the end: what a rank did without a message."""


def meets_everyone(ops: Sequence[messages.Operation], size: int) -> bool:
    """Whether the sends and receives of a launch name every member of a communicator of `size` ranks,
    the caller included: an all-to-all with sizes of its own. Its peers are the same for every rank. Those
    of other launches are as far away as the representative's. O(ops)."""
    return len(ops) >= size and len({op.peer for op in ops if op.kind >= Collective.SEND}) == size


class Difference(NamedTuple):
    """Where a witness stopped agreeing: after so many things, and what each did then."""

    witness: int
    after: int
    text: str


class Pair:
    """A representative and one of its witnesses: the n-th process of one and the n-th of the other.
    `decides`: whether a difference between them means that the job cannot be folded. `roots`: whether both
    must be the root of the same operations; the first member is that of what its class gets from one rank,
    and the representative never is. `times`: whether they must do everything at the same times."""

    def __init__(
        self, representative: int, witness: int, decides: bool, roots: bool, times: bool = True
    ) -> None:
        self.ranks = representative, witness
        self.decides, self._roots, self._times = decides, roots, times
        self.clients: dict[int, Client] = {}
        """By side."""
        self._left: dict[str, tuple[deque[Item], deque[Item]]] = {
            channel: (deque(), deque()) for channel in (*TRAVELLING, "")
        }
        """What one has reported and the other has not yet, by channel. One of the two is always
        empty."""
        self.compared = 0
        self.difference: Difference | None = None

    def add(self, side: int, item: Item) -> None:
        """The representative (side 0) or the witness (1) has reported something. O(item)."""
        if self.difference is not None or (not self._times and item[0] not in _TIMES):
            return
        if item[0] == "ops" and not self._roots:
            item = item[:-1]
        if not self._times:
            item = _without_times(item)
        left = self._left[item[0] if item[0] in TRAVELLING else ""]
        if not left[1 - side]:
            left[side].append(item)
            return
        both = (left[1 - side].popleft(), item)
        if both[0] != both[1]:
            self._differ(*(both if side else both[::-1]))
        self.compared += 1

    def end(self) -> None:
        """Both have ended: neither may have reported more than the other, nor counted anything else."""
        for left in reversed(self._left.values()):
            if self.difference is None and any(left):
                self._differ(*(items[0] if items else None for items in left))
        if self.difference is None and len(self.clients) == 2:
            own, other = (self.clients[side].statistics() for side in (0, 1))
            for field in COUNTED:
                values = getattr(own, field), getattr(other, field)
                if self.difference is None and values[0] != values[1]:
                    self._differ(*(("end", field, value) for value in values))

    def _differ(self, own: Item | None, other: Item | None) -> None:
        said = [_describe(item) for item in _from_difference(own, other)]
        if own is not None and other is not None and said[0] == said[1]:
            said[1] += _how(own, other)
        text = ", and ".join(f"rank {rank} {what}" for rank, what in zip(self.ranks, said))
        self.difference = Difference(self.ranks[1], self.compared, text)
        for items in self._left.values():
            for left in items:
                left.clear()


class Witnesses:
    """All pairs of a run."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._processes: Counter[int] = Counter()
        self._classes: dict[tuple[int, int], tuple[Pair, ...]] = {}
        """By the representative, and which of its processes."""
        self._members: dict[int, _Member] = {}
        """By client number."""

    def join(self, client: Client) -> None:
        """A process of a rank of the folded job has come."""
        fold, process = self._fold, self._processes[client.rank]
        self._processes[client.rank] += 1
        own = fold.representative(client.rank)
        pairs = self._classes.get((own, process))
        if pairs is None:
            pairs = tuple(self._pairs(own))
            self._classes[own, process] = pairs
        sides = [
            (pair, pair.ranks.index(client.rank)) for pair in pairs if client.rank in pair.ranks
        ]
        for pair, side in sides:
            pair.clients[side] = client
        self._members[client.number] = _Member(pairs, sides, {})

    def _pairs(self, own: int) -> Iterator[Pair]:
        """The pairs of the class of `own`. A first member that decides has two: by what it does, and, only reported,
        by when."""
        fold, deciding = self._fold, self._fold.deciding(own)
        for witness in fold.witnesses(own):
            decides, roots = witness == deciding, fold.member(witness) > 0
            if decides and not fold.last:
                yield Pair(own, witness, True, roots, times=False)
                decides = False
            yield Pair(own, witness, decides, roots)

    def form(self, client: Client, group: Group) -> None:
        """A client is in a new communicator."""
        member = self._members.get(client.number)
        if member is None:
            return
        known = member.communicators
        key: Item = ("whole", group.comm.number)
        if not group.whole:
            ranks = tuple(self._fold.representative(rank) for rank in group.ranks)
            key = ("own", ranks, sum(other[1] == ranks for other, _ in known.values()))
        known[group.comm.number] = key, group

    def take(self, client: Client, message: messages.FromClient) -> str | None:
        """Compares what a client reports. Returns why the job cannot be folded, if that is now
        known."""
        member = self._members.get(client.number)
        if member is None:
            return None
        before = [pair.difference for pair in member.pairs]
        for item in self._items(client, member, message):
            for pair, side in member.sides:
                pair.add(side, item)
        return self._verdict(member.pairs) if None in before else None

    def finish(self) -> str | None:
        """The run has ended. Returns as `take` does."""
        said = None
        for pairs in self._classes.values():
            known = self._verdict(pairs)
            for pair in pairs:
                pair.end()
            said = said or (None if known else self._verdict(pairs))
        return said

    def describe(self) -> dict[str, Any]:
        """For hub.json; docs/report.md has the fields."""
        pairs = [pair for own in self._classes.values() for pair in own]
        found = sorted(pair.difference for pair in pairs if pair.difference is not None)
        return {
            "compared": sum(map(_compared, self._classes.values())),
            "differences": {
                str(one.witness): f"after {one.after} operations: {one.text}" for one in found
            },
        }

    @staticmethod
    def _verdict(pairs: tuple[Pair, ...]) -> str | None:
        """Why the absent ranks of a class may do something else than their representative."""
        found = next((pair.difference for pair in pairs if pair.decides), None)
        if found is None:
            return None
        return (
            f"this job cannot be folded: {found.text}, after {found.after} equal operations; in the job; "
            "use --fold off, or a longer period"
        )

    def _items(
        self, client: Client, member: _Member, message: messages.FromClient
    ) -> Iterator[Item]:
        """What a message reports, without what may differ: clocks, numbers of requests, queries, and with
        which message a definition travels. Freeing a communicator takes no time, and its order is that of
        threads."""
        extra = getattr(message, "extra", None)
        if extra is not None:
            for one in extra.definitions:
                yield "vertex", one.vertex, one.expression
            for stall in extra.stalls:
                yield "wait", stall.device, stall.before, stall.after
        if isinstance(message, messages.Ops):
            known = member.communicators.get(message.comm)
            every = known is not None and meets_everyone(message.ops, len(known[1].ranks))
            ops = [self._op(client, known, op, every) for op in message.ops]
            expected = message.extra.overlap, message.extra.waited_ns
            key = _key(member, message.comm)
            # in a launch with many roots, each rank is the root of another operation
            roles = sorted(role for _, role in ops if role is not None)
            shapes = [shape for shape, _ in ops]
            yield "ops", shapes, key, message.vertex, message.expression, expected, roles
        elif isinstance(message, messages.Sync):
            yield "sync", message.vertex, message.expression
        elif isinstance(message, messages.Times):
            yield "times", message.expressions
        elif isinstance(message, messages.Step):
            yield "step", message.expression, message.busy_ns, message.host_ns
        elif isinstance(message, messages.CommInit):
            yield "init", message.nranks, message.device, message.vertex, message.expression
        elif isinstance(message, messages.CommSplit):
            # Without the color: a group of one copy is split off when its turn comes, and every rank takes
            # part in the turns of all. Whether both have the group shows when it is used.
            key = _key(member, message.comm)
            yield "split", key, message.vertex, message.expression
        elif isinstance(message, messages.Fetch):
            yield "fetch", message.vertex, message.index

    def _op(
        self,
        client: Client,
        known: tuple[Item, Group] | None,
        sent: messages.Operation,
        every: bool,
    ) -> tuple[Item, Item | None]:
        """An operation, as the representative would issue it; and what depends on whether this rank
        is its root, None without a root. `every`: `meets_everyone` of the launch."""
        peer, payload, fold = sent.peer, sent.payload, self._fold
        if known is not None:
            group = known[1]
            if sent.kind in ROOTED:
                own = group.comm.ranks[client.number] == peer
                alike = None if sent.kind in FROM_ROOT else payload
                role = (own, payload or b"" if own and sent.kind in FROM_ROOT else b"", sent.flags)
                return (sent.kind, sent.count_bytes, sent.dtype, sent.redop, peer, alike), role
            pair = sent.kind >= Collective.SEND and not every
            if group.whole and pair and 0 <= peer < len(group.ranks):
                rank = group.ranks[peer]
                number = fold.member(rank) - fold.member(client.rank) + REPRESENTATIVE
                peer = group.ranks.index(fold.at(rank, number % fold.members))
        shape = (sent.kind, sent.count_bytes, sent.dtype, sent.redop, peer, payload, sent.flags)
        return shape, None


class _Member(NamedTuple):
    """A client: the pairs of its class, those in which it is and on which side, and its
    communicators by number, each with what must be equal of it."""

    pairs: tuple[Pair, ...]
    sides: list[tuple[Pair, int]]
    communicators: dict[int, tuple[Item, Group]]


def _compared(pairs: tuple[Pair, ...]) -> int:
    """How much was compared of one class, counted once where a witness has two pairs."""
    by_witness: dict[tuple[int, int], int] = {}
    for pair in pairs:
        by_witness[pair.ranks] = max(pair.compared, by_witness.get(pair.ranks, 0))
    return sum(by_witness.values())


def _key(member: _Member, comm: int) -> Item | None:
    known = member.communicators.get(comm)
    return None if known is None else known[0]


_TIMES = {"ops": (3, 4, 5), "step": (1, 3), "init": (3, 4), "split": (2, 3), "fetch": (1,)}
"""By kind: the fields of an item that depend on when it is done. These are time expressions, the host's time, and
the numbers of vertices, since a rank that knows fewer times defines more of them. Kinds that are not here, such as
"sync", may be missing altogether: a rank that knows that a stream is done does not wait for it."""


def _without_times(item: Item) -> Item:
    """What was done, whenever that was."""
    without = list(item)
    for at in _TIMES[item[0]]:
        without[at] = None
    return tuple(without)


_WORDS = {
    "vertex": "works on a stream",
    "wait": "waits for communication on a stream",
    "sync": "synchronises",
    "times": "asks for the time between events",
    "step": "ends a step",
    "init": "makes a communicator",
    "split": "splits a communicator",
    "fetch": "reads the result of a communication",
}


def _from_difference(own: Item | None, other: Item | None) -> tuple[Item | None, Item | None]:
    """Two launches without the operations that they begin with in common."""
    if own is None or other is None or own[0] != "ops" or other[0] != "ops" or own[1] == other[1]:
        return own, other
    same = 0
    while same < min(len(own[1]), len(other[1])) - 1 and own[1][same] == other[1][same]:
        same += 1
    return (own[0], own[1][same:], *own[2:]), (other[0], other[1][same:], *other[2:])


def _how(own: Item, other: Item) -> str:
    """How two items differ that have the same description."""
    if own[0] == "ops" and [op[4] for op in own[1]] != [op[4] for op in other[1]]:
        return " with another rank"
    if own[0] == "ops" and (own[1] != other[1] or own[6:] != other[6:]):
        return " with other values"
    if own[0] == "ops" and own[2] != other[2]:
        return " on another communicator"
    return " after other work, on the GPU or on the host"


def _describe(item: Item | None) -> str:
    """What a rank did, for a person."""
    if item is None:
        return "does nothing more"
    if item[0] == "end":
        return f"ends with {item[1]} of {item[2]}"
    if item[0] != "ops":
        return _WORDS[item[0]]
    return "calls " + ", ".join(Op(*op[:5]).describe() for op in item[1][:3])
