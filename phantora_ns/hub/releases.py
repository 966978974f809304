"""When answers are released: requests that wait for a time, and what holds them back.

Why it exists: a time is answered once nothing can change it any more (horizon.py). This part brings
the event graph up to date after each batch of messages and releases what is final. When the job stands
still (stillness.py) it releases the earliest answer. It notices clients that are dead or stuck, and
drops history.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from phantora_ns.hub import horizon
from phantora_ns.hub.answers import Answers
from phantora_ns.hub.awaiting import POLL_MS
from phantora_ns.hub.clients import Clients
from phantora_ns.hub.fetches import LOOK_S, Fetches
from phantora_ns.hub.hang import Hang
from phantora_ns.hub.lookups import Lookups
from phantora_ns.hub.recorder import FLUSH_MS
from phantora_ns.hub.registry import Client
from phantora_ns.hub.requests import Request
from phantora_ns.hub.stillness import Stillness
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
        stillness: Stillness,
        hang: Hang,
        optimistic: bool,
    ) -> None:
        self._graph = graph
        self._clients = clients
        self._answers = answers
        self._fetches = fetches
        self._lookups = lookups
        self._stillness = stillness
        self._hang = hang
        self.optimistic = optimistic
        self._waiting: list[Request] = []
        self.past_idle = 0
        """Answers that clients outside of our calls would have held back for ever."""
        self.past_sleepers = 0
        """Those of them that real time may have decided (stillness.py)."""
        self.past_absent = 0
        """Answers of a folded job that absent ranks would have held back for ever."""
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
        self._look_for_a_hang()
        if self._fetches:
            for client, text in self._fetches.hopeless(self._clients.numbered):
                self._answers.fail(text, [client.number])

    def commit(self) -> None:
        """Drops history that no client can change any more. First checks for clients that died
        without a message, which would hold it back."""
        self.bury(list(self._clients.present()))
        clients = self._clients.present()
        bound_ns = horizon.commit_bound_ns(clients)
        if bound_ns is None:
            return
        if self.optimistic and horizon.anchors_may_move(clients, bound_ns):
            return
        self._graph.commit(bound_ns)

    def bury(self, clients: Iterable[Client]) -> None:
        """Removes those of `clients` that have died without a message."""
        for client in clients:
            if not client.gone and client.ended():
                self._clients.leave(client, killed=True)

    def hold_ms(self) -> int | None:
        """How long to wait for messages before the next `settle`; None means without a limit."""
        if self._held:
            return horizon.HELD_POLL_MS
        if self._lookups.awaiting:
            return POLL_MS
        limits = [self._hang.look_ms()] if self._waits() else []
        if self._lookups.recorder is not None and self._lookups.recorder.open:
            limits.append(FLUSH_MS)
        if self._fetches:
            limits.append(round(1000 * LOOK_S))
        return min(limits, default=None)

    def lower_bound_ns(self) -> int | None:
        """The LBTS; None when no client can act before another has."""
        return horizon.lower_bound_ns(self._clients.present())

    def _waits(self) -> bool:
        """Whether somebody waits for other ranks."""
        return bool(self._waiting or self._fetches)

    def _look_for_a_hang(self) -> None:
        """Looks whether the job hangs, when somebody waits and there is nothing to answer."""
        if self._held or self._lookups.awaiting or self._answers.outbox or not self._waits():
            return
        verdict = self._hang.look(self._clients.everyone)
        if verdict is not None and verdict.ends_by_itself:
            self._answers.announce(verdict.text)
        elif verdict is not None:
            self._answers.fail(verdict.text, range(len(self._clients.numbered)))

    def _release(self) -> None:
        """Answers what is final. When the job stands still, answers the earliest of the rest."""
        kept: list[Request] = []
        known: list[tuple[int, Request]] = []
        for request in self._waiting:
            if request.number in request.client.pending:
                settled_ns = request.settled_ns()
                if settled_ns is None:
                    kept.append(request)
                elif self.optimistic and request.early:
                    self._answers.answer(request, request.reply())
                else:
                    known.append((settled_ns, request))
        held = []
        if known:  # without a known time, clocks do not matter yet
            lbts_ns = horizon.lower_bound_ns(self._clients.present())
            for settled_ns, request in known:
                if lbts_ns is None or settled_ns <= lbts_ns:
                    self._answers.answer(request, request.reply(lbts_ns))
                else:
                    held.append((settled_ns, request))
        self._waiting = kept + [request for _, request in held]
        self._held = bool(held)
        if held or self._lookups.awaiting:
            self._let_the_dead_go()
        if held and len(held) == len(known):
            clients = self._clients.present()
            acting = horizon.acting(clients)
            if not acting:
                self._release_past_absent(held)
            elif self._stillness.reached(acting, clients):
                self._release_earliest(held)

    def _release_past_absent(self, held: Collection[tuple[int, Request]]) -> None:
        """Answers what only absent ranks hold back (horizon.py), when nobody can act."""
        lbts_ns = horizon.blocked_bound_ns(self._clients.present(), own=True)
        for settled_ns, request in held:
            if lbts_ns is None or settled_ns <= lbts_ns:
                self._answers.answer(request, request.reply(lbts_ns))
                self._waiting.remove(request)
                self.past_absent += 1
        self._held = bool(self._waiting)

    def _release_earliest(self, held: Collection[tuple[int, Request]]) -> bool:
        """Answers the earliest of the requests whose times are known, if only clients that are not
        blocked hold it back. Returns whether there was one."""
        lbts_ns = horizon.blocked_bound_ns(self._clients.present())
        free = [request for settled_ns, request in held if lbts_ns is None or settled_ns <= lbts_ns]
        if not free:
            lbts_ns = horizon.blocked_bound_ns(self._clients.present(), own=True)
            free = [one for settled_ns, one in held if lbts_ns is None or settled_ns <= lbts_ns]
            self.past_absent += bool(free)
        if not free:
            return False
        request = min(free, key=_order)
        self._answers.answer(request, request.reply(lbts_ns))
        self._waiting.remove(request)
        self.past_idle += 1
        self.past_sleepers += self._stillness.past_sleepers
        return True

    def _let_the_dead_go(self) -> None:
        """Removes clients that have died and hold others back, at most every SAMPLE_MS."""
        now = time.monotonic()
        if now - self._sampled < horizon.SAMPLE_MS / 1000:
            return
        self._sampled = now
        self.bury(horizon.acting(self._clients.present()))

    def _unblock(self) -> bool:
        """Lets a client continue when all are stuck over held LOOKUPs. Returns whether one was
        answered."""
        awaiting = self._lookups.awaiting
        if not awaiting.expected(self._clients.present()):
            self._lookups.estimate(awaiting.take_all())
            return False
        if not awaiting.stuck(self._clients.everyone, self._stillness.reached):
            return False
        before = len(self._answers.outbox)
        awaiting.waive(True)
        held = [
            (settled_ns, request)
            for request in self._waiting
            if (settled_ns := request.settled_ns()) is not None
        ]
        answered = self._release_earliest(held)
        awaiting.waive(False)
        if not answered:
            self._lookups.estimate(awaiting.take_first())
        return len(self._answers.outbox) > before


def _order(request: Request) -> tuple[int, int, int, int]:
    """Which of several answers is given first: the earliest, then that of the lowest rank."""
    client = request.client
    bound_ns = request.bound_ns()
    return (0 if bound_ns is None else bound_ns, client.rank, client.number, request.number)
