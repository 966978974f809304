"""The timeline of a run: one graph of max-plus nodes over all clients, with flows where they share
links.

Why it exists: every time in the run is a node (client, number); a node's time is
a maximum over earlier nodes plus constants, except the end of communication, which the flow
simulator decides. The graph is told of nodes in whatever order messages come and must end with the
same times: a time is never adjusted, always evaluated again from its terms, and when the flow
simulator moves a completion every dependent is evaluated again, transfers under way included.

Order of work. Work is kept in a heap by the earliest virtual time it can affect. An effect at time
t reaches only later times (every transfer takes at least a nanosecond), so each pass settles times
from the past to the future and ends. The result does not depend on the heap's ties: it is the one
solution of the equations, which the flow simulator's own law (the same flows in any order of
insertion give the same completions) makes unique.

When a time is final. Let LBTS be a lower bound on the virtual time of anything a client may still
do. Everything still unknown happens at or after LBTS: an unmatched operation starts no sooner than
the member that has yet to come, and what depends on it later still. A flow that starts at or after
LBTS cannot change any rate before LBTS, so a completion before LBTS stays; a node all of whose
ancestors' shared-link communication ended before LBTS is a maximum of sums of such completions and
constants, so it stays as well, however far ahead of LBTS the node itself is. That is the release
rule: `settled_ns <= LBTS`, where `settled_ns` is one nanosecond after the last of those
completions. (The nanosecond, because a completion is rounded to whole nanoseconds, possibly down by
a hair: a flow that starts on it could still touch the hair.) It contains the plain rule, time <=
LBTS: communication lasts at least until its own settling, and ancestors end before a node.
Communication over no shared link (one GPU talking to itself) adds nothing to `settled_ns`: it is
final at once.

Contention. Work with a drag is stretched by communication on its own client's
GPU (sim/contention.py). A node that depends on such work is final only when LBTS has reached its
time, since communication may begin beside it until then; what begins or moves beside it re-times it
like any other change, and reaches only later times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from phantora_ns.sim._graph_comm import BadOp, Communicator, Mismatch, Op, Transfer, load_of
from phantora_ns.sim._graph_nodes import (
    BadHead,
    Begin,
    Head,
    Node,
    PartEnd,
    Rendezvous,
    Timeline,
    Totals,
)

__all__ = [
    "BadHead",
    "BadOp",
    "Communicator",
    "EventGraph",
    "Head",
    "Mismatch",
    "Node",
    "Op",
    "Rendezvous",
    "Totals",
    "Transfer",
]


class EventGraph:
    """All nodes of a run.

    `flows` is a FlowSimulator (sim/flows.py), `collectives` a CollectiveModel (sim/collectives.py),
    `capacities` the link capacities both were built from, `beside` the share by which compute
    beside it slows communication. Methods that tell of something new only enter it; `run` brings
    times up to date.
    """

    def __init__(self, flows, collectives, capacities, beside: float = 0.0) -> None:
        self._flows = flows
        self._collectives = collectives
        self._capacities = capacities
        self._beside = beside
        self._timelines: list[Timeline] = []
        self._owners: dict = {}
        self._heap: list = []
        self._sequence = count()
        self._disturbed = False
        self._communicators = count()
        self.committed_ns = 0
        self.retimed = 0
        """Transfers whose end moved after it had been computed."""
        self.revised = 0
        """Nodes whose time moved after a client had been told it (`Node.told`)."""
        self.late = 0
        """Transfers that came to start, or to move, before the committed horizon: their flows start
        on it, or stay."""

    def add_client(self) -> int:
        """A new client, at virtual time 0; returns its number. O(1)."""
        self._timelines.append(Timeline())
        return len(self._timelines) - 1

    def head(self, client: int, flat: object) -> Head:
        """Parses a head of this client; raises BadHead. O(entries)."""
        return self._timelines[client].head(flat)

    def define(self, client: int, number: int, head: Head) -> Node:
        """A materialised head or a host anchor: t(number) = t(head). Raises BadHead if the number
        is taken."""
        timeline = self._timelines[client]
        timeline.check_new(number)
        node = Node()
        self._absorb(timeline, node, head)
        timeline.add(number, node)
        self._wake(node)
        return node

    def rendezvous(self, contributors: int) -> Rendezvous:
        """A meeting of so many host heads, none of which has come yet."""
        return Rendezvous(contributors)

    def join(self, meeting: Rendezvous, client: int, number: int, head: Head) -> None:
        """`client` comes to `meeting` with its host head; the meeting's time is its node `number`.
        Raises BadHead."""
        timeline = self._timelines[client]
        timeline.check_new(number)
        timeline.add(number, meeting)
        self._contribute(timeline, meeting, head)

    def communicator(
        self, clients: Sequence[int], gpus: Sequence[int], names: Sequence[str]
    ) -> Communicator:
        """A new communicator; numbers are given in order of creation."""
        return Communicator(next(self._communicators), clients, gpus, names)

    def launch(
        self,
        comm: Communicator,
        client: int,
        number: int,
        head: Head,
        ops: Sequence[Op],
        beside: bool = False,
    ) -> list[Transfer]:
        """One launch of `client` on `comm`: every op begins once `head` is reached here and on its
        other members.

        `number` is the end of all of them on this client; `beside`: compute is queued on its GPU
        beyond the launch. Returns one transfer per op. Raises BadHead or BadOp (nothing has
        happened), or Mismatch (the job's own error; the communicator is broken).
        """
        timeline = self._timelines[client]
        timeline.check_new(number)
        comm.validate(ops)
        rank = comm.ranks[client]
        load = load_of(rank, ops)
        transfers = [comm.match(rank, op, load) for op in ops]
        for transfer in transfers:
            transfer.beside |= beside
        if not transfers:
            self.define(client, number, head)
            return transfers
        begin = Begin(timeline)
        self._absorb(timeline, begin, head)
        head = timeline.launched[number] = Head(0, [(begin, 0)])
        end = transfers[0] if len(transfers) == 1 else PartEnd(tuple(dict.fromkeys(transfers)))
        begin.end = end
        end.begins.append(begin)
        timeline.add(number, end)
        self._wake(begin)
        if type(end) is PartEnd:
            self._wake(end)
        for transfer in transfers:
            if transfer.matched and transfer.course is None:
                transfer.course = comm.course(
                    transfer, self._collectives, self._capacities, self._beside, self._flows.group
                )
            self._contribute(timeline, transfer, head)
        return transfers

    def stall(self, client: int, device: int, before: Head, after: Head) -> None:
        """Between these two heads a stream of `device` waited for communication."""
        self._timelines[client].stalls.append((device, before, after))

    def forget(self, client: int, number: int) -> None:
        """The client will name no node below `number` any more, the origin apart."""
        self._timelines[client].forget(number)

    def run(self) -> None:
        """Brings every time that can be known up to date. O(log work) per node touched, plus the
        flow simulator's."""
        heap = self._heap
        while heap or self._disturbed:
            if self._disturbed and (not heap or heap[0][3]):
                self._collect_moves()
                continue
            _, _, node, asking = heappop(heap)
            if asking:
                node.asking = False
                self._finish(node)
                continue
            node.queued = False
            if type(node) is Transfer:
                self._start(node)
            else:
                self._set(node, *node.reach())

    def commit(self, before_ns: int) -> None:
        """No client will do anything before `before_ns` any more: history that is final goes. Call
        `run` first."""
        if before_ns <= self.committed_ns:
            return
        self.committed_ns = before_ns
        self._flows.commit(before_ns)
        for timeline in self._timelines:
            for node in timeline.retire(before_ns):
                for begin in getattr(node, "begins", ()):
                    if begin.timeline is timeline:
                        timeline.activity.release(begin)
                        begin.retire()
                if node.retired:
                    continue
                if type(node) is Transfer:
                    self._let_go(node)
                elif type(node) is PartEnd:
                    for transfer in node.transfers:
                        self._let_go(transfer)
                node.retire()
        for timeline in self._timelines:
            timeline.settle_stalls()
            timeline.forget_activity(before_ns)

    def totals(self, client: int) -> Totals:
        """What one client's timeline adds up to, over everything known so far."""
        return self._timelines[client].totals()

    def follow(self, client: int, tell: Callable[[int, Node, Head | None], None]) -> None:
        """From here on `tell(number, node, reached)` is called for each node of `client` when its
        time is final; `reached` is where the client reached it, if it is the end of
        communication."""
        self._timelines[client].follower = tell

    def tell_rest(self) -> None:
        """The run is over: tells those who follow every time that is known, final or not. Call
        `run` first, and `commit` no more."""
        for timeline in self._timelines:
            if timeline.follower is not None:
                for number in timeline.order:
                    node = timeline.live[number]
                    if node.time_ns is not None:
                        timeline.follower(number, node, timeline.launched.get(number))

    def nodes(self, client: int) -> Iterator[tuple[int, Node]]:
        """The client's live nodes, in the order they were defined."""
        timeline = self._timelines[client]
        return ((number, timeline.live[number]) for number in timeline.order)

    def size(self) -> int:
        """How many nodes are live, over all clients."""
        return sum(len(timeline.order) for timeline in self._timelines)

    def check(self) -> None:
        """Asserts every invariant; for tests. Call after `run`."""
        assert not self._heap and not self._disturbed
        seen: set[Node] = set()
        for timeline in self._timelines:
            assert set(timeline.order) == set(timeline.live) and len(timeline.order) == len(
                timeline.live
            )
            seen.update(timeline.live.values())
        for node in list(seen):
            seen.update(node.terms)
        for node in list(seen):
            seen.update(term.node for term in node.soft if term.node is not None)
        for node in seen:
            earlier = [*node.terms, *(term.node for term in node.soft if term.node is not None)]
            unknown = sum(term.time_ns is None for term in earlier)
            assert node.missing >= unknown and (node.time_ns is not None) == (node.missing == 0), (
                node
            )
            assert not node.queued
            if node.retired or node.time_ns is None:
                continue
            for term in earlier:
                assert term.retired or node in term.dependents
            start_ns, settled_ns = node.reach()
            if type(node) is Transfer:
                assert node.start_ns == start_ns
                assert node.time_ns > start_ns and all(
                    self._owners[handle] is node for handle in node.handles
                )
                assert (node.time_ns, node.settled_ns) == self._end(node, settled_ns)
            else:
                assert (node.time_ns, node.settled_ns) == (start_ns, settled_ns)
            assert node.settled_ns <= node.time_ns
        assert set(self._owners.values()) <= seen

    def _let_go(self, transfer: Transfer) -> None:
        """A transfer's end is final: it gives up its flows."""
        for handle in transfer.handles:
            del self._owners[handle]
        transfer.handles = ()
        transfer.retire()

    def _absorb(self, timeline: Timeline, node: Node, head: Head) -> None:
        node.absorb(head)
        if head.soft:
            timeline.pliable[node] = None

    def _contribute(self, timeline: Timeline, node: Node, head: Head) -> None:
        self._absorb(timeline, node, head)
        node.missing -= 1
        self._wake(node)

    def _wake(self, node: Node) -> None:
        if node.missing == 0 and not node.queued:
            node.queued = True
            heappush(self._heap, (node.reach()[0], next(self._sequence), node, False))

    def _set(self, node: Node, time_ns: int, settled_ns: int) -> None:
        before_ns = node.time_ns
        if before_ns == time_ns and node.settled_ns == settled_ns:
            return
        if node.told and before_ns != time_ns:
            self.revised += 1
        node.time_ns = time_ns
        node.settled_ns = settled_ns
        if type(node) is Begin:
            self._ran_beside(node)
        elif type(node) is Transfer or type(node) is PartEnd:
            for begin in node.begins:
                self._ran_beside(begin)
        first = before_ns is None
        affected_ns = time_ns if first else min(time_ns, before_ns)
        heap, sequence = self._heap, self._sequence
        for dependent in node.dependents:
            if first:
                dependent.missing -= 1
            if dependent.missing == 0 and not dependent.queued:
                dependent.queued = True
                heappush(heap, (affected_ns, next(sequence), dependent, False))

    def _ran_beside(self, begin: Begin) -> None:
        """A launch's span on one client is known, or has moved: work beside it takes another
        time."""
        if begin.time_ns is None:
            return
        timeline = begin.timeline
        from_ns = timeline.activity.put(begin, begin.time_ns, begin.end.time_ns)
        if from_ns is None:
            return
        for node in timeline.pliable:
            if (
                node.missing == 0
                and not node.queued
                and not node.retired
                and (node.time_ns is None or node.time_ns > from_ns)
            ):
                node.queued = True
                heappush(self._heap, (from_ns, next(self._sequence), node, False))

    def _start(self, transfer: Transfer) -> None:
        """The transfer's start is known, or has moved: put its flows where they belong."""
        start_ns, settled_ns = transfer.reach()
        course = transfer.course
        if not course.shared:
            transfer.start_ns = start_ns
            self._set(transfer, *self._end(transfer, settled_ns))
            return
        if start_ns == transfer.start_ns:
            return
        transfer.start_ns = start_ns
        flows_ns = start_ns + course.before_ns
        flows = self._flows
        if flows_ns < self.committed_ns or (
            transfer.handles and transfer.flows_ns < self.committed_ns
        ):
            self.late += 1
            if transfer.handles and transfer.flows_ns < self.committed_ns:
                return
            flows_ns = self.committed_ns
        transfer.flows_ns = flows_ns
        if transfer.handles:
            for handle in transfer.handles:
                flows.move(handle, flows_ns)
        else:
            transfer.handles = (flows.add_group(flows_ns, course.shared),)
            self._owners[transfer.handles[0]] = transfer
        self._disturbed = True
        if not transfer.asking:
            transfer.asking = True
            heappush(
                self._heap, (flows_ns + course.estimate_ns, next(self._sequence), transfer, True)
            )

    def _finish(self, transfer: Transfer) -> None:
        self._set(transfer, *self._end(transfer, 0))

    def _end(self, transfer: Transfer, settled_ns: int) -> tuple[int, int]:
        """(time_ns, settled_ns) of a started transfer; `settled_ns` is its ancestors', used when it
        shares no link."""
        course = transfer.course
        end_ns = transfer.start_ns + course.before_ns + course.private_ns
        if course.shared:
            completion_ns = self._flows.completion_ns
            flows_end_ns = max([completion_ns(handle) for handle in transfer.handles])
            end_ns = max(end_ns, flows_end_ns)
            settled_ns = flows_end_ns + 1
        return max(end_ns + course.after_ns, transfer.start_ns + 1, settled_ns), settled_ns

    def _collect_moves(self) -> None:
        """Asks the flow simulator which completions it has revised, and queues what hangs on
        them."""
        self._disturbed = False
        owners = self._owners
        for handle, completion_ns in self._flows.changed().items():
            transfer = owners[handle]
            if not transfer.asking and transfer.time_ns is not None:
                transfer.asking = True
                self.retimed += 1
                affected_ns = min(transfer.settled_ns, completion_ns)
                heappush(self._heap, (affected_ns, next(self._sequence), transfer, True))
