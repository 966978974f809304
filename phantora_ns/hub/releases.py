"""When answers are released: requests that wait for a time, and what holds them back.

Why it exists: a time is answered once nothing can change it any more (horizon.py). This part brings
the event graph up to date after each batch of messages and releases what is final. When the job stands
still (stillness.py) it releases the earliest answer. It notices clients that are dead or stuck, and
drops history.

A batch costs time in proportion to what it changes, not to the ranks: a request is looked at again when a
time that it depends on has moved. Requests whose answers are known are sorted by the LBTS at which they
are due: at which the answer is final, or may be known to be no (requests.py). While one client, the last
that was found to be behind, is still behind the first of them, nothing can be released, and no other
client's clock is read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import count

from sortedcontainers import SortedList

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
        self._waiting: dict[Request, tuple[int, int, Request] | None] = {}
        """All requests, some closed in the meantime, and the entries in `_known` of those that have one."""
        self._known: SortedList[tuple[int, int, Request]] = SortedList()
        """(the LBTS at which to look at it, a sequence number, the request), of all whose answers are known."""
        self._new: list[Request] = []
        self._numbers = count()
        self._behind: Client | None = None
        """The client that held answers back when all were last looked at."""
        self.past_idle = 0
        """Answers that clients outside of our calls would have held back for ever."""
        self.past_sleepers = 0
        """Those of them that real time may have decided (stillness.py)."""
        self.past_absent = 0
        """Answers of a folded job that absent ranks would have held back for ever."""
        self._held = False
        """A time is known, and running clients keep it from being answered."""
        self._lbts_ns = 0
        """The LBTS when requests were last released."""
        self._sampled = 0.0

    def wait(self, request: Request) -> None:
        """Adds a request, which is answered when its time is final."""
        request.client.pending[request.number] = request
        self._waiting[request] = None
        self._new.append(request)
        self._graph.watches.add(request, request.sources())

    def settle(self, quiet: bool = True) -> None:
        """Brings times up to date and releases every answer that is final. `quiet`: no message came
        since the last call. Only then can the job stand still."""
        self._graph.run()
        self._look_at_moved()
        awaiting = self._lookups.awaiting
        if self._known or awaiting:
            self._release(quiet)
        else:
            self._held = False
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

    def bury(self, clients: Iterable[Client]) -> bool:
        """Removes those of `clients` that have died without a message. Returns whether there was one."""
        dead = [client for client in clients if not client.gone and client.ended()]
        for client in dead:
            self._clients.leave(client, killed=True)
        if dead:  # what others did with them may end now
            self._graph.run()
            self._look_at_moved()
        return bool(dead)

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
        """The LBTS (lower bound on time stamps): no client will act before it. None when each waits for another."""
        return horizon.last(self._clients.present())[0]

    def _waits(self) -> bool:
        """Whether somebody waits for other ranks."""
        while self._waiting and not (first := next(iter(self._waiting))).open:
            self._remove(first)
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

    def _look_at_moved(self) -> None:
        """Looks at new requests, and at those of which something has moved. O(those log requests)."""
        moved, new = self._graph.watches.take(), self._new
        self._new = []
        for request in (*new, *moved):
            assert isinstance(request, Request)
            if not request.open:
                self._remove(request)
                continue
            if self.optimistic and request.early and request.settled_ns() is not None:
                self._answer(request, None)
            else:
                self._await(request, request.due_ns(self._lbts_ns))

    def _await(self, request: Request, due_ns: int | None) -> None:
        """Has the request looked at when the LBTS is `due_ns`; None: when something that it depends on moves."""
        before = self._waiting[request]
        if before is not None:
            if before[0] == due_ns:
                return
            self._known.remove(before)
            self._waiting[request] = None
        if due_ns is not None:
            entry = self._waiting[request] = (due_ns, next(self._numbers), request)
            self._known.add(entry)

    def _remove(self, request: Request) -> None:
        """Forgets a request that is answered or closed."""
        self._graph.watches.remove(request)
        entry = self._waiting.pop(request, None)
        if entry is not None:
            self._known.remove(entry)

    def _answer(self, request: Request, lbts_ns: int | None) -> None:
        self._remove(request)
        self._answers.answer(request, request.reply(lbts_ns))

    def _first_ns(self) -> int | None:
        """When the first request is due; None when no answer is known."""
        while self._known:
            entry: tuple[int, int, Request] = self._known[0]
            if entry[2].open:
                return entry[0]
            self._remove(entry[2])
        return None

    def _due(self, lbts_ns: int | None) -> Iterator[Request]:
        """The open requests that are due at this LBTS, the earliest first. O(those)."""
        for due_ns, _, request in self._known:
            if lbts_ns is not None and due_ns > lbts_ns:
                return
            if request.open:
                yield request

    def _final(self, lbts_ns: int | None) -> list[Request]:
        """Those of them whose answers are final."""
        return [
            request for request in self._due(lbts_ns) if lbts_ns is None or request.final(lbts_ns)
        ]

    def _release(self, quiet: bool) -> None:
        """Answers what is final. When the job stands still, answers the earliest of the rest."""
        first_ns = self._first_ns()
        self._held = first_ns is not None
        if first_ns is None or self._held_back(first_ns) or not self._release_final():
            if quiet and (self._held or self._lookups.awaiting) and self._let_the_dead_go():
                return  # the next call knows what is final without them
            if self._held:
                self._release_past(quiet)

    def _held_back(self, first_ns: int) -> bool:
        """Whether the client that was last found to be behind still is."""
        if self._behind is None or self._behind.gone:
            return False
        bound_ns = horizon.bound_ns(self._behind)
        return bound_ns is not None and bound_ns < first_ns

    def _release_final(self) -> bool:
        """Answers every request that can be answered. Returns whether there was one. O(clients)."""
        lbts_ns, self._behind = horizon.last(self._clients.present())
        if lbts_ns is not None:
            self._lbts_ns = lbts_ns
        answered = False
        for request in list(self._due(lbts_ns)):
            due_ns = None if lbts_ns is None else request.due_ns(lbts_ns)
            if lbts_ns is None or (due_ns is not None and due_ns <= lbts_ns):
                self._answer(request, lbts_ns)
                answered = True
            else:
                self._await(request, due_ns)
        self._held = self._first_ns() is not None
        return answered

    def _release_past(self, quiet: bool) -> None:
        """Nothing was final: answers what only absent ranks hold back, or one request of a job that stands
        still."""
        if not quiet and self._behind is not None and not self._behind.pending:
            return  # it acts
        clients = self._clients.present()
        acting = horizon.acting(clients)
        if not acting:
            self._release_past_absent()
        elif quiet and self._stillness.reached(acting, clients):
            self._release_earliest()

    def _release_past_absent(self) -> None:
        """Answers what only absent ranks hold back (horizon.py), when nobody can act."""
        lbts_ns = horizon.blocked_bound_ns(self._clients.present(), own=True)
        for request in self._final(lbts_ns):
            self._answer(request, lbts_ns)
            self.past_absent += 1
        self._held = bool(self._waiting)

    def _release_earliest(self) -> bool:
        """Answers the earliest of the requests whose times are known, if only clients that are not
        blocked hold it back. Returns whether there was one."""
        lbts_ns = horizon.blocked_bound_ns(self._clients.present())
        free = self._final(lbts_ns)
        if not free:
            lbts_ns = horizon.blocked_bound_ns(self._clients.present(), own=True)
            free = self._final(lbts_ns)
            self.past_absent += bool(free)
        if not free:
            return False
        self._answer(min(free, key=_order), lbts_ns)
        self.past_idle += 1
        self.past_sleepers += self._stillness.past_sleepers
        return True

    def _let_the_dead_go(self) -> bool:
        """Removes clients that have died and hold others back, at most every SAMPLE_MS. Returns whether one was."""
        now = time.monotonic()
        if now - self._sampled < horizon.SAMPLE_MS / 1000:
            return False
        self._sampled = now
        return self.bury(horizon.acting(self._clients.present()))

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
        answered = self._release_earliest()
        awaiting.waive(False)
        if not answered:
            self._lookups.estimate(awaiting.take_first())
        return len(self._answers.outbox) > before


def _order(request: Request) -> tuple[int, int, int, int]:
    """Which of several answers is given first: the earliest, then that of the lowest rank."""
    client = request.client
    bound_ns = request.bound_ns()
    return (0 if bound_ns is None else bound_ns, client.rank, client.number, request.number)
