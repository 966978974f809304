"""The effect of each message, one method per kind; docs/wire-protocol.md defines their fields.

Why it exists: a handler takes a message apart and passes its parts to the responsible objects. It
decides nothing itself. Messages have been decoded (decoding.py), so their shapes are right, but the
things that they name may not exist. Every handler may raise BadMessage, BadExpression, BadOp,
SignatureError or JobError. It has then changed nothing that others depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Any

from phantora_ns.hub.answers import Answers
from phantora_ns.hub.clients import Clients
from phantora_ns.hub.communicators import Communicators, Waiter
from phantora_ns.hub.decoding import BadMessage
from phantora_ns.hub.diagnostics import Diagnostics
from phantora_ns.hub.fetches import Fetches
from phantora_ns.hub.likeness import Likeness
from phantora_ns.hub.lookups import Lookups, parse_lookup
from phantora_ns.hub import messages
from phantora_ns.hub.profiles import Profiles
from phantora_ns.hub.registry import Client
from phantora_ns.hub.releases import Releases
from phantora_ns.hub.requests import Query, Synchronization, Times, Turn
from phantora_ns.kernels.database.schema import DatabaseError
from phantora_ns.protocol import Message, Precision
from phantora_ns.sim.graph import EventGraph

Handler = Callable[[Client, Any], None]


class TimeHandlers:
    """Messages about times: SYNC, QUERY, TIMES, TURN, PROFILE, STEP, and the definitions that come with
    others."""

    def __init__(
        self,
        graph: EventGraph,
        releases: Releases,
        answers: Answers,
        profiles: Profiles,
        likeness: Likeness | None = None,
    ) -> None:
        self._profiles = profiles
        self._graph = graph
        self._likeness = likeness
        self._releases = releases
        self._answers = answers

    def table(self) -> dict[type, Handler]:
        """The handlers by kind of message."""
        return {
            messages.Sync: self.sync,
            messages.Query: self.query,
            messages.Times: self.times,
            messages.Turn: self.turn,
            messages.Profile: self.profile,
            messages.Step: self.step,
        }

    def sync(self, client: Client, message: messages.Sync) -> None:
        """The host waits until it reaches an expression."""
        client.clock_ns = message.clock
        self.extra(client, message.extra)
        expression = self._graph.expression(client.number, message.expression)
        vertex = self._graph.define(client.number, message.vertex, expression)
        tell = _tell_nothing if self._releases.optimistic else self._graph.tell_stalls
        request = Synchronization(client, message.request, vertex, expression, tell)
        for absent in client.absent:
            own = self._graph.expression(absent.number, message.expression)
            also = self._graph.define(absent.number, message.vertex, own)
            request.others.append((absent, also, own))
        request.likeness = self._likeness
        self._releases.wait(request)

    def query(self, client: Client, message: messages.Query) -> None:
        """Whether an expression has been reached at the host's time."""
        client.clock_ns = message.clock
        self.extra(client, message.extra)
        expression = self._graph.expression(client.number, message.expression)
        host = self._graph.expression(client.number, message.host_expression)
        if message.host_expression:
            told = partial(self._told, client, message)
            request = Query(client, message.request, expression, host, told)
            request.likeness = self._likeness
            request.others = [
                (
                    self._graph.expression(absent.number, message.expression),
                    self._graph.expression(absent.number, message.host_expression),
                )
                for absent in client.absent
            ]
            self._releases.wait(request)
            return
        # From the watchdog: the answer is what is known now, and the query bounds no time.
        self._graph.run()
        reached = expression.reach()
        at = 0 if reached is None else 1 + reached[0]
        lbts_ns = self._releases.lower_bound_ns() or 0
        self._answers.send(
            client.identity, [Message.QUERY, message.request, at, lbts_ns, [], [], []]
        )

    def _told(self, client: Client, message: messages.Query, lbts_ns: int) -> list[list[int]]:
        """What the answer to a query tells of the wanted vertices. A client that stands for others (folding.py) is
        told of the vertices in its question alone: it would ask less often, and what the others
        are answered is compared with its answers."""
        wanted = message.wanted
        if client.absent:
            own = {*message.expression[::3], *message.host_expression[::3]}
            wanted = list(takewhile(own.__contains__, wanted))
        floors, final = self._graph.earliest_ns(client.number, wanted, lbts_ns)
        least = [] if client.absent else self._graph.alone_ns(client.number, wanted)
        return [floors, final, least]

    def times(self, client: Client, message: messages.Times) -> None:
        """The times of several expressions; the client's clock does not advance."""
        client.clock_ns = message.clock
        self.extra(client, message.extra)
        expressions = [self._graph.expression(client.number, one) for one in message.expressions]
        request = Times(client, message.request, expressions)
        request.likeness = self._likeness
        request.others = [
            [self._graph.expression(absent.number, one) for one in message.expressions]
            for absent in client.absent
        ]
        self._releases.wait(request)

    def turn(self, client: Client, message: messages.Turn) -> None:
        """The client waits for those that are earlier; its clock does not advance."""
        client.clock_ns = message.clock
        self.extra(client, message.extra)
        host = self._graph.expression(client.number, message.host_expression)
        request = Turn(client, message.request, host)
        request.others = [
            self._graph.expression(absent.number, message.host_expression)
            for absent in client.absent
        ]
        self._releases.wait(request)

    def profile(self, client: Client, message: messages.Profile) -> None:
        """The times of a part of the client's log; the client's clock does not advance."""
        client.clock_ns = message.clock
        self.extra(client, message.extra)
        request = self._profiles.request(client, message.request, message.since)
        self._releases.wait(request)

    def step(self, client: Client, message: messages.Step) -> None:
        """An optimizer has stepped."""
        if message.flop and len(message.flop) != len(Precision.LABELS):
            raise BadMessage(f"FLOP of {len(message.flop)} precisions")
        client.clock_ns = message.clock
        self.extra(client, message.extra)
        for number in client.numbers():
            at = self._graph.expression(number, message.expression)
            self._graph.mark(number, at, message.busy_ns, message.host_ns, tuple(message.flop))

    def extra(self, client: Client, extra: messages.Extra) -> None:
        """The extras of a message: definitions, stalls, and the vertices that will not be named
        again."""
        if not extra:
            return
        graph, numbers = self._graph, client.numbers()
        for item in extra.definitions:
            for number in numbers:
                graph.define(number, item.vertex, graph.expression(number, item.expression))
        for stall in extra.stalls:
            for number in numbers:
                ends = (graph.expression(number, end) for end in (stall.before, stall.after))
                graph.stall(number, stall.device, *ends)
        if extra.keep is not None:
            for number in numbers:
                graph.forget(number, extra.keep)


def _tell_nothing(_client: int, _until_ns: int) -> tuple[int, list[int]]:
    """Instead of `EventGraph.tell_stalls` where times may still move."""
    return 0, []


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

    def table(self) -> dict[type, Handler]:
        """The handlers by kind of message."""
        return {
            messages.CommInit: self.init,
            messages.CommSplit: self.split,
            messages.CommFree: self.free,
            messages.Ops: self.ops,
            messages.Fetch: self.fetch,
        }

    def init(self, client: Client, message: messages.CommInit) -> None:
        """A rank joins a communicator that is being formed."""
        client.clock_ns = message.clock
        self._times.extra(client, message.extra)
        self._releases.wait(self._communicators.join(client, message))

    def split(self, client: Client, message: messages.CommSplit) -> None:
        """A rank joins its next split of a communicator."""
        client.clock_ns = message.clock
        self._times.extra(client, message.extra)
        self._releases.wait(self._communicators.split(client, message))

    def free(self, client: Client, message: messages.CommFree) -> None:
        """A rank releases a communicator."""
        client.clock_ns = message.clock
        self._communicators.leave(client, message.comm)

    def ops(self, client: Client, message: messages.Ops) -> None:
        """A launch of communication."""
        client.clock_ns = message.clock
        self._times.extra(client, message.extra)
        for waiter in self._communicators.launch(client, message):
            self._deliver(waiter)

    def fetch(self, client: Client, message: messages.Fetch) -> None:
        """A rank reads the result of a small operation."""
        client.clock_ns = message.clock
        waiter = self._communicators.fetch(client, message)
        if waiter.exchange.complete:
            self._deliver(waiter)
            return
        self._fetches.open(waiter)
        if not client.leads:
            client.fetching = message.request

    def _deliver(self, waiter: Waiter) -> None:
        client, number = waiter.client, waiter.number
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

    def table(self) -> dict[type, Handler]:
        """The handlers by kind of message."""
        return {
            messages.Lookup: self.look_up,
            messages.Measured: self.measured,
            messages.Host: self.host,
            messages.Diagnostic: self.diagnostic,
            messages.Bye: self.bye,
            messages.Parting: self.parting,
        }

    def look_up(self, client: Client, message: messages.Lookup) -> None:
        """A request for the duration of a kernel."""
        self._lookups.look_up(parse_lookup(client, message), self._clients.present())

    def measured(self, client: Client, message: messages.Measured) -> None:
        """A leader's measurements."""
        client.clock_ns = message.clock
        self._lookups.take_measured(client, message.measurements)

    def host(self, client: Client, message: messages.Host) -> None:
        """A process's costs on its host."""
        client.clock_ns = message.clock
        if self._lookups.recorder is not None:
            try:
                self._lookups.recorder.host(message.costs, client.leads)
            except DatabaseError as error:
                raise BadMessage(str(error)) from None

    def diagnostic(self, client: Client, message: messages.Diagnostic) -> None:
        """A message for the user."""
        client.clock_ns = message.clock
        if not self._diagnostics.add(message.kind, message.text):
            raise BadMessage(f"unknown diagnostic {message.kind!r}")

    def bye(self, client: Client, message: messages.Bye) -> None:
        """A process ends."""
        client.clock_ns = message.clock
        self._clients.leave(client)

    def parting(self, client: Client, message: messages.Parting) -> None:
        """A process has finished its part of the job, and waits for its turn to exit."""
        client.clock_ns = message.clock
        client.parting = True
