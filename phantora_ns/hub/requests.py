"""Requests that cannot be answered yet, one class per kind.

Why it exists: the hub asks every open request the same four questions (is the answer known, until
when can it change, what does it bound, what is the reply), and each kind has its own reasons. Times
are virtual nanoseconds.
"""

from __future__ import annotations

from typing import Any

from phantora_ns.hub.registry import Client
from phantora_ns.protocol import Message
from phantora_ns.sim.graph import TimeExpression, Vertex


class Request:
    """A client's open question; `number` is what the reply carries."""

    __slots__ = ("client", "number")
    early = True
    """Optimistic mode may answer as soon as an answer is known, to be revised if it moves."""

    def __init__(self, client: Client, number: int) -> None:
        self.client = client
        self.number = number

    def settled_ns(self) -> int | None:
        """Once the LBTS has reached this the answer is final; None while there is no answer."""
        raise NotImplementedError

    def bound_ns(self) -> int | None:
        """Before this the client does nothing, as far as this request goes; None while that depends
        on other clients."""
        raise NotImplementedError

    def floor_ns(self) -> int | None:
        """As `bound_ns`, but true whatever the others do; None when it depends on them alone."""
        return self.bound_ns()

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """The answer's message at that LBTS (None: nobody can act before this is answered); the
        request must have an answer."""
        raise NotImplementedError


class Arrival(Request):
    """SYNC and the two rendezvous: the answer is the time of a vertex, which becomes the client's
    host anchor. `expression`: when the client's own host gets there."""

    __slots__ = ("vertex", "expression")

    def __init__(
        self, client: Client, number: int, vertex: Vertex, expression: TimeExpression
    ) -> None:
        super().__init__(client, number)
        self.vertex = vertex
        self.expression = expression

    def settled_ns(self) -> int | None:
        """The vertex's, which is None while it is unknown."""
        return self.vertex.settled_ns

    def bound_ns(self) -> int | None:
        """The client goes on at the vertex's time."""
        return self.vertex.time_ns

    def floor_ns(self) -> int | None:
        """When its own host gets there, even where the meeting waits for ranks that have not
        come."""
        reached = self.expression.reach()
        return None if reached is None else reached[0]

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """SYNC's answer."""
        return [Message.SYNC, self.number, self._report()]

    def _report(self) -> int:
        """The vertex's time, which the client is sent now."""
        assert self.vertex.time_ns is not None
        self.vertex.reported = True
        self.client.anchor = self.vertex
        self.client.clock_ns = max(self.client.clock_ns, self.vertex.time_ns)
        return self.vertex.time_ns


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
        return [Message.COMM_INIT, self.number, self.group_number, self._report()]


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
        return [Message.COMM_SPLIT, self.number, *group, self._report()]


class Query(Request):
    """Whether an expression has been reached at the host's time.

    Decided when the host's time is final and either the expression is, or the LBTS has come up to
    the host's time. What is unknown or may still move then lies strictly after the LBTS, so the
    expression has not been reached (sim/graph.py).
    """

    __slots__ = ("expression", "host")
    early = False  # the caching allocator acts on the answer: a guess would change peak memory

    def __init__(
        self, client: Client, number: int, expression: TimeExpression, host: TimeExpression
    ) -> None:
        super().__init__(client, number)
        self.expression = expression
        self.host = host

    def settled_ns(self) -> int | None:
        """The sooner of the expression's settling and the host's time, no sooner than the host's
        own settling."""
        host = self.host.reach()
        if host is None:
            return None
        reached = self.expression.reach()
        return host[0] if reached is None else max(host[1], min(host[0], reached[1]))

    def bound_ns(self) -> int | None:
        """The host's time: a query does not move the clock."""
        host = self.host.reach()
        return None if host is None else host[0]

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """1 when reached. Otherwise 0, and a time before which it will not be: its own if that is
        final, else the LBTS."""
        reached = self.expression.reach()
        host_ns = self.host.reached()[0]
        if reached is not None and reached[0] <= host_ns:
            return [Message.QUERY, self.number, 1, 0]
        if reached is not None and (lbts_ns is None or reached[1] <= lbts_ns):
            return [Message.QUERY, self.number, 0, reached[0]]
        return [Message.QUERY, self.number, 0, max(host_ns, lbts_ns or 0)]


class Times(Request):
    """The times of several expressions; the client's clock stays where it is."""

    __slots__ = ("expressions",)

    def __init__(self, client: Client, number: int, expressions: list[TimeExpression]) -> None:
        super().__init__(client, number)
        self.expressions = expressions

    def settled_ns(self) -> int | None:
        """The latest settling of the expressions."""
        return self._latest(0, 1)

    def bound_ns(self) -> int | None:
        """The client's clock, or the latest of the times when that is ahead: the client waits until
        it is final."""
        return self._latest(self.client.clock_ns, 0)

    def floor_ns(self) -> int:
        """The client's clock."""
        return self.client.clock_ns

    def reply(self, lbts_ns: int | None = None) -> list[Any]:
        """The times, in the order asked."""
        times = [expression.reached()[0] for expression in self.expressions]
        return [Message.TIMES, self.number, times]

    def _latest(self, least: int, which: int) -> int | None:
        """The latest time (0) or settling (1) of the expressions; None while one is not known."""
        for expression in self.expressions:
            reached = expression.reach()
            if reached is None:
                return None
            least = max(least, reached[which])
        return least
