"""When answers are released: requests that wait for a time, and what holds them back.

Why it exists: a time is answered once nothing can change it any more (horizon.py). This part brings
the event graph up to date after each batch of messages and releases what is final. It notices clients
that are idle, dead or stuck, and drops history.
"""

from __future__ import annotations

import time

from phantora_ns.hub import horizon
from phantora_ns.hub.answers import Answers
from phantora_ns.hub.awaiting import POLL_MS
from phantora_ns.hub.clients import Clients
from phantora_ns.hub.fetches import LOOK_S, Fetches
from phantora_ns.hub.lookups import Lookups
from phantora_ns.hub.messages import MAX_TIME_NS
from phantora_ns.hub.recorder import FLUSH_MS
from phantora_ns.hub.requests import Request
from phantora_ns.sim.graph import EventGraph


class Releases:
    """All open requests for times. `optimistic`: times are answered as soon as they are known, and
    revised if they move."""

    def __init__(
        self,
        graph: EventGraph,
        clients: Clients,
        answers: Answers,
        fetches: Fetches,
        lookups: Lookups,
        optimistic: bool,
    ) -> None:
        self._graph = graph
        self._clients = clients
        self._answers = answers
        self._fetches = fetches
        self._lookups = lookups
        self._optimistic = optimistic
        self._waiting: list[Request] = []
        self._held = False
        """A time is known, and running clients keep it from being answered."""
        self._sampled = 0.0

    def wait(self, request: Request) -> None:
        """Adds a request, which is answered when its time is final."""
        request.client.pending[request.number] = request
        self._waiting.append(request)

    def settle(self) -> None:
        """Brings times up to date and releases every answer that is final."""
        self._graph.run()
        awaiting = self._lookups.awaiting
        if self._waiting or awaiting:
            self._release()
        while awaiting and self._unblock():
            pass
        if self._fetches:
            for client, text in self._fetches.hopeless(self._clients.everyone):
                self._answers.fail(text, [client.number])

    def commit(self) -> None:
        """Drops history that no client can change any more. First checks for clients that died
        without a message, which would hold it back."""
        for client in list(self._clients.present()):
            if client.ended():
                self._clients.leave(client)
        clients = self._clients.present()
        bound_ns = horizon.commit_bound_ns(clients)
        if bound_ns is None:
            return
        if self._optimistic and horizon.anchors_may_move(clients, bound_ns):
            return
        self._graph.commit(bound_ns)

    def hold_ms(self) -> int | None:
        """How long to wait for messages before the next `settle`; None means without a limit."""
        if self._held:
            return horizon.HELD_POLL_MS
        if self._lookups.awaiting:
            return POLL_MS
        limits = []
        if self._lookups.recorder is not None and self._lookups.recorder.open:
            limits.append(FLUSH_MS)
        if self._fetches:
            limits.append(round(1000 * LOOK_S))
        return min(limits, default=None)

    def _release(self) -> None:
        kept: list[Request] = []
        known: list[tuple[int, Request]] = []
        for request in self._waiting:
            if request.number in request.client.pending:
                settled_ns = request.settled_ns()
                if settled_ns is None:
                    kept.append(request)
                elif self._optimistic and request.early:
                    self._answers.answer(request, request.reply())
                else:
                    known.append((settled_ns, request))
        needed_ns = 0
        if known:  # without a known time, clocks do not matter yet
            lbts_ns = horizon.lower_bound_ns(self._clients.present())
            for settled_ns, request in known:
                if lbts_ns is None or settled_ns <= lbts_ns:
                    self._answers.answer(request, request.reply(lbts_ns))
                else:
                    needed_ns = max(needed_ns, settled_ns)
                    kept.append(request)
        self._waiting = kept
        self._held = needed_ns > 0
        # A held LOOKUP may wait for any blocked client, whatever that client's clock is.
        self._sample(MAX_TIME_NS if self._lookups.awaiting else needed_ns)

    def _sample(self, needed_ns: int) -> None:
        """Samples the clients that hold back an answer at `needed_ns`, at most every SAMPLE_MS."""
        now = time.monotonic()
        if needed_ns and now - self._sampled >= horizon.SAMPLE_MS / 1000:
            self._sampled = now
            for client in horizon.sample_idle(self._clients.present(), needed_ns):
                self._clients.leave(client)

    def _unblock(self) -> bool:
        """Lets a client continue when all are stuck over held LOOKUPs. Returns whether one was
        answered."""
        awaiting = self._lookups.awaiting
        if not awaiting.expected(self._clients.present()):
            self._lookups.estimate(awaiting.take_all())
            return False
        if not awaiting.stuck(self._clients.everyone):
            return False
        before = len(self._answers.outbox)
        awaiting.waive(True)
        self._release()
        awaiting.waive(False)
        if len(self._answers.outbox) == before:
            self._lookups.estimate(awaiting.take_first())
        return len(self._answers.outbox) > before
