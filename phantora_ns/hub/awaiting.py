"""LOOKUPs that are held back because a leader may be about to measure the kernel.

Why it exists: while a leader runs (docs/leading.md), a LOOKUP of a signature without a measurement is
held back. When the measurement arrives, it is the answer. When no measurement can come any more, the
answer is an estimate, and is counted. That is so when the leader has left, when it could not measure
the kernel itself, or when it waits (directly or not) for the rank that asks.

The last case is known when every client is stuck: blocked in a request, waiting here, or idle outside
of our calls. Then the rank that is furthest behind gets its estimate. The others continue to wait,
because the leader may still reach what they ask for.

A held LOOKUP bounds virtual time by the clock of the rank that asks. When all clients are stuck, this
bound may be the only thing that keeps an answer from the leader. Then it is waived, like that of a
client that is blocked outside of our calls (hub/horizon.py), before anything is estimated.

A leader that has started but has not sent HELLO yet is detected by the lock on RUN_DIR/leader.lock.
It holds this lock for its lifetime.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from phantora_ns.hub import horizon
from phantora_ns.hub.registry import Client, lock_owner, ranks_missing
from phantora_ns.hub.requests import Request

POLL_MS = 10
"""Time between checks of clients that may be idle while a LOOKUP is held. A client that blocks in a
request is noticed at once."""
STILL_S = 0.5  # as stillness.UNSEEN_S
"""A leader is blocked outside of our calls when its clock stands still for this long and its process
tree sleeps. Loading modules and compiling keep a processor or a child process busy; waiting on a
socket does not."""
ARRIVAL_S = 30.0
"""Other clients may wait for ranks that have not come yet, and importing torch takes long on a busy
machine. After this long without any event, no further rank is expected."""


class Held(Request):
    """A LOOKUP that is not answered yet. `signature`: (kind, fields); `rest`: (context, parameters),
    which estimates need too."""

    __slots__ = ("key", "token", "signature", "rest", "clock_ns", "waived")

    def __init__(
        self,
        client: Client,
        number: int,
        key: int,
        token: bytes,
        signature: tuple[int, list[Any]],
        rest: tuple[Any, Any],
    ) -> None:
        super().__init__(client, number)
        self.key = key
        self.token = token
        self.signature = signature
        self.rest = rest
        self.clock_ns = client.clock_ns
        self.waived = False

    def settled_ns(self) -> int | None:
        """Always None: a measurement or `Awaiting` decides when it is answered."""
        return None

    def bound_ns(self) -> int | None:
        """The rank's clock when it asked. None while the bound is waived."""
        return None if self.waived else self.clock_ns

    def floor_ns(self) -> int:
        """The rank's clock when it asked, waived or not: its next action is no earlier."""
        return self.clock_ns


class Awaiting:
    """The LOOKUPs held back in one run. `leader`: the rank that is to lead, None when none is."""

    def __init__(self, run_dir: Path, leader: int | None) -> None:
        self.leader = leader
        self.awaited = 0
        self.estimated: Counter[int] = Counter()
        """LOOKUPs that waited and were then estimated, by rank."""
        self.unknown: dict[bytes, tuple[tuple[int, list[Any]], set[int]]] = {}
        """Signatures that were answered without a measurement, and the ranks that asked. Some may
        have been measured later."""
        self.led: set[int] = set()
        """Ranks that came as leaders."""
        self._lock_path = run_dir / "leader.lock"
        self._held: list[Held] = []
        self._hopeless: set[bytes] = set()
        self._lock_seen = False
        self._asked_at: float | None = None
        self._since = 0.0
        self._seen: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self._held)

    def expected(self, clients: Collection[Client]) -> bool:
        """Whether a leader that measures runs, or may still come. O(clients)."""
        if self.leader is None:
            return False
        leaders = [client for client in clients if client.leads]
        if leaders:
            return any(client.measures for client in leaders)
        if self._lock_owner() is not None:
            return True
        if self.led or self._lock_seen:  # the leader has run and has left
            return False
        return self._asked_at is None or time.monotonic() - self._asked_at < ARRIVAL_S

    def hold(self, held: Held) -> bool:
        """Holds a LOOKUP back. Returns False when its signature cannot be measured."""
        if held.token in self._hopeless:
            return False
        if not self._held:
            self._moved()
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self._held.append(held)
        held.client.pending[held.number] = held
        self.awaited += 1
        return True

    def give_up(self, token: bytes) -> None:
        """Records that the leader itself could not measure a signature, so waiting is useless."""
        self._hopeless.add(token)

    def answer_without(self, request: Held, after_waiting: bool) -> None:
        """Counts a LOOKUP that is answered without a measurement."""
        self.unknown.setdefault(request.token, (request.signature, set()))[1].add(
            request.client.rank
        )
        if after_waiting:
            self.estimated[request.client.rank] += 1

    def take(self, token: bytes) -> list[Held]:
        """Removes and returns the LOOKUPs that wait for a signature."""
        return self._take(lambda held: held.token == token)

    def take_all(self) -> list[Held]:
        """Removes and returns all LOOKUPs that wait."""
        return self._take(lambda held: True)

    def take_first(self) -> list[Held]:
        """Removes and returns the LOOKUPs for the signature that the rank furthest behind has asked
        for."""
        waiting = [held for held in self._held if held.open]
        if not waiting:
            self._held.clear()
            return []
        first = min(waiting, key=lambda held: (held.clock_ns, held.client.rank, held.number))
        return self.take(first.token)

    def waive(self, waived: bool) -> None:
        """Sets whether held LOOKUPs are left out of the bound on virtual time."""
        for held in self._held:
            held.waived = waived

    def stuck(
        self,
        everyone: Collection[Client],
        stands_still: Callable[[Collection[Client], Collection[Client]], bool],
    ) -> bool:
        """Whether no client can act before a held LOOKUP is answered. `everyone` includes clients
        that have left. `stands_still(acting, clients)`: whether the job does, given which clients
        are not blocked on us."""
        clients = [client for client in everyone if not client.gone]
        position = tuple((client.number, client.seq, client.bound_ns()) for client in clients)
        if position != self._seen:
            self._seen = position
            self._moved()
        still_s = time.monotonic() - self._since
        # the leader does not count: its lock shows whether it runs
        if ranks_missing(everyone, but={self.leader}) and still_s < ARRIVAL_S:
            return False
        acting = [
            client
            for client in horizon.acting(clients)
            # a leader that waits for its GPU, which waits for values of other ranks
            if not (client.leads and client.fetches and still_s >= STILL_S)
        ]
        if acting and not stands_still(acting, clients):
            return False
        if any(client.leads for client in clients):
            return True
        owner = self._lock_owner()
        return still_s >= (STILL_S if owner and horizon.tree_sleeps(owner) else ARRIVAL_S)

    def _take(self, chosen: Callable[[Held], bool]) -> list[Held]:
        taken = [held for held in self._held if held.open and chosen(held)]
        self._held = [held for held in self._held if held.open and not chosen(held)]
        if taken:
            self._moved()
        for held in taken:
            held.waived = False
        return taken

    def _moved(self) -> None:
        self._since = time.monotonic()

    def _lock_owner(self) -> int | None:
        """The leader's PID (0 when we cannot see it); None when no process holds the lock."""
        try:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            owner = lock_owner(descriptor)
        finally:
            os.close(descriptor)
        self._lock_seen |= owner is not None
        return owner
