"""The FETCHes that are not answered yet, and which of them never will be.

Why it exists: a rank that reads the result of a small collective waits for the other members, for as
long as the run lives. Some results can never come: a member has ended without its part, or all
members that could still contribute wait for one another. Real hosts do not wait for such results
(their GPUs do), so the simulator itself may cause the second case. In both cases the waiting rank
must fail with an error message. It must not time out, nor get a value that was never computed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from phantora_ns.hub import horizon
from phantora_ns.hub.communicators import Waiter
from phantora_ns.hub.registry import Client

LOOK_S = 0.5
"""Seconds between checks of the missing members."""
STUCK_S = 60.0
"""Ranks that wait for one another and send nothing for this many seconds are stuck. Only a thread
that neither computes nor talks to us could still help them."""


class Hopeless(NamedTuple):
    """A FETCH that cannot be answered: the client that waits, and the reason as text for a person."""

    client: Client
    text: str


class Fetches:
    """All open FETCHes of a run."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], Waiter] = {}
        self._opened_at: dict[tuple[int, int], int] = {}
        """How many messages the client had sent by then (`Client.acts`)."""
        self._looked = 0.0
        self._suspects: set[tuple[int, int]] = set()
        self._seen: tuple[tuple[int, bool], ...] = ()
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, waiter: Waiter) -> None:
        """Adds a FETCH."""
        key = waiter.client.number, waiter.number
        self._open[key] = waiter
        self._opened_at[key] = waiter.client.acts
        waiter.client.fetches.add(waiter.number)

    def close(self, waiter: Waiter) -> None:
        """Removes a FETCH that was answered."""
        self._drop((waiter.client.number, waiter.number))
        waiter.client.fetches.discard(waiter.number)

    def hopeless(self, everyone: Sequence[Client]) -> list[Hopeless]:
        """Removes and returns the FETCHes that fail now. `everyone`: clients by number, including
        those that have gone. O(clients) every LOOK_S, else O(1)."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return []
        self._looked = now
        ended = {client.number for client in everyone if client.ended()}
        for key in [key for key, waiter in self._open.items() if _over(waiter.client, ended)]:
            self._drop(key)
        found: dict[tuple[int, int], Hopeless] = {}
        absent = {id(waiter.exchange): waiter.absent() for waiter in self._open.values()}
        for key, waiter in self._open.items():
            missing = [everyone[number] for number in absent[id(waiter.exchange)]]
            # That of the first to end; others may have been ended because of it.
            first = min(
                (client for client in missing if client.number in ended),
                key=lambda client: client.died_s,
                default=None,
            )
            if first is not None:
                found[key] = Hopeless(
                    waiter.client,
                    f"{waiter.client.name} waits for the result of {waiter.what}, and {first.name} "
                    "has ended without its part; in the job; see why that process ended",
                )
        # Two checks in a row must agree, because messages are handled between them.
        suspects, self._suspects = self._suspects, set(found)
        found = {key: hopeless for key, hopeless in found.items() if key in suspects}
        if not self._suspects and self._still(everyone, now):
            for key, waiter in self._open.items():
                if self._stuck(waiter.client, everyone, ended):
                    names = ", ".join(everyone[number].name for number in waiter.absent())
                    found[key] = Hopeless(
                        waiter.client,
                        f"{waiter.client.name} reads the result of {waiter.what} on the host, and "
                        f"{names} cannot come to it before {waiter.client.name} goes on; in the "
                        "job; read small results later than what the other ranks wait for",
                    )
        for key in found:
            self._drop(key)
        return list(found.values())

    def _drop(self, key: tuple[int, int]) -> None:
        self._open.pop(key, None)
        self._opened_at.pop(key, None)

    def _blocking(self, client: Client) -> Waiter | None:
        """The FETCH that the client's host waits for: the client has sent nothing since, apart from
        threads that only watch. None for a leader, whose host continues."""
        if client.leads:
            return None
        for number in client.fetches:
            key = client.number, number
            if self._opened_at.get(key) == client.acts:
                return self._open[key]
        return None

    def _still(self, everyone: Sequence[Client], now: float) -> bool:
        """Whether no client has sent anything for STUCK_S."""
        seen = tuple((client.acts, client.gone) for client in everyone)
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since >= STUCK_S

    def _stuck(self, client: Client, everyone: Sequence[Client], ended: set[int]) -> bool:
        """Whether all clients that `client` waits for, directly or not, wait as well. O(clients),
        plus a look at their processes."""
        living = {client.number for client in everyone} - ended
        world = max((everyone[number].world_size for number in living), default=-1)
        ranks = {client.rank for client in everyone if client.rank >= 0}
        seen, todo = {client.number}, [client]
        while todo:
            one = todo.pop()
            if one.pending:  # it waits for a time, which may depend on any client
                others = living
                if len(ranks) < world:
                    return False
            elif (waiter := self._blocking(one)) is not None:
                others = {everyone[number].number for number in waiter.absent()}
            else:
                return False
            pid = one.stats.owner()
            if pid is None or (pid and not horizon.tree_sleeps(pid)):
                return False
            todo += [everyone[number] for number in others - seen]
            seen |= others
        return True


def _over(client: Client, ended: set[int]) -> bool:
    """Whether this client no longer waits for its FETCHes, because it has ended or was failed."""
    return client.number in ended or client.failure is not None
