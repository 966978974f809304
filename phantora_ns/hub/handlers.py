"""What each message does, one method per kind; docs/wire-protocol.md defines their fields.

Why it exists: a handler takes a message apart and gives its parts to whoever deals with them; it
decides nothing itself. Messages have passed `protocol.parse`, so their shapes are right; what they
name may still not exist. Every handler may raise BadMessage, BadExpression, BadOp, SignatureError
or JobError, and has then changed nothing that others depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phantora_ns.hub.answers import Answers
from phantora_ns.hub.clients import Clients
from phantora_ns.hub.communicators import Communicators, Waiter
from phantora_ns.hub.diagnostics import Diagnostics
from phantora_ns.hub.fetches import Fetches
from phantora_ns.hub.lookups import Lookups, parse_lookup
from phantora_ns.hub.protocol import BadMessage, parse_ops
from phantora_ns.hub.registry import Client
from phantora_ns.hub.releases import Releases
from phantora_ns.hub.requests import Arrival, Query, Times
from phantora_ns.kernels.database.schema import DatabaseError
from phantora_ns.protocol import Message
from phantora_ns.sim.graph import EventGraph

Handler = Callable[[Client, list[Any]], None]


class TimeHandlers:
    """Messages about times: SYNC, QUERY, TIMES, and the definitions that come with others."""

    def __init__(self, graph: EventGraph, releases: Releases, answers: Answers) -> None:
        self._graph = graph
        self._releases = releases
        self._answers = answers

    def table(self) -> dict[int, Handler]:
        """The handlers by kind of message."""
        return {Message.SYNC: self.sync, Message.QUERY: self.query, Message.TIMES: self.times}

    def sync(self, client: Client, message: list[Any]) -> None:
        """The host waits until it reaches an expression."""
        _, _, number, client.clock_ns, extra, vertex_number, terms = message
        self.extra(client, extra)
        expression = self._graph.expression(client.number, terms)
        vertex = self._graph.define(client.number, vertex_number, expression)
        self._releases.wait(Arrival(client, number, vertex, expression))

    def query(self, client: Client, message: list[Any]) -> None:
        """Whether an expression has been reached at the host's time."""
        _, _, number, client.clock_ns, extra, terms, host_terms = message
        self.extra(client, extra)
        expression = self._graph.expression(client.number, terms)
        host = self._graph.expression(client.number, host_terms)
        if host_terms:
            self._releases.wait(Query(client, number, expression, host))
            return
        # the watchdog: it is answered with what is known now, and bounds nothing
        self._graph.run()
        reached = expression.reach()
        at = 0 if reached is None else 1 + reached[0]
        self._answers.send(client.identity, [Message.QUERY, number, at])

    def times(self, client: Client, message: list[Any]) -> None:
        """The times of several expressions; nobody waits in virtual time."""
        _, _, number, client.clock_ns, extra, terms = message
        self.extra(client, extra)
        expressions = [self._graph.expression(client.number, one) for one in terms]
        self._releases.wait(Times(client, number, expressions))

    def extra(self, client: Client, extra: dict[Any, Any]) -> None:
        """What came along with a message: definitions, stalls, and what will not be named again."""
        if not extra:
            return
        number, graph = client.number, self._graph
        for item in _items(extra, "nodes"):
            if type(item) is not list or len(item) != 2:
                raise BadMessage("a definition is [vertex, time expression]")
            graph.define(number, item[0], graph.expression(number, item[1]))
        for item in _items(extra, "stalls"):
            if type(item) is not list or len(item) != 3 or type(item[0]) is not int:
                raise BadMessage("a stall is [device, time expression, time expression]")
            before, after = (graph.expression(number, terms) for terms in item[1:])
            graph.stall(number, item[0], before, after)
        keep = extra.get("keep")
        if keep is not None:
            if type(keep) is not int or keep < 0:
                raise BadMessage("keep is a vertex number")
            graph.forget(number, keep)


class CommunicatorHandlers:
    """Messages about communicators: COMM_INIT, COMM_SPLIT, COMM_FREE, OPS, FETCH."""

    def __init__(
        self,
        communicators: Communicators,
        times: TimeHandlers,
        releases: Releases,
        fetches: Fetches,
        answers: Answers,
    ) -> None:
        self._communicators = communicators
        self._times = times
        self._releases = releases
        self._fetches = fetches
        self._answers = answers

    def table(self) -> dict[int, Handler]:
        """The handlers by kind of message."""
        return {
            Message.COMM_INIT: self.init,
            Message.COMM_SPLIT: self.split,
            Message.COMM_FREE: self.free,
            Message.OPS: self.ops,
            Message.FETCH: self.fetch,
        }

    def init(self, client: Client, message: list[Any]) -> None:
        """A rank comes to a communicator that is being formed."""
        client.clock_ns = message[3]
        self._times.extra(client, message[4])
        self._releases.wait(self._communicators.join(client, message[2], *message[5:]))

    def split(self, client: Client, message: list[Any]) -> None:
        """A rank comes to its next split of a communicator."""
        client.clock_ns = message[3]
        self._times.extra(client, message[4])
        self._releases.wait(self._communicators.split(client, message[2], *message[5:]))

    def free(self, client: Client, message: list[Any]) -> None:
        """A rank lets go of a communicator."""
        client.clock_ns = message[2]
        self._communicators.leave(client, message[3])

    def ops(self, client: Client, message: list[Any]) -> None:
        """A launch of communication."""
        _, _, client.clock_ns, extra, comm, vertex, terms, items = message
        self._times.extra(client, extra)
        ops, overlapped = parse_ops(items), bool(extra.get("beside"))
        for waiter in self._communicators.launch(client, comm, vertex, terms, ops, overlapped):
            self._deliver(waiter)

    def fetch(self, client: Client, message: list[Any]) -> None:
        """A rank reads the result of a small operation."""
        _, _, number, client.clock_ns, vertex, index = message
        waiter = self._communicators.fetch(client, number, vertex, index)
        if waiter.exchange.complete:
            self._deliver(waiter)
            return
        self._fetches.open(waiter)
        if not client.leads:
            client.fetching = number

    def _deliver(self, waiter: Waiter) -> None:
        client, number = waiter.client, waiter.number
        client.still = 0
        if client.fetching == number:
            client.fetching = None
        self._fetches.close(waiter)
        if not client.gone and client.failure is None:
            reply = [Message.FETCH, number, waiter.result(), int(waiter.unknown())]
            self._answers.send(client.identity, reply)
        self._communicators.delivered(waiter)


class OtherHandlers:
    """Messages about kernels, costs and diagnostics, and BYE."""

    def __init__(self, clients: Clients, lookups: Lookups, diagnostics: Diagnostics) -> None:
        self._clients = clients
        self._lookups = lookups
        self._diagnostics = diagnostics

    def table(self) -> dict[int, Handler]:
        """The handlers by kind of message."""
        return {
            Message.LOOKUP: self.look_up,
            Message.MEASURED: self.measured,
            Message.HOST: self.host,
            Message.DIAGNOSTIC: self.diagnostic,
            Message.BYE: self.bye,
        }

    def look_up(self, client: Client, message: list[Any]) -> None:
        """How long does this kernel take?"""
        self._lookups.look_up(parse_lookup(client, message), self._clients.present())

    def measured(self, client: Client, message: list[Any]) -> None:
        """A leader's measurements."""
        _, _, client.clock_ns, items = message
        self._lookups.take_measured(client, items)

    def host(self, client: Client, message: list[Any]) -> None:
        """What a process paid on its host."""
        _, _, client.clock_ns, costs = message
        if self._lookups.recorder is not None:
            try:
                self._lookups.recorder.host(costs, client.leads)
            except DatabaseError as error:
                raise BadMessage(str(error)) from None

    def diagnostic(self, client: Client, message: list[Any]) -> None:
        """Something that the user should know."""
        _, _, client.clock_ns, kind, text = message
        if not self._diagnostics.add(kind, text):
            raise BadMessage(f"unknown diagnostic {kind!r}")

    def bye(self, client: Client, message: list[Any]) -> None:
        """A process ends."""
        client.clock_ns = message[2]
        self._clients.leave(client)


def _items(extra: dict[Any, Any], key: str) -> list[Any]:
    items = extra.get(key)
    if not items:
        return []
    if type(items) is not list:
        raise BadMessage(f"{key} is not an array")
    return items
