"""Requests that cannot be answered yet, one class per kind.

Why it exists: the hub asks every open request the same four questions: is the answer known, until when
can it change, what does it bound, and what is the reply. Each kind of request answers differently.
Times are virtual nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from phantora_ns.hub.likeness import Likeness
from phantora_ns.hub.registry import Absent, Client
from phantora_ns.protocol import Message
from phantora_ns.sim.graph import TimeExpression, Vertex, expression_earliest_ns


class Request:
    """A client's open request; `number` is what the reply carries."""

    __slots__ = ("client", "number", "stale")
    early = True
    """Whether optimistic mode may answer as soon as an answer is known, and revise it if it moves."""

    def __init__(self, client: Client, number: int) -> None:
        self.client = client
        self.number = number
        self.stale = True
        """Whether one of `sources` has moved since the request was last looked at."""

    @property
    def open(self) -> bool:
        """Whether the client still waits for the answer."""
        return self.client.pending.get(self.number) is self

    def sources(self) -> Iterator[object]:
        """What `settled_ns` depends on, as `TimeExpression.sources` gives it."""
        raise NotImplementedError

    def settled_ns(self) -> int | None:
        """The LBTS at which the answer is final; None while there is no answer."""
        raise NotImplementedError

    def due_ns(self, lbts_ns: int) -> int | None:
        """The LBTS at which to look at the request again, when the LBTS is `lbts_ns` now. It can be answered if that
        is no later than now. None while there is no answer."""
        return self.settled_ns()

    def final(self, lbts_ns: int) -> bool:
        """Whether the answer is final at this LBTS."""
        settled_ns = self.settled_ns()
        return settled_ns is not None and settled_ns <= lbts_ns

    def bound_ns(self) -> int | None:
        """A lower bound on the client's next action, as far as this request decides it. None while
        it depends on other clients."""
        raise NotImplementedError

    def own_bound_ns(self) -> int | None:
        """As `bound_ns`, but without the ranks of a folded job that do not run."""
        return self.bound_ns()

    def floor_ns(self) -> int | None:
        """As `bound_ns`, but valid whatever the others do. None when it depends only on them."""
        return self.bound_ns()

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """The message with the answer at that LBTS (None: no client can act before this answer). The
        request must have an answer."""
        raise NotImplementedError


class Arrival(Request):
    """SYNC and the two rendezvous. The answer holds the time of a vertex, which becomes the client's
    host anchor. `expression`: when the client's own host gets there. `others`: the same of the ranks
    that do not run and do what this client does (folding.py)."""

    __slots__ = ("vertex", "expression", "others", "likeness")

    def __init__(
        self, client: Client, number: int, vertex: Vertex, expression: TimeExpression
    ) -> None:
        super().__init__(client, number)
        self.vertex = vertex
        self.expression = expression
        self.others: list[tuple[Absent, Vertex, TimeExpression]] = []
        self.likeness: Likeness | None = None

    def sources(self) -> Iterator[object]:
        """The vertex."""
        yield self.vertex

    def settled_ns(self) -> int | None:
        """That of the vertex, which is None while it is unknown."""
        return self.vertex.settled_ns

    def bound_ns(self) -> int | None:
        """The vertex's time, at which the client continues."""
        bound_ns = self.vertex.time_ns
        for _, vertex, _ in self.others:
            if vertex.time_ns is not None and (bound_ns is None or vertex.time_ns < bound_ns):
                bound_ns = vertex.time_ns
        return bound_ns

    def own_bound_ns(self) -> int | None:
        """The client's own vertex's time."""
        return self.vertex.time_ns

    def floor_ns(self) -> int | None:
        """When the client's own host gets there, even if the rendezvous still waits for other
        ranks."""
        found = [self.expression.reach(), *(expression.reach() for *_, expression in self.others)]
        return min((reached[0] for reached in found if reached is not None), default=None)

    def _report(self, lbts_ns: int | None) -> int:
        """The vertex's time, which is now sent to the client."""
        time_ns = self.vertex.time_ns
        assert time_ns is not None
        self.vertex.reported = True
        self.client.anchor = self.vertex
        self.client.clock_ns = max(self.client.clock_ns, time_ns)
        if self.others:
            assert self.likeness is not None
            self.client.unsettled = [
                vertex
                for _, vertex, _ in self.others
                if not self.likeness.times(time_ns, vertex, lbts_ns)
            ]
        return time_ns


class Synchronization(Arrival):
    """SYNC. `tell_stalls` gives the waits for communication that the reply reports, as
    `EventGraph.tell_stalls` does."""

    __slots__ = ("tell_stalls",)

    def __init__(
        self,
        client: Client,
        number: int,
        vertex: Vertex,
        expression: TimeExpression,
        tell_stalls: Callable[[int, int], tuple[int, list[int]]],
    ) -> None:
        super().__init__(client, number, vertex, expression)
        self.tell_stalls = tell_stalls

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """The time, and how long streams have waited for communication."""
        time_ns = self._report(lbts_ns)
        first, lengths = self.tell_stalls(self.client.number, time_ns)
        for absent, vertex, _ in self.others:
            if self.likeness is not None and vertex.time_ns is not None:
                self.likeness.stalls(self.client, absent, lengths, vertex.time_ns)
        return [Message.SYNC, self.number, time_ns, first, lengths]


class Joining(Arrival):
    """COMM_INIT; `group_number` is set once every member has come."""

    __slots__ = ("group_number",)

    def __init__(
        self, client: Client, number: int, vertex: Vertex, expression: TimeExpression
    ) -> None:
        super().__init__(client, number, vertex, expression)
        self.group_number = -1

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """The communicator's number and the time."""
        return [Message.COMM_INIT, self.number, self.group_number, self._report(lbts_ns)]


class Splitting(Joining):
    """COMM_SPLIT; without a color the client gets no communicator."""

    __slots__ = ("rank", "size")

    def __init__(
        self, client: Client, number: int, vertex: Vertex, expression: TimeExpression
    ) -> None:
        super().__init__(client, number, vertex, expression)
        self.rank = -1
        self.size = 0

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """The communicator's number, this client's rank in it, its size, and the time."""
        group = [self.group_number, self.rank, self.size]
        return [Message.COMM_SPLIT, self.number, *group, self._report(lbts_ns)]


class Query(Request):
    """Whether an expression has been reached at the host's time.

    It can be decided when the host's time is final, and either the expression is final or the LBTS
    has reached the host's time. In the latter case, everything unknown or movable lies strictly after
    the LBTS, so the expression has not been reached (sim/graph.py). It has not been reached either when it
    cannot be before the host's time, whatever those do that are behind (sim/_earliest.py). GPUs have
    tens of milliseconds of work in their queues, so that is known much sooner.

    `told(lbts_ns)` gives what the answer tells of the vertices that the client wants to know of: a time before which
    each will not be, the indices of those that are final, and how long each launch takes at least.
    """

    __slots__ = ("expression", "host", "told", "others", "likeness", "_reached", "_at", "_first_ns")
    early = False  # the caching allocator acts on the answer, and a guess would change peak memory

    def __init__(
        self,
        client: Client,
        number: int,
        expression: TimeExpression,
        host: TimeExpression,
        told: Callable[[int], list[list[int]]],
    ) -> None:
        super().__init__(client, number)
        self.expression = expression
        self.host = host
        self.told = told
        self.others: list[tuple[TimeExpression, TimeExpression]] = []
        """The same of the ranks that do not run and do what this client does."""
        self.likeness: Likeness | None = None
        self._reached: tuple[int, int] | None = None
        self._at: tuple[int, int] | None = None
        self._first_ns: int | None = None
        """The earliest host's time that is known, of all these ranks."""

    def sources(self) -> Iterator[object]:
        """Those of both expressions, and of the other ranks' hosts."""
        yield from self.expression.sources()
        yield from self.host.sources()
        for _, host in self.others:
            yield from host.sources()

    def _look(self) -> None:
        """Evaluates the expressions if anything in them has moved. With stretched terms this takes
        longer than all else that is done with a query, and horizon.py asks often."""
        if self.stale:
            self._reached, self._at = self.expression.reach(), self.host.reach()
            hosts = [self._at, *(host.reach() for _, host in self.others)]
            self._first_ns = min((at[0] for at in hosts if at is not None), default=None)
            self.stale = False

    def settled_ns(self) -> int | None:
        """The earlier of the expression's settling and the host's time, but no earlier than the
        host's own settling."""
        self._look()
        host, reached = self._at, self._reached
        if host is None:
            return None
        return host[0] if reached is None else max(host[1], min(host[0], reached[1]))

    def due_ns(self, lbts_ns: int) -> int | None:
        """Before the answer is final, it can be no: as soon as the expression's lower bound is later than the
        host's time. That bound grows no faster than the LBTS, but for jumps where something becomes
        final. At least an eighth of the way to `settled_ns` lies between two looks, so that they are few."""
        settled_ns = self.settled_ns()
        if settled_ns is None or settled_ns <= lbts_ns or not self._may_foresee(lbts_ns):
            return settled_ns
        missing_ns = self._host_ns() - expression_earliest_ns(self.expression, lbts_ns)
        if missing_ns < 0:
            return lbts_ns
        return min(settled_ns, lbts_ns + max(missing_ns + 1, settled_ns - lbts_ns >> 3))

    def _host_ns(self) -> int:
        assert self._at is not None
        return self._at[0]

    def _may_foresee(self, lbts_ns: int) -> bool:
        """Whether the answer may be no before it is final. Not in a folded job: there the answers of ranks that do
        not run are compared with this one."""
        return not self.others and self._at is not None and self._at[1] <= lbts_ns

    def _foreseen_ns(self, lbts_ns: int) -> int | None:
        """A time later than the host's before which the expression will not be reached; None when that is not
        known, or the answer is final."""
        if self.final(lbts_ns) or not self._may_foresee(lbts_ns):
            return None
        earliest_ns = expression_earliest_ns(self.expression, lbts_ns)
        return earliest_ns if earliest_ns > self._host_ns() else None

    def bound_ns(self) -> int | None:
        """The host's time, because a query does not move the clock."""
        self._look()
        return self._first_ns

    def own_bound_ns(self) -> int | None:
        """The client's own host's time."""
        self._look()
        return None if self._at is None else self._at[0]

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """1 when reached. Otherwise 0 and a time before which it will not be reached. Then the same of
        vertices, so that the client need not ask about these before."""
        self._look()
        assert self._at is not None
        reached, host_ns = self._reached, self._at[0]
        if lbts_ns is not None and (foreseen_ns := self._foreseen_ns(lbts_ns)) is not None:
            return [Message.QUERY, self.number, 0, foreseen_ns, *self.told(lbts_ns)]
        if self.likeness is not None:
            ready = reached is not None and reached[0] <= host_ns
            for own, host in self.others:
                self.likeness.query(ready, own, host)
        if reached is not None and reached[0] <= host_ns:
            told = [[], [], []] if lbts_ns is None else self.told(lbts_ns)
            return [Message.QUERY, self.number, 1, 0, *told]
        if lbts_ns is None:
            floor_ns = host_ns if reached is None else reached[0]
            return [Message.QUERY, self.number, 0, floor_ns, [], [], []]
        floor_ns = max(host_ns, lbts_ns)
        if reached is not None and reached[1] <= lbts_ns:
            floor_ns = reached[0]
        return [Message.QUERY, self.number, 0, floor_ns, *self.told(lbts_ns)]


class Turn(Request):
    """TURN: the client waits until nobody can act before its host's time. Then what it does to files comes
    after what others do to them earlier in simulated time."""

    __slots__ = ("host", "others")
    early = False  # a file that is gone cannot be revised

    def __init__(self, client: Client, number: int, host: TimeExpression) -> None:
        super().__init__(client, number)
        self.host = host
        self.others: list[TimeExpression] = []
        """The same of the ranks that do not run and do what this client does."""

    def sources(self) -> Iterator[object]:
        """Those of all hosts' times."""
        for host in (self.host, *self.others):
            yield from host.sources()

    def settled_ns(self) -> int | None:
        """The host's time, but no earlier than its settling."""
        at = self.host.reach()
        return None if at is None else max(at)

    def bound_ns(self) -> int | None:
        """The earliest of the hosts' times that is known."""
        reached = [host.reach() for host in (self.host, *self.others)]
        return min((at[0] for at in reached if at is not None), default=None)

    def own_bound_ns(self) -> int | None:
        """The client's own host's time."""
        at = self.host.reach()
        return None if at is None else at[0]

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """Nothing but that it has come."""
        return [Message.TURN, self.number]


class Times(Request):
    """The times of several expressions. The client's clock does not move."""

    __slots__ = ("expressions", "others", "likeness")

    def __init__(self, client: Client, number: int, expressions: list[TimeExpression]) -> None:
        super().__init__(client, number)
        self.expressions = expressions
        self.others: list[list[TimeExpression]] = []
        """The same of the ranks that do not run and do what this client does."""
        self.likeness: Likeness | None = None

    def sources(self) -> Iterator[object]:
        """Those of all expressions."""
        for expression in self.expressions:
            yield from expression.sources()

    def settled_ns(self) -> int | None:
        """The latest settling of the expressions."""
        return self._latest(0, 1)

    def bound_ns(self) -> int | None:
        """The client's clock, or the latest of the times if that is later: the client waits until
        it is final."""
        latest_ns = self._latest(self.client.clock_ns, 0)
        return None if latest_ns is None else max(0, latest_ns - self.client.behind_ns())

    def own_bound_ns(self) -> int | None:
        """The same without absent ranks."""
        return self._latest(self.client.clock_ns, 0)

    def floor_ns(self) -> int:
        """The client's clock."""
        return max(0, self.client.clock_ns - self.client.behind_ns())

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """The times, in the order asked."""
        times = [expression.reached()[0] for expression in self.expressions]
        if self.likeness is not None:
            for own in self.others:
                self.likeness.elapsed(times, own)
        return [Message.TIMES, self.number, times]

    def _latest(self, least: int, which: int) -> int | None:
        """The latest time (`which` 0) or settling (1) of the expressions; None while one is
        unknown."""
        for expression in self.expressions:
            reached = expression.reach()
            if reached is None:
                return None
            least = max(least, reached[which])
        return least


class Profiling(Times):
    """PROFILE: the times of everything that a part of the client's log names. `rows` gives the reply's
    fields once these times are known."""

    __slots__ = ("rows",)
    early = False  # the job keeps what it is told

    def __init__(
        self,
        client: Client,
        number: int,
        expressions: list[TimeExpression],
        rows: Callable[[], list[Any]],
    ) -> None:
        super().__init__(client, number, expressions)
        self.rows = rows

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """The rows."""
        return [Message.PROFILE, self.number, *self.rows()]
