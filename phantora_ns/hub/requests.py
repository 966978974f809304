"""Requests that cannot be answered yet, one class per kind.

Why it exists: the server asks every pending request the same four questions (is the answer known,
how long is it open to change, what does it bound, what are the bytes), and each kind has its own
reasons. Times are virtual nanoseconds.
"""

from __future__ import annotations

from phantora_ns.hub import protocol
from phantora_ns.hub.registry import Client
from phantora_ns.sim.graph import TimeExpression, Vertex


class Request:
    """A client's open question; `number` is what the reply carries."""

    __slots__ = ("client", "number")
    # whether optimistic mode may answer as soon as an answer is known, to be revised if it moves
    early = True

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
        """As `bound_ns`, but true whatever the others do; None when only they can say."""
        return self.bound_ns()

    def reply(self, lbts_ns: int | None = None) -> list:
        """The answer's message at that LBTS (None: nobody can act before this is answered); the
        request must have one."""
        raise NotImplementedError


class Arrival(Request):
    """SYNC and the two rendezvous: the answer is the time of a node, which becomes the client's
    host anchor."""

    __slots__ = ("node", "head")

    def __init__(self, client: Client, number: int, node: Vertex, head: TimeExpression) -> None:
        super().__init__(client, number)
        self.node = node
        self.head = head

    def settled_ns(self) -> int | None:
        """The node's, which is None while it is unknown."""
        return self.node.settled_ns

    def bound_ns(self) -> int | None:
        """The client goes on at the node's time."""
        return self.node.time_ns

    def floor_ns(self) -> int | None:
        """Its own host head, even where the meeting waits for ranks that we have not heard of."""
        reached = self.head.reach()
        return None if reached is None else reached[0]

    def reply(self, lbts_ns: int | None = None) -> list:
        """SYNC's answer."""
        self._tell()
        return [protocol.SYNC, self.number, self.node.time_ns]

    def _tell(self) -> None:
        self.node.reported = True
        self.client.anchor = self.node
        self.client.clock_ns = max(self.client.clock_ns, self.node.time_ns)


class Joining(Arrival):
    """COMM_INIT; `group` is set once every member has come."""

    __slots__ = ("group_number",)

    def __init__(self, client: Client, number: int, node: Vertex, head: TimeExpression) -> None:
        super().__init__(client, number, node, head)
        self.group_number = -1

    def reply(self, lbts_ns: int | None = None) -> list:
        """The communicator's number and the time."""
        self._tell()
        return [protocol.COMM_INIT, self.number, self.group_number, self.node.time_ns]


class Splitting(Joining):
    """COMM_SPLIT; without a color the client gets no communicator."""

    __slots__ = ("rank", "size")

    def __init__(self, client: Client, number: int, node: Vertex, head: TimeExpression) -> None:
        super().__init__(client, number, node, head)
        self.rank = -1
        self.size = 0

    def reply(self, lbts_ns: int | None = None) -> list:
        """The communicator's number, this client's rank in it, its size, and the time."""
        self._tell()
        return [
            protocol.COMM_SPLIT,
            self.number,
            self.group_number,
            self.rank,
            self.size,
            self.node.time_ns,
        ]


class Query(Request):
    """Whether a head has been reached at the host's time.

    Decided when the host's time is final and either the head is, or the LBTS has come up to the
    host's time: what is unknown or may still move then lies strictly after the LBTS, so the head
    has not been reached (sim/graph.py).
    """

    __slots__ = ("head", "host_head")
    early = False  # the caching allocator acts on the answer: a guess would change peak memory

    def __init__(self, client: Client, number: int, head: TimeExpression, host_head: TimeExpression) -> None:
        super().__init__(client, number)
        self.head = head
        self.host_head = host_head

    def settled_ns(self) -> int | None:
        """The sooner of the head's settling and the host's time, no sooner than the host's own
        settling."""
        host = self.host_head.reach()
        if host is None:
            return None
        reached = self.head.reach()
        return host[0] if reached is None else max(host[1], min(host[0], reached[1]))

    def bound_ns(self) -> int | None:
        """The host's time: a query does not move the clock."""
        host = self.host_head.reach()
        return None if host is None else host[0]

    def reply(self, lbts_ns: int | None = None) -> list:
        """1 when reached; else 0, and a time before which it will not be: its own if that is final,
        else the LBTS."""
        reached = self.head.reach()
        host_ns = self.host_head.reach()[0]
        if reached is not None and reached[0] <= host_ns:
            return [protocol.QUERY, self.number, 1, 0]
        if reached is not None and (lbts_ns is None or reached[1] <= lbts_ns):
            return [protocol.QUERY, self.number, 0, reached[0]]
        return [protocol.QUERY, self.number, 0, max(host_ns, lbts_ns or 0)]


class Times(Request):
    """The times of several heads; the client's clock stays where it is."""

    __slots__ = ("heads",)

    def __init__(self, client: Client, number: int, heads: list[TimeExpression]) -> None:
        super().__init__(client, number)
        self.heads = heads

    def settled_ns(self) -> int | None:
        """The latest settling of the heads."""
        latest = 0
        for head in self.heads:
            reached = head.reach()
            if reached is None:
                return None
            latest = max(latest, reached[1])
        return latest

    def bound_ns(self) -> int | None:
        """The client's clock, or the latest of the times when that is ahead: the client waits for
        it to become final."""
        latest = self.client.clock_ns
        for head in self.heads:
            reached = head.reach()
            if reached is None:
                return None
            latest = max(latest, reached[0])
        return latest

    def floor_ns(self) -> int:
        """The client's clock."""
        return self.client.clock_ns

    def reply(self, lbts_ns: int | None = None) -> list:
        """The times, in the order asked."""
        return [protocol.TIMES, self.number, [head.reach()[0] for head in self.heads]]
