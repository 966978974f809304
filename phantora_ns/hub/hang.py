"""Jobs in which nothing can go on.

Why it exists: ranks that disagree about their communication wait for ever. On a cluster PyTorch's
time-outs end such a job, minutes later. Here they count simulated time (libintercept/time/time_outs.c),
which stands still while all ranks wait. So the hub says so by a file in RUN_DIR, and simulated time
passes for the time-outs alone. The file goes away as soon as a rank acts.

A job hangs when some client waits for others, no answer is known, and the job has stood still
(stillness.py) for a while. How long depends on what could still wake it up:

- Every rank is blocked in our calls: only another thread of theirs. BLOCKED_S.
- The same, but a thread sleeps again and again. POLLED_S.
- Some rank waits outside of our calls, or has not come yet. Whatever it waits for may come from
  outside of the job, in real time. OUTSIDE_S.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from phantora_ns.hub import horizon
from phantora_ns.hub.registry import Client, positions, ranks_missing
from phantora_ns.hub.requests import Joining
from phantora_ns.hub.stillness import Stillness

FILE = "hangs"
"""PH_HANG_FILE of libintercept/time/time_outs.h."""
LOOK_MS = 500
DUE_MS = 5
"""Milliseconds between looks, and between attempts at one that is due: watchdogs send messages, and a
look needs a moment without any."""
ATTEMPTS = 8
"""How many such attempts follow one another."""
BLOCKED_S = 2.0
POLLED_S = 60.0
OUTSIDE_S = 600.0
"""The last is PyTorch's default for the time-out of NCCL's communication."""
GRACE_S = 180.0
"""How long PyTorch has to end the job after that. It may first wait a minute for its flight recorder."""


class Verdict(NamedTuple):
    """That the job hangs, as text for a person. `ends_by_itself`: whether time-outs may end it."""

    text: str
    ends_by_itself: bool


class Hang:
    """Finds out whether the job of one run hangs."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE
        # Its own: what it leaves out after a while must not change which answers are released.
        self._stillness = Stillness()
        self._seen: object = None
        self._since = 0.0
        self._looked = 0.0
        self._awake = self._attempts = 0
        self._found_at: float | None = None

    def look_ms(self) -> int:
        """How long to wait for messages before the next look."""
        left_ms = LOOK_MS - round((time.monotonic() - self._looked) * 1000)
        return max(left_ms, DUE_MS)

    def look(self, everyone: Collection[Client]) -> Verdict | None:
        """Says that the job hangs, when that is new. `everyone` includes clients that have left."""
        now = time.monotonic()
        if now - self._looked < LOOK_MS / 1000:
            return None
        clients = [client for client in everyone if not client.gone]
        seen = positions(clients)
        if seen != self._seen:
            self._seen, self._since, self._looked, self._awake = seen, now, now, 0
            self._over()
            return None
        if self._found_at is not None:
            return self._hopeless(now)
        if not self._stands_still(clients, now):
            return None
        outside = bool(horizon.acting(clients)) or ranks_missing(everyone)
        patience_s = (
            OUTSIDE_S if outside else POLLED_S if self._stillness.past_sleepers else BLOCKED_S
        )
        return self._found(clients) if now - self._since >= patience_s else None

    def _stands_still(self, clients: Collection[Client], now: float) -> bool:
        """Whether the job stands still, by two looks. When somebody was awake at two looks in a row,
        the job works, and the time that it stood still begins anew."""
        # any thread of a blocked client may still send what the others wait for
        if self._stillness.reached(clients, clients):
            self._looked, self._awake = now, 0
            return True
        self._attempts += 1
        if self._stillness.found_still and self._attempts % ATTEMPTS:
            return False  # the second look comes soon
        self._looked = now
        self._awake = self._awake + 1 if self._stillness.found_awake else 0
        if self._awake > 1:
            self._since = now
        return False

    def _found(self, clients: Collection[Client]) -> Verdict:
        waiting = [client for client in clients if client.pending or client.fetching is not None]
        names = ", ".join(sorted(client.name for client in waiting))
        requests = [request for client in waiting for request in client.pending.values()]
        if requests and all(isinstance(request, Joining) for request in requests):
            text = "wait for a communicator that other ranks do not come to; in the job; see where"
            return Verdict(f"nothing in the job can go on: {names} {text} those ranks are", False)
        self._found_at = time.monotonic()
        self._path.touch()
        text = "wait for communication that other ranks do not come to; in the job"
        return Verdict(
            f"nothing in the job can go on: {names} {text}; PyTorch's time-outs pass now", True
        )

    def _hopeless(self, now: float) -> Verdict | None:
        assert self._found_at is not None
        if now - self._found_at < GRACE_S:
            return None
        text = (
            f"nothing in the job can go on, and no time-out of its own ended it in {GRACE_S:.0f} s"
        )
        return Verdict(f"{text}; in the job; see what its ranks wait for", False)

    def _over(self) -> None:
        if self._found_at is not None:
            self._path.unlink(missing_ok=True)
            self._found_at = None
