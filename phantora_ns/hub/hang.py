"""Jobs in which nothing can go on.

Why it exists: ranks that disagree about their communication wait for ever. On a cluster PyTorch's
time-outs end such a job, minutes later. They count simulated time here (libintercept/time/time_outs.c),
and simulated time stands still while all ranks wait. So the hub says so once, by a file in RUN_DIR,
and lets the time-outs pass.

A job hangs when every rank has come, some wait for communication whose end is unknown, no answer is
known that could be given, and the whole job stands still (stillness.py). Ranks that wait outside of
our calls may still be freed from outside of the job, such as by a person at a debugger. So they must
have stood still for much longer.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from phantora_ns.hub import horizon
from phantora_ns.hub.registry import Client
from phantora_ns.hub.stillness import Stillness

FILE = "hangs"  # libintercept/time/time_outs.h
LOOK_MS = 500
SUSPECT_MS = 5
"""Milliseconds between looks, before and after nobody has acted for long. Messages of watchdogs
come in between, and their answers must be out before a look."""
BLOCKED_S = 2.0
"""How long nobody must have acted when all ranks wait for communication."""
OUTSIDE_S = 60.0
"""The same when some wait outside of our calls."""


class Hang:
    """Finds out, once, that the job of one run hangs."""

    def __init__(self, run_dir: Path, stillness: Stillness) -> None:
        self._path = run_dir / FILE
        self._stillness = stillness
        self._seen: object = None
        self._since = 0.0
        self.found = False

    def look_ms(self) -> int:
        """How long to wait for messages before the next look."""
        return SUSPECT_MS if time.monotonic() - self._since >= BLOCKED_S else LOOK_MS

    def look(self, everyone: Collection[Client]) -> str | None:
        """What hangs, as text for a person, when that is new. `everyone` includes clients that have
        left."""
        clients = [client for client in everyone if not client.gone]
        now = time.monotonic()
        seen = tuple((client.number, client.acts, client.bound_ns()) for client in clients)
        if seen != self._seen:
            self._seen, self._since = seen, now
            return None
        waiting = [client for client in clients if client.pending]
        acting = horizon.acting(clients)
        still_s = now - self._since
        if not waiting or still_s < (OUTSIDE_S if acting else BLOCKED_S) or _missing(everyone):
            return None
        # Any thread of a blocked client may still send what the others wait for.
        if not self._stillness.reached(clients, clients) or self._stillness.past_sleepers:
            return None
        self.found = True
        self._path.touch()
        names = ", ".join(sorted(client.name for client in waiting))
        return (
            f"nothing in the job can go on: {names} wait for communication that other ranks do not "
            "come to; in the job; PyTorch's time-outs pass now"
        )


def _missing(everyone: Collection[Client]) -> bool:
    """Whether ranks of the job have not come yet."""
    world = max((client.world_size for client in everyone), default=-1)
    return len({client.rank for client in everyone if client.rank >= 0}) < world
