"""The processes of the job, their rank statistics, and the communicators that they form.

Why it exists: it holds everything that the hub knows about a client except times. A client is one
process. Its shared rank statistics give the clock without a message. The lock on their file shows
whether the process still lives.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections import deque
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from phantora_ns.cures import cure_of
from phantora_ns.protocol import (
    RANK_STATS,
    RANK_STATS_AT,
    RANK_STATS_MAGIC,
    RANK_STATS_VERSION,
    RankStats,
)
from phantora_ns.sim.graph import Communicator, Rendezvous, Vertex

_CLOCK, _SENT_SEQ, _BLOCKED, _WAITING = (
    RANK_STATS_AT[field] // 8 for field in ("clock_ns", "sent_seq", "blocked", "waiting")
)
LAST_WORDS_S = 10.0
"""How long a message may be on its way from a process that has ended."""
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux, bits/fcntl.h


def lock_owner(descriptor: int) -> int | None:
    """The PID, in our PID namespace, of the process that holds a POSIX lock on a file's first byte.
    None when no living process does.

    0 when the holder lives in a PID namespace that we cannot see into.
    """
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _unreadable(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):  # too short: another version wrote it
        return f"{path}: {error}; run make build"
    cure = cure_of(error, "the run directory must stay until the job has ended")
    return f"{path}: {error.strerror}; {cure}"


class StatsError(Exception):
    """A client's rank statistics are missing or malformed; the text says which."""


class SharedStats:
    """A client's rank statistics in shared memory, read-only. Raises StatsError when `path` is not
    such a file."""

    __slots__ = ("_descriptor", "_map", "_words")

    def __init__(self, path: Path) -> None:
        try:
            # Opening a FIFO would wait for its writer. mmap refuses whatever is not a file.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._descriptor = os.open(path, flags)
        except OSError as error:
            raise StatsError(_unreadable(path, error)) from None
        try:
            self._map = mmap.mmap(self._descriptor, RANK_STATS.size, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            os.close(self._descriptor)
            raise StatsError(_unreadable(path, error)) from None
        self._words = memoryview(self._map).cast("Q")
        if (self._words[0], self._words[1]) != (RANK_STATS_MAGIC, RANK_STATS_VERSION):
            self.close()
            raise StatsError(
                f"{path}: no rank statistics of version {RANK_STATS_VERSION}; run make build"
            )

    def clock_ns(self, handled_seq: int) -> int | None:
        """The client's clock. None if a message sent since `handled_seq` may have made it
        invalid."""
        words = self._words
        clock_ns = words[_CLOCK]
        return clock_ns if words[_SENT_SEQ] == handled_seq else None

    def quiet(self, handled_seq: int) -> bool:
        """Whether nothing is in transit between the client and us: no message, and no reply that it
        has yet to take."""
        return self.handled(handled_seq) and self._words[_BLOCKED] == 0

    def waiting(self) -> int:
        """How many threads of the client wait for a reply, or have yet to take it."""
        return self._words[_WAITING]

    def handled(self, handled_seq: int) -> bool:
        """Whether every message that the client counted as sent has been handled."""
        return self._words[_SENT_SEQ] == handled_seq

    def owner(self) -> int | None:
        """The PID of the client as `lock_owner` sees it; None when it has died."""
        return lock_owner(self._descriptor)

    def all(self) -> RankStats:
        """Every field, as it is now."""
        return RankStats.unpack(self._map[: RANK_STATS.size])

    def close(self) -> None:
        """Closes the mapping and the file."""
        self._words.release()
        self._map.close()
        os.close(self._descriptor)


class Client:
    """One process of the job, from HELLO to BYE or its death."""

    def __init__(
        self, identity: bytes, number: int, info: dict[Any, Any], stats: SharedStats
    ) -> None:
        self.identity = identity
        self.number = number
        self.rank = _integer(info.get("rank"), -1)
        self.world_size = _integer(info.get("world_size"), -1)
        self.node = _integer(info.get("node"), 0)
        self.device = -1
        self.leads = info.get("leader") == 1
        """Whether it runs on a real GPU (docs/leading.md)."""
        self.measures = self.leads and info.get("measures", 1) == 1
        """Whether it measures what the others ask for. A leader that records its host's costs does
        not."""
        self.shm = info.get("shm")
        self.stats = stats
        self.seq = 1
        self.watches = 0
        """Its messages of threads that only watch, such as NCCL's watchdog."""
        self.clock_ns = 0
        self.anchor: Vertex | None = None  # the last vertex whose time it was sent
        self.messages = 1
        self.pending: dict[int, Any] = {}  # its open requests (requests.py), by number
        self.fetching: int | None = None
        """The unanswered FETCH that was its last message but for those of threads that only watch. A
        client that sends more has other running threads. None for a leader, whose host continues."""
        self.parting = False
        """Its last message was PARTING, but for those of threads that only watch: it can act only after another
        client has ended."""
        self.fetches: set[int] = set()
        """Its open FETCHes. For a leader, only its GPU waits for them."""
        self.results: dict[tuple[int, int], tuple[Any, int]] = {}
        self.results_dropped_to = 0
        """The vertex whose result, the oldest at that time, was last dropped to make room."""
        self.complaint: str | None = None
        """The error in its first invalid message, which usually explains later ones."""
        self.absent: tuple[Absent, ...] = ()
        """The ranks that do not run and do what this one does (folding.py)."""
        self.unsettled: list[Vertex] = []
        """The anchors of those that are not known to be where this client's is."""
        self.gone = False
        self._last: RankStats | None = None
        self.failure: str | None = None
        self.pid: int | None = None
        """As `SharedStats.owner` gave it; None before that was asked."""
        self.died_s = 0.0
        """When its end was noticed, on the monotonic clock; 0 before that."""

    def numbers(self) -> tuple[int, ...]:
        """Its number in the event graph, and those of the absent ranks that do the same."""
        return (self.number, *(absent.number for absent in self.absent))

    def statistics(self) -> RankStats:
        """Its rank statistics; those at its end when it has left."""
        return self.stats.all() if self._last is None else self._last

    @property
    def acts(self) -> int:
        """Its messages so far, without those of threads that only watch."""
        return self.seq - self.watches

    @property
    def waits_for_others(self) -> bool:
        """Whether it can act only after another client has, though it waits for no time."""
        return self.parting or self.fetching is not None

    def ended(self) -> bool:
        """Whether its process has ended and everything that it sent has been handled. A process that
        was killed while sending counts as ended LAST_WORDS_S after its death was noticed."""
        if self.gone:
            return True
        if self.stats.owner() is not None:
            return False
        now = time.monotonic()
        self.died_s = self.died_s or now
        return self.stats.handled(self.seq) or now - self.died_s >= LAST_WORDS_S

    @property
    def name(self) -> str:
        """The client's name in a message to a person."""
        return (
            f"rank {self.rank}" if self.rank >= 0 else f"process {self.number} on node {self.node}"
        )

    def bound_ns(self) -> int:
        """A lower bound on the time of any action while it runs, the absent ranks' included."""
        stats_ns = self.stats.clock_ns(self.seq)
        own_ns = self.clock_ns if stats_ns is None else max(self.clock_ns, stats_ns)
        return max(0, own_ns - self.behind_ns()) if self.unsettled else own_ns

    def behind_ns(self) -> int:
        """How far the last of the absent ranks is behind this client: they have done the same since
        their anchors."""
        if not self.unsettled:
            return 0
        assert self.anchor is not None and self.anchor.time_ns is not None
        times = [vertex.time_ns for vertex in self.unsettled if vertex.time_ns is not None]
        return max(0, self.anchor.time_ns - min(times, default=self.anchor.time_ns))

    def end_ns(self) -> int:
        """Its clock now, or when it left. Its last messages may be lost, so its page counts too."""
        return max(self.clock_ns, self.statistics().clock_ns)

    def leave(self) -> None:
        """Marks the client as ended; nothing waits for it any more."""
        self.gone = True
        self.died_s = self.died_s or time.monotonic()
        self._last = self.stats.all()
        self.pending.clear()
        self.results.clear()
        self.stats.close()


class Absent:
    """A rank of a folded job that does not run. `of` does what it would do.

    `groups`: its communicators, by the representative's number of each.
    """

    __slots__ = ("number", "rank", "node", "of", "groups", "told")

    def __init__(self, number: int, rank: int, node: int, of: Client) -> None:
        self.number = number
        self.rank = rank
        self.node = node
        self.of = of
        self.groups: dict[int, int] = {}
        self.told: deque[int] = deque()
        """Waits for communication that the representative was told, and this rank was not yet."""

    @property
    def name(self) -> str:
        """Its name in a message to a person."""
        return f"rank {self.rank}, for which rank {self.of.rank} stands,"


def positions(clients: Iterable[Client]) -> tuple[tuple[int, int, int], ...]:
    """How far each client has come. Two that are equal: none of them has acted in between, and no
    clock has moved. O(clients)."""
    return tuple((client.number, client.acts, client.bound_ns()) for client in clients)


def ranks_missing(everyone: Iterable[Client], but: Collection[int | None] = ()) -> bool:
    """Whether ranks of the job have not come yet, those of `but` left aside. `everyone` includes
    clients that have left. O(clients)."""
    everyone = list(everyone)
    world = max((client.world_size for client in everyone), default=-1)
    ranks = {client.rank for client in everyone if client.rank >= 0}
    ranks |= {absent.rank for client in everyone for absent in client.absent}
    return len(ranks.union(but)) < world


class Meeting:
    """A communicator being formed: the members of `size` that have come, and the vertex that all of
    them will share.

    `arrivals` maps a member's rank to (client, request, the rest of its message).
    """

    __slots__ = ("size", "vertex", "arrivals")

    def __init__(self, size: int, vertex: Rendezvous) -> None:
        self.size = size
        self.vertex = vertex
        self.arrivals: dict[int, tuple[Client, Any, Any]] = {}

    @property
    def complete(self) -> bool:
        """Whether every member has come."""
        return len(self.arrivals) == self.size

    def deserted_by(self, rank: int) -> bool:
        """Whether this member has come and ended: another process in its place began later."""
        return rank in self.arrivals and self.arrivals[rank][0].gone


class Group:
    """A communicator with the hub's additions: splits in progress and the clients that released
    it."""

    __slots__ = ("comm", "ranks", "running", "whole", "splits", "open_splits", "left")

    def __init__(
        self, comm: Communicator, ranks: tuple[int, ...], running: int, whole: bool
    ) -> None:
        self.comm = comm
        self.running = running
        """How many of its members run: all, but in a folded job."""
        self.ranks = ranks
        """The job's ranks of its members."""
        self.whole = whole
        """Of a folded job: it holds whole classes, absent ranks included."""
        self.splits: dict[int, int] = {}
        self.open_splits: dict[int, Meeting] = {}
        self.left: dict[int, int] = {}
        """When each client that released it did so, ns."""


def split_members(arrivals: dict[int, tuple[int, int]]) -> dict[int, list[int]]:
    """color -> old ranks in their new order, from old rank -> (color, key). Negative colors take no
    part.

    Ordered by (key, old rank), as MPI_Comm_split does (MPI 4.0, section 7.4.2) and ncclCommSplit
    documents.
    """
    groups: dict[int, list[int]] = {}
    for rank in sorted(arrivals, key=lambda rank: (arrivals[rank][1], rank)):
        color = arrivals[rank][0]
        if color >= 0:
            groups.setdefault(color, []).append(rank)
    return dict(sorted(groups.items()))


def _integer(value: object, default: int) -> int:
    return value if type(value) is int and -1 <= value < 1 << 31 else default
