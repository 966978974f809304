"""Nodes and heads of the event graph, and each client's table of them.

Why it exists: the graph's arithmetic is small (a maximum of sums) and runs for every message of
every rank, so its objects are kept apart from the rules about communicators. The rule kept here: a
node's time is a pure function of its terms, so evaluating it again after any of them moved gives
what it would have been had the new times been known first.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from phantora_ns.sim.contention import Activity

MAX_SPAN_NS = 1 << 56
"""Largest lag or work accepted in one head entry (over two years): keeps sums within 64 bits
whatever a client sends."""

MAX_ID_GAP = 1 << 20
"""How far a client's node number may run ahead of the largest before it; retired times are stored
by number."""

MIN_DROP = 4096
"""Forgotten entries are dropped by the page of this many, so that forgetting costs nothing per
message."""


class Soft(NamedTuple):
    """A term that communication on the same GPU may stretch: `work_ns` of compute that begins
    `lag_ns` after `node`.

    `node` is None when its time is final; `lag_ns` then counts from 0. `activity` is the
    communication beside it.
    """

    node: Node | None
    lag_ns: int
    work_ns: int
    drag_ns: int
    activity: Activity

    def begin_ns(self) -> int:
        """When the work begins; the node must be known."""
        return self.lag_ns if self.node is None else self.node.time_ns + self.lag_ns

    def finish_ns(self) -> int:
        """When the work is done."""
        return self.activity.finish_ns(self.begin_ns(), self.work_ns, self.drag_ns)


def _with_soft(soft: Iterable[Soft], time_ns: int, settled_ns: int) -> tuple[int, int]:
    """Takes soft terms into a maximum; what they decide is final once nothing can begin before it
    any more."""
    for term in soft:
        time_ns = max(time_ns, term.finish_ns())
        if term.node is not None and term.node.settled_ns > settled_ns:
            settled_ns = term.node.settled_ns
    return time_ns, max(settled_ns, time_ns)


class Node:
    """A point in virtual time: the maximum over its terms of (their time + weight), never below
    `base_ns`.

    `soft` are terms whose weight depends on the communication beside them. A node with soft terms
    is not final before the lower bound on time stamps has reached its own time: until then
    communication may still begin beside it.

    `settled_ns` lies just after the latest end, over all ancestors, of flows that share links with
    others: once the lower bound on time stamps has reached it, nothing can move this node any more
    (the argument is in sim/graph.py). Both are None until everything the node depends on is known;
    `missing` counts what is not: terms without a time, and contributors that have not come. `told`
    is set by whoever has told a client the time.
    """

    __slots__ = (
        "time_ns",
        "settled_ns",
        "base_ns",
        "terms",
        "soft",
        "dependents",
        "missing",
        "queued",
        "retired",
        "told",
    )

    def __init__(self, contributors: int = 0) -> None:
        self.time_ns: int | None = None
        self.settled_ns: int | None = None
        self.base_ns = 0
        self.terms: dict[Node, int] = {}
        self.soft: list[Soft] = []
        self.dependents: list[Node] = []
        self.missing = contributors
        self.queued = False
        self.retired = False
        self.told = False

    def absorb(self, head: Head) -> None:
        """Adds a head's entries to the terms; two entries over the same node keep the larger
        weight."""
        if head.base_ns > self.base_ns:
            self.base_ns = head.base_ns
        terms = self.terms
        for node, weight in head.terms:
            known = terms.get(node)
            if known is None:
                terms[node] = weight
                node.dependents.append(self)
                if node.time_ns is None:
                    self.missing += 1
            elif weight > known:
                terms[node] = weight
        for term in head.soft:
            self.soft.append(term)
            if term.node is not None:
                term.node.dependents.append(self)
                if term.node.time_ns is None:
                    self.missing += 1

    def reach(self) -> tuple[int, int]:
        """(time_ns, settled_ns) of the maximum over the terms; all of them must be known."""
        time_ns = self.base_ns
        settled_ns = 0
        for node, weight in self.terms.items():
            reached = node.time_ns + weight
            if reached > time_ns:
                time_ns = reached
            if node.settled_ns > settled_ns:
                settled_ns = node.settled_ns
        return _with_soft(self.soft, time_ns, settled_ns) if self.soft else (time_ns, settled_ns)

    def retire(self) -> None:
        """Forgets how the time came about: it is final. Its dependents keep it as a plain
        number."""
        self.retired = True
        self.terms = {}
        self.soft = []
        self.dependents = []


class Rendezvous(Node):
    """All members of a communicator meet: the latest of them, and one nanosecond.

    The nanosecond makes a rendezvous strictly later than every member, which the answer to a query
    relies on (a node that is not known yet is later than the lower bound on time stamps). NCCL's
    real start-up time is not modelled.
    """

    __slots__ = ()

    def reach(self) -> tuple[int, int]:
        """(time_ns, settled_ns), one nanosecond after the last member."""
        time_ns, settled_ns = super().reach()
        return time_ns + 1, settled_ns


class Begin(Node):
    """Where one client reached a launch of communication: from here to `end`, communication runs on
    its GPU."""

    __slots__ = ("timeline", "end")

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self.timeline = timeline
        self.end: Node | None = None


class PartEnd(Node):
    """The end of a grouped launch on one rank: when the last of its transfers has ended."""

    __slots__ = ("transfers", "begins")

    def __init__(self, transfers: tuple[Node, ...]) -> None:
        super().__init__()
        self.transfers = transfers
        self.begins: list[Begin] = []
        self.absorb(Head(0, [(transfer, 0) for transfer in transfers]))

    @property
    def start_ns(self) -> int:
        """When the first of its transfers started; all of them must have."""
        return min(transfer.start_ns for transfer in self.transfers)

    def retire(self) -> None:
        """As Node.retire; lets go of the transfers too."""
        super().retire()
        self.transfers = ()
        self.begins = []


class Head:
    """A max-plus expression over nodes: the maximum of `base_ns` and (time of node + weight) over
    `terms`.

    Nodes whose time is final are folded into `base_ns` on the way in, so that history is not kept
    alive by heads.
    """

    __slots__ = ("base_ns", "terms", "soft")

    def __init__(
        self, base_ns: int, terms: list[tuple[Node, int]], soft: Sequence[Soft] = ()
    ) -> None:
        self.base_ns = base_ns
        self.terms = terms
        self.soft = soft

    def nodes(self) -> Iterator[Node]:
        """The nodes of all terms, those that were final on the way in apart."""
        for node, _ in self.terms:
            yield node
        for term in self.soft:
            if term.node is not None:
                yield term.node

    def known(self) -> bool:
        """Whether every node of the head has a time."""
        return all(node.time_ns is not None for node in self.nodes())

    def reach(self) -> tuple[int, int] | None:
        """(time_ns, settled_ns), or None while a node of the head is not known."""
        time_ns = self.base_ns
        settled_ns = 0
        for term in self.soft:
            if term.node is not None and term.node.time_ns is None:
                return None
        for node, weight in self.terms:
            if node.time_ns is None:
                return None
            if node.time_ns + weight > time_ns:
                time_ns = node.time_ns + weight
            if node.settled_ns > settled_ns:
                settled_ns = node.settled_ns
        return _with_soft(self.soft, time_ns, settled_ns) if self.soft else (time_ns, settled_ns)


class BadHead(ValueError):
    """A client's message names a node that it never defined, defines one twice, or is no head at
    all."""


class Totals(NamedTuple):
    """What a client's timeline adds up to: communication from where the client reached it, the
    share of it before the last member came, waiting of streams for it by device, and the latest
    time of any node. All ns."""

    comm_ns: int
    comm_wait_ns: int
    exposed_ns: dict[int, int]
    latest_ns: int


def _comm_span_ns(head: Head, end: Node) -> tuple[int, int]:
    """(from `head` to the end of communication, the share of it before all members had come)."""
    reached_ns = head.reach()[0]
    return end.time_ns - reached_ns, max(0, end.start_ns - reached_ns)


class Timeline:
    """One client's nodes by number: live ones as objects, final ones as plain numbers in an array.

    An array entry costs eight bytes; `forget` drops the entries below a number that the client will
    not name again.
    """

    __slots__ = (
        "live",
        "order",
        "past",
        "past_base",
        "largest",
        "keep",
        "activity",
        "pliable",
        "launched",
        "comm_ns",
        "comm_wait_ns",
        "exposed_ns",
        "stalls",
        "latest_ns",
        "follower",
    )

    def __init__(self) -> None:
        self.live: dict[int, Node] = {}
        self.order: deque[int] = deque()
        self.past = array("q", [0])
        self.past_base = 0
        self.largest = 0
        self.keep = 0
        self.activity = Activity()
        self.pliable: dict[
            Node, None
        ] = {}  # nodes with soft terms over this client's work, until they are final
        self.launched: dict[int, Head] = {}
        self.comm_ns = 0
        self.comm_wait_ns = 0
        self.exposed_ns: dict[int, int] = {}
        self.stalls: deque[tuple[int, Head, Head]] = deque()
        self.latest_ns = 0
        self.follower: Callable[[int, Node, Head | None], None] | None = (
            None  # is told each node whose time is final
        )

    def check_new(self, number: object) -> int:
        """`number` if it can name a new node of this client; raises BadHead otherwise."""
        if type(number) is not int or number <= 0:
            raise BadHead(f"node {number!r} is not a positive integer")
        if number in self.live or self._past(number) is not None:
            raise BadHead(f"node {number} is defined twice")
        if number > self.largest + MAX_ID_GAP or number < self.past_base:
            raise BadHead(f"node {number} is out of order")
        return number

    def head(self, flat: object) -> Head:
        """Parses `[node, lag, work or [work, drag], ...]`; raises BadHead when it is none, or names
        an unknown node.

        Empty: time 0.
        """
        if type(flat) is not list or len(flat) % 3:
            raise BadHead("a head is an array of node, lag, work")
        live = self.live
        base_ns = 0
        terms = []
        soft = []
        for i in range(0, len(flat), 3):
            number, lag, work = flat[i : i + 3]
            drag = 0
            if type(work) is list and len(work) == 2:
                work, drag = work
                if type(drag) is not int or not 0 <= drag < MAX_SPAN_NS:
                    raise BadHead("drag is nanoseconds from 0 to 2^56")
            if (
                type(lag) is not int
                or type(work) is not int
                or not (0 <= lag < MAX_SPAN_NS and 0 <= work < MAX_SPAN_NS)
            ):
                raise BadHead("lag and work are nanoseconds from 0 to 2^56")
            if type(number) is not int:
                raise BadHead(f"node {number!r} is not an integer")
            node = live.get(number)
            if node is not None and not node.retired:
                if drag:
                    soft.append(Soft(node, lag, work, drag, self.activity))
                else:
                    terms.append((node, lag + work))
                continue
            past = self._past(number) if node is None else node.time_ns
            if past is None:
                raise BadHead(f"node {number} is not known")
            if drag:
                soft.append(Soft(None, past + lag, work, drag, self.activity))
            elif past + lag + work > base_ns:
                base_ns = past + lag + work
        return Head(base_ns, terms, soft)

    def add(self, number: int, node: Node) -> None:
        """Enters a new node; `number` must have passed `check_new`."""
        self.live[number] = node
        self.order.append(number)
        if number > self.largest:
            self.largest = number

    def retire(self, before_ns: int) -> Iterable[Node]:
        """Moves the oldest nodes whose time can change no more into the array; yields each.
        Amortised O(1) a node."""
        order, live = self.order, self.live
        while order:
            node = live[order[0]]
            if node.settled_ns is None or node.settled_ns > before_ns:
                return
            number = order.popleft()
            del live[number]
            self._store(number, node.time_ns)
            self.latest_ns = max(self.latest_ns, node.time_ns)
            reached = self.launched.pop(number, None)
            if self.follower is not None:
                self.follower(number, node, reached)
            if reached is not None:
                comm_ns, wait_ns = _comm_span_ns(reached, node)
                self.comm_ns += comm_ns
                self.comm_wait_ns += wait_ns
            yield node

    def forget(self, number: int) -> None:
        """The client will name no node below `number` again; the origin only if `number` is 0."""
        self.keep = max(self.keep, number)
        drop = min(number - self.past_base, len(self.past))
        if drop >= MIN_DROP and drop * 2 >= len(self.past):
            del self.past[:drop]
            self.past_base += drop

    def forget_activity(self, before_ns: int) -> None:
        """Drops what is known of communication before `before_ns`, as far as nothing lies beside it
        that is not final, or that the client may still tell of."""
        for node in [node for node in self.pliable if node.retired]:
            del self.pliable[node]
        # All of them: numbers do not follow time.
        named = [
            time_ns for time_ns in self.past[max(0, self.keep - self.past_base) :] if time_ns >= 0
        ]
        named += [
            node.time_ns
            for number, node in self.live.items()
            if number >= self.keep and node.time_ns is not None
        ]
        if self.keep == 0:
            named.append(0)
        before_ns = min(before_ns, *named) if named else before_ns
        heads = [head.soft for _, before, after in self.stalls for head in (before, after)]
        for soft in (*(node.soft for node in self.pliable), *heads):
            for term in soft:
                if term.node is None or term.node.time_ns is not None:
                    before_ns = min(before_ns, term.begin_ns())
        self.activity.forget(before_ns)

    def settle_stalls(self) -> None:
        """Adds up the leading stalls whose both ends are final."""
        stalls = self.stalls
        while stalls:
            device, before, after = stalls[0]
            if any(not node.retired for node in (*before.nodes(), *after.nodes())):
                return
            stalls.popleft()
            self._add_stall(device, before, after)

    def totals(self) -> Totals:
        """Sums over all nodes whose time is known, final or not."""
        comm_ns, wait_ns, latest_ns = self.comm_ns, self.comm_wait_ns, self.latest_ns
        for number, node in self.live.items():
            if node.time_ns is not None:
                latest_ns = max(latest_ns, node.time_ns)
                if number in self.launched:
                    spans = _comm_span_ns(self.launched[number], node)
                    comm_ns, wait_ns = comm_ns + spans[0], wait_ns + spans[1]
        exposed = dict(self.exposed_ns)
        for device, before, after in self.stalls:
            if before.known() and after.known():
                exposed[device] = exposed.get(device, 0) + max(
                    0, after.reach()[0] - before.reach()[0]
                )
        return Totals(comm_ns, wait_ns, exposed, latest_ns)

    def _add_stall(self, device: int, before: Head, after: Head) -> None:
        stalled_ns = max(0, after.reach()[0] - before.reach()[0])
        self.exposed_ns[device] = self.exposed_ns.get(device, 0) + stalled_ns

    def _past(self, number: int) -> int | None:
        if number == 0:
            return 0
        index = number - self.past_base
        if 0 <= index < len(self.past) and self.past[index] >= 0:
            return self.past[index]
        return None

    def _store(self, number: int, time_ns: int) -> None:
        past = self.past
        index = number - self.past_base
        if index < 0:
            return
        if index >= len(past):
            past.extend([-1] * (index - len(past)))
            past.append(min(time_ns, (1 << 63) - 1))
        else:
            past[index] = min(time_ns, (1 << 63) - 1)
