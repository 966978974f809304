"""The timeline of a run: one graph of vertices over all clients, with flows where they share links.

Why it exists: every time in the run is a vertex (client, number). A vertex's time is a maximum over
earlier vertices plus constants, except the end of communication, which the flow simulator decides.
Vertices arrive in the order of the messages, and the times must not depend on it. So a time is never
adjusted but always evaluated again from its terms. When the flow simulator moves a completion, every
dependent is evaluated again, including transfers in progress.

Order of work. Work is queued by the earliest virtual time that it can affect (`_work_queue.py`). An
effect at time t reaches only later times (every transfer takes at least a nanosecond). So each pass
settles times from the past to the future and ends. The result does not depend on the queue's ties:
it is the one solution of the equations. The flow simulator's own rule makes it unique: the same flows
in any order of insertion give the same completions.

When a time is final. Let LBTS be a lower bound on the virtual time of anything that a client may
still do. Everything unknown happens at or after LBTS: an unmatched operation starts no sooner than
its missing member arrives, and what depends on it is later still. A flow that starts at or after LBTS
cannot change any rate before LBTS, so a completion before LBTS stays. A vertex is a maximum of sums
of completions and constants. If all of its ancestors' communication over shared links ended before
LBTS, the vertex stays as well, however far ahead of LBTS it is itself.

That is the release rule: `settled_ns <= LBTS`. `settled_ns` is one nanosecond after the last of those
completions. (A completion is rounded to whole nanoseconds, possibly down by a fraction. A flow that
starts at the rounded time could still affect that fraction.) The rule includes the simpler rule,
time <= LBTS: communication lasts at least until its own settling, and ancestors end before a vertex.
Communication over no shared link (one GPU talking to itself) adds nothing to `settled_ns`: it is
final at once.

Contention. Communication on a client's GPU stretches compute that overlaps it (sim/contention.py). A
vertex that depends on such compute is final only when LBTS has reached its time, because until then
overlapping communication may still begin. When overlapping communication begins or moves, it re-times
the vertex like any other change, and affects only later times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

from phantora_ns.sim._communicators import Communicator
from phantora_ns.sim._courses import Collectives, Courses, ExpectedOverlap
from phantora_ns.sim._earliest import alone_ns, earliest_ns, expression_earliest_ns, final_ns
from phantora_ns.sim._graph_check import check_graph
from phantora_ns.sim._operations import FROM_ROOT, ROOTED, BadOp, Mismatch, Op, load_of
from phantora_ns.sim._timeline import (
    BadExpression,
    Follower,
    Mark,
    TermsReader,
    Timeline,
    Totals,
)
from phantora_ns.sim._transfer_flows import TransferFlows
from phantora_ns.sim._transfers import LaunchBegin, LaunchEnd, Transfer
from phantora_ns.sim._vertices import LATEST_NS, Rendezvous, TimeExpression, Vertex
from phantora_ns.sim._watching import Watches
from phantora_ns.sim._work_queue import COMPLETE, WorkQueue
from phantora_ns.sim.flows import FlowSimulator

__all__ = [
    "FROM_ROOT",
    "ROOTED",
    "BadExpression",
    "BadOp",
    "Communicator",
    "EventGraph",
    "ExpectedOverlap",
    "Follower",
    "LaunchEnd",
    "Mark",
    "Mismatch",
    "Op",
    "Rendezvous",
    "TimeExpression",
    "Totals",
    "Transfer",
    "Vertex",
    "expression_earliest_ns",
]


class EventGraph:
    """All vertices of a run.

    `flows` and `collectives` are a FlowSimulator and a CollectiveModel (sim/collectives.py) over
    the links in `capacities`. `contention` is the share by which overlapping compute slows
    communication. Methods that report something new only record it; `run` brings times up to date.
    """

    def __init__(
        self,
        flows: FlowSimulator,
        collectives: Collectives,
        capacities: Mapping[int, float],
        contention: float = 0.0,
    ) -> None:
        self._courses = Courses(collectives, capacities, flows.group, contention)
        self._queue = WorkQueue()
        self._flows = TransferFlows(flows, self._queue)
        self._timelines: list[Timeline] = []
        self._reader = TermsReader()
        self._communicators = count()
        self.watches = Watches()
        """Who is told when a time moves."""
        self.revised = 0
        """Vertices whose time moved after it had been sent to a client (`Vertex.reported`)."""
        self.overrun = False
        """A time was beyond LATEST_NS. No time of the run means anything from then on."""

    @property
    def retimed(self) -> int:
        """Transfers whose end moved after it had been computed."""
        return self._flows.retimed

    @property
    def late(self) -> int:
        """Transfers that started, or moved, before the committed horizon."""
        return self._flows.late

    # ---- what clients report ----

    def add_client(self) -> int:
        """A new client, at virtual time 0; returns its number. O(1)."""
        self._timelines.append(Timeline(self._reader))
        return len(self._timelines) - 1

    def expression(self, client: int, terms: object) -> TimeExpression:
        """Parses a time expression of this client; raises BadExpression. O(terms)."""
        return self._timelines[client].expression(terms)

    def define(self, client: int, number: int, expression: TimeExpression) -> Vertex:
        """Adds a vertex for an expression, or a host anchor: t(number) = t(expression). Raises
        BadExpression if the number is taken."""
        timeline = self._timelines[client]
        timeline.check_new(number)
        vertex = Vertex()
        self._absorb(timeline, vertex, expression)
        timeline.add(number, vertex)
        self._wake(vertex)
        return vertex

    def rendezvous(self, contributors: int) -> Rendezvous:
        """A rendezvous of `contributors` clients, none of which has come yet."""
        return Rendezvous(contributors)

    def join(
        self, meeting: Rendezvous, client: int, number: int, expression: TimeExpression
    ) -> None:
        """`client` comes to `meeting` when its host reaches `expression`. The time of the rendezvous
        is the client's vertex `number`. Raises BadExpression."""
        timeline = self._timelines[client]
        timeline.check_new(number)
        timeline.add(number, meeting)
        self._contribute(timeline, meeting, expression)

    def communicator(
        self, clients: Sequence[int], gpus: Sequence[int], names: Sequence[str]
    ) -> Communicator:
        """A new communicator. Numbers are given in order of creation."""
        return Communicator(next(self._communicators), clients, gpus, names)

    def launch(
        self,
        comm: Communicator,
        client: int,
        number: int,
        expression: TimeExpression,
        ops: Sequence[Op],
        overlap: ExpectedOverlap | None = None,
    ) -> list[Transfer]:
        """Enters one launch of `client` on `comm`. Each op begins once this client has reached
        `expression` and the op's other members have reached theirs.

        `number` is the vertex of their common end on this client. `overlap`: the compute that is
        expected beside it on its GPU. Returns one transfer per op. Raises BadExpression or BadOp
        (nothing has changed), or Mismatch (the job's own error; the communicator is broken).
        """
        timeline = self._timelines[client]
        timeline.check_new(number)
        comm.validate(ops)
        rank = comm.ranks[client]
        load = load_of(rank, ops)
        transfers = [comm.match(rank, op, load) for op in ops]
        if not transfers:
            self.define(client, number, expression)
            return transfers
        reached = self._begin(timeline, number, expression, transfers)
        if overlap is not None:
            for transfer in transfers:
                transfer.overlap = overlap.longer(transfer.overlap)
        for transfer in transfers:
            if transfer.matched and transfer.course is None:
                self._plan(comm, transfer)
            elif not transfer.least_ns:
                transfer.least_ns = transfer.alone_ns = comm.least_ns(transfer, self._courses)
            self._contribute(timeline, transfer, reached)
        return transfers

    def leave_to_root(
        self, comm: Communicator, transfers: Sequence[Transfer], since_ns: int
    ) -> list[Transfer]:
        """The members of `comm` that these broadcasts (`Communicator.begun_alone`) wait for have left it, the
        last one at `since_ns`. Begins as many as NCCL's buffers hold, and returns those. O(transfers)."""
        begun = comm.leave_to_root(transfers)
        for transfer in begun:
            self._plan(comm, transfer)
            transfer.base_ns = max(transfer.base_ns, since_ns)
            transfer.missing -= len(comm.clients) - 1
            self._wake(transfer)
        return begun

    def stall(
        self, client: int, device: int, before: TimeExpression, after: TimeExpression
    ) -> None:
        """Records that a stream of `device` waited for communication between these two moments."""
        self._timelines[client].account.stall(device, before, after)

    def tell_stalls(self, client: int, until_ns: int) -> tuple[int, list[int]]:
        """(number of the first, ns of each) of the client's stalls that were over at `until_ns` and
        were not told before. All times up to `until_ns` must be final."""
        return self._timelines[client].account.tell(until_ns)

    def mark(
        self,
        client: int,
        at: TimeExpression,
        busy_ns: int,
        host_ns: int,
        flop: tuple[int, ...] = (),
    ) -> None:
        """Records that the client reached the end of a training step at `at`, with what its GPU and
        its host had worked until then, and how much the GPU had multiplied."""
        self._timelines[client].account.mark(at, busy_ns, host_ns, flop)

    def forget(self, client: int, number: int) -> None:
        """Records that the client will name no vertex below `number` any more, except the origin."""
        self._timelines[client].final.forget(number)

    # ---- times ----

    def run(self) -> None:
        """Brings every time that can be known up to date. O(log work) per vertex touched, plus the
        flow simulator's cost."""
        queue, flows = self._queue, self._flows
        while True:
            entry = queue.pop(only_evaluate=flows.disturbed)
            if entry is None:
                if not flows.disturbed:
                    return
                flows.collect_moves()
                continue
            _, priority, _, vertex = entry
            if type(vertex) is not Transfer:
                self._set(vertex, *vertex.reach())
            elif priority == COMPLETE:
                self._set(vertex, *flows.end(vertex))
            else:
                ended = flows.start(vertex)
                if ended is not None:
                    self._set(vertex, *ended)

    def commit(self, before_ns: int) -> None:
        """Drops history that is final, because no client will do anything before `before_ns` any
        more. Call `run` first."""
        before_ns = min(before_ns, LATEST_NS)
        if before_ns <= self._flows.committed_ns:
            return
        self._flows.commit(before_ns)
        for timeline in self._timelines:
            for vertex in timeline.retire(before_ns):
                self._retire(timeline, vertex)
        for timeline in self._timelines:
            timeline.account.settle()
            timeline.forget_activity(before_ns)

    def begin_anew(self, ended_ns: int) -> None:
        """All clients have ended, the last one at `ended_ns`, and others come, which begin at 0. Their
        communication begins there, too, and shares no link with what was over. What waited for an end that
        never came is dropped: else each job that ends so would stay in memory. Call `run` first."""
        for timeline in self._timelines:
            for vertex in timeline.drop_unknown():
                self._retire(timeline, vertex)
        self.commit(ended_ns)
        self._flows.begin_anew()

    def close(self, ended: Mapping[int, int], others: Iterable[int]) -> set[int]:
        """Removes what ended clients have queued, and returns which clients. `ended` maps a client
        to the time of its end. A client that shares communication with `others`, which live, is left
        alone.

        For a job that starts its ranks again after one was killed: a GPU drops what a dead process has
        queued. Known times stay as they are. Communication that would begin after the last of these
        clients has ended does not take place. Otherwise it would slow down that of the new ranks, and
        each of their flows would move every time after it. Call `run` first. O(live vertices).
        """
        awaited = {one for client in others for one in self._timelines[client].transfers()}
        closing = {
            client for client in ended if awaited.isdisjoint(self._timelines[client].transfers())
        }
        last_ns = max((ended[client] for client in closing), default=0)
        for client in closing:
            for transfer in self._timelines[client].transfers():
                self._flows.drop(transfer, last_ns)
        for client in closing:
            timeline = self._timelines[client]
            for vertex in timeline.close():
                self._retire(timeline, vertex)
        return closing

    # ---- what is known ----

    def totals(self, client: int) -> Totals:
        """Sums over everything known so far of one client's timeline."""
        return self._timelines[client].totals()

    def marks(self, client: int) -> list[Mark]:
        """The ends of the client's training steps that are known so far, in order."""
        return self._timelines[client].account.known_marks()

    def follow(self, client: int, follower: Follower) -> None:
        """From now on, calls `follower(number, vertex, reached)` for each vertex of `client` when its
        time is final. If the vertex is an end of communication, `reached` is where the client
        reached that communication."""
        self._timelines[client].follower = follower

    def finish_following(self) -> None:
        """Ends the run: calls the followers with every known time, final or not. Call `run` first,
        and do not call `commit` afterwards."""
        for client, timeline in enumerate(self._timelines):
            if timeline.follower is not None:
                for known in self.known(client):
                    timeline.follower(*known)

    def known(self, client: int) -> Iterator[tuple[int, Vertex, TimeExpression | None]]:
        """The client's live vertices whose times are known, final or not, as a follower gets them."""
        timeline = self._timelines[client]
        for number in timeline.order:
            vertex = timeline.live[number]
            if vertex.time_ns is not None:
                yield number, vertex, timeline.account.launched.get(number)

    def earliest_ns(
        self, client: int, numbers: Sequence[int], lbts_ns: int
    ) -> tuple[list[int], list[int]]:
        """For each of these vertices of the client, a time before which it will not be, when no client
        acts before `lbts_ns`; and the indices of those that are final, which are at that time. Call
        `run` first."""
        timeline = self._timelines[client]
        times, final, unknown = [], [], []
        for index, number in enumerate(numbers):
            vertex = timeline.live.get(number)
            time_ns = timeline.final.get(number) if vertex is None else final_ns(vertex, lbts_ns)
            times.append(time_ns or 0)
            if time_ns is not None:
                final.append(index)
            elif vertex is not None:
                unknown.append((index, vertex))
        bounds = earliest_ns((vertex for _, vertex in unknown), lbts_ns)
        for (index, _), bound_ns in zip(unknown, bounds):
            times[index] = bound_ns
        return times, final

    def alone_ns(self, client: int, numbers: Sequence[int]) -> list[int]:
        """For each of these vertices of the client, how long after the begin of its launch it is at least, which is
        the same for all equal launches; 0: it is no end of communication, or nothing is known."""
        live = self._timelines[client].live
        return [alone_ns(live.get(number)) for number in numbers]

    def vertices(self, client: int) -> Iterator[tuple[int, Vertex]]:
        """The client's live vertices, in the order they were defined."""
        timeline = self._timelines[client]
        return ((number, timeline.live[number]) for number in timeline.order)

    def size(self) -> int:
        """How many vertices are live, over all clients."""
        return sum(len(timeline.order) for timeline in self._timelines)

    def check(self) -> None:
        """Asserts every invariant; for tests. Call after `run`."""
        assert not self._queue and not self._flows.disturbed
        check_graph(self._timelines, self._flows)

    # ---- evaluation ----

    def _begin(
        self,
        timeline: Timeline,
        number: int,
        expression: TimeExpression,
        transfers: list[Transfer],
    ) -> TimeExpression:
        """Enters the point where a client reaches a launch, and the launch's end on this client.
        Returns the former as an expression."""
        begin = LaunchBegin(timeline.overlap)
        self._absorb(timeline, begin, expression)
        reached = timeline.account.launched[number] = TimeExpression(0, [(begin, 0)])
        end: Transfer | LaunchEnd = transfers[0]
        if len(transfers) > 1:
            end = LaunchEnd(tuple(dict.fromkeys(transfers)))
        begin.end = end
        end.begins.append(begin)
        timeline.add(number, end)
        self._wake(begin)
        if type(end) is LaunchEnd:
            self._wake(end)
        return reached

    def _plan(self, comm: Communicator, transfer: Transfer) -> None:
        """Sets the course of a transfer that is matched."""
        transfer.course = comm.course(transfer, self._courses)
        transfer.least_ns = transfer.course.least_ns

    def _absorb(self, timeline: Timeline, vertex: Vertex, expression: TimeExpression) -> None:
        vertex.absorb(expression)
        if expression.stretched:
            timeline.overlap.stretchable[vertex] = None

    def _contribute(self, timeline: Timeline, vertex: Vertex, expression: TimeExpression) -> None:
        self._absorb(timeline, vertex, expression)
        vertex.missing -= 1
        self._wake(vertex)

    def _wake(self, vertex: Vertex) -> None:
        """Evaluates a vertex that has new terms. Only a transfer or a stretched vertex needs the
        queue for that. If terms of another vertex move later, it is queued like any dependent."""
        if vertex.missing == 0:
            if type(vertex) is Transfer or vertex.stretched:
                self._queue.evaluate(vertex, vertex.earliest_ns())
            else:
                self._set(vertex, *vertex.reach())

    def _set(self, vertex: Vertex, time_ns: int, settled_ns: int) -> None:
        """Sets a vertex's time. Queues its dependents if the time is new."""
        if time_ns > LATEST_NS:
            self.overrun = True
            time_ns, settled_ns = LATEST_NS, min(settled_ns, LATEST_NS)
        before_ns = vertex.time_ns
        if before_ns == time_ns and vertex.settled_ns == settled_ns:
            return
        if vertex.reported and before_ns != time_ns:
            self.revised += 1
        vertex.time_ns = time_ns
        vertex.settled_ns = settled_ns
        if vertex in self.watches:
            self.watches.note(vertex)
        kind = type(vertex)
        if kind is LaunchBegin:
            self._stretch_overlapped(vertex)  # type: ignore[arg-type]
        elif kind is Transfer or kind is LaunchEnd:
            for begin in vertex.begins:  # type: ignore[attr-defined]
                self._stretch_overlapped(begin)
        if not vertex.dependents:
            return
        evaluate = self._queue.evaluate
        if before_ns is None:
            for dependent in vertex.dependents:
                dependent.missing -= 1
                if dependent.missing == 0:
                    evaluate(dependent, time_ns)
        else:
            from_ns = min(time_ns, before_ns)
            for dependent in vertex.dependents:
                if dependent.missing == 0:
                    evaluate(dependent, from_ns)

    def _stretch_overlapped(self, begin: LaunchBegin) -> None:
        """Updates the work that a launch overlaps, because the launch's span on one client is known,
        or has moved."""
        if begin.time_ns is None:
            return
        assert begin.end is not None
        overlap, evaluate = begin.overlap, self._queue.evaluate
        from_ns = overlap.activity.put(begin, begin.time_ns, begin.end.time_ns)
        if from_ns is None:
            return
        self.watches.note(overlap.activity)
        for vertex in overlap.stretchable:
            time_ns = vertex.time_ns
            if time_ns is not None and (time_ns <= from_ns or vertex.retired):
                continue
            if vertex.missing == 0:
                evaluate(vertex, from_ns)

    def _retire(self, timeline: Timeline, vertex: Vertex) -> None:
        """Marks the vertex as final on this client."""
        if isinstance(vertex, (Transfer, LaunchEnd)):
            # A begin refers to its end. The end must not keep it, or reference counts free neither.
            others: list[LaunchBegin] = []
            for begin in vertex.begins:
                if begin.overlap is timeline.overlap:
                    timeline.overlap.activity.release(begin)
                    begin.retire()
                else:
                    others.append(begin)
            vertex.begins = others
        if vertex.retired:
            return
        if type(vertex) is Transfer:
            self._flows.release(vertex)
        elif type(vertex) is LaunchEnd:
            for transfer in vertex.transfers:
                self._flows.release(transfer)
        vertex.retire()
