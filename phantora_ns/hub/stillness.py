"""Whether nobody in the job can act any more before the hub answers.

Why it exists: a rank that waits outside of our calls (in a socket, for a lock, for a worker) holds the
others' answers back, because its clock stands still. It may be waiting for a rank whose answer waits
for it. It is left out only when the whole job stands still; otherwise the answers would depend on how
long it slept in real time, and runs would not repeat. The job stands still when

- every client is blocked on an answer, or nothing is in transit between it and us;
- no thread of the job is awake, stopped, or in disk sleep: not in ranks, their workers, agents, nor
  in our own process, whose other threads carry messages;
- no thread of a client that could act, or of a process that it started, sleeps for a time. Such a
  sleep ends by itself.

Two looks must agree, LOOK_MS apart, with no thread awake and no message in between. They take
processes one after another, so a single look could miss an action that is passed on.

A thread that sleeps again and again keeps the job from standing still for ever. Once it has slept for
PATIENCE_S at one place of its code, without any action of the job, it is left out from then on. Only
its sleep counts: a rank that has been stopped, that waits for a disk or for a processor, and then
sleeps for once is waited for, however busy the machine is. On a busy machine the job itself is slower,
so patience is longer in proportion (`_crowd`). While a rank works, patience does not run. A
rank that only wakes up to look works less than WORKS of the time. What works all the time without
being a rank is left out after WORK_PATIENCE_S. Each answer that is released past such a thread is
counted: it may come out differently in another run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from phantora_ns.hub.processes import (
    ENDED,
    NAMED_WATCHERS,
    Process,
    Thread,
    active_ns,
    parent_of,
    read_stat,
)
from phantora_ns.hub.registry import Client, positions
from phantora_ns.hub.waits import Wait

LOOK_MS = 2
"""Milliseconds between two looks. Long enough for the kernel to deliver a packet."""
BUSY_S = 0.02
"""How long a thread that is awake at every call answers for the whole job, before all is looked at
again."""
UNSEEN_S = 0.5
"""A client whose PID we cannot see, and a leader, which waits for a real GPU, must not have moved for
this long."""
PATIENCE_S = 10.0
"""On an idle machine: a thread that has slept this long at one place, without an action of the job,
sleeps again and again."""
SURVEY_S = 0.25
"""How often all sleepers are looked at, and not the first alone. A longer time from one look to the next
counts as no more than twice this: the thread may have done something else in between."""
SURVEY_SHARE = 0.05
"""Surveys take no more than this share of the hub's time: in large jobs they are rarer."""
WORK_PATIENCE_S = 60.0
"""How long work outside of ranks that could act is waited for, without an action."""

WORKS = 0.5
"""A thread works when it runs, or waits for a processor, for this share of WORKS_S or more."""
WORKS_S = 1.0

UNCOUNTED = (*NAMED_WATCHERS, "ZMQbg/")
"""Beginnings of the names of threads that are awake now and then: watchdogs, and the threads that
carry their messages."""

Place = tuple[int, int]  # PID and TID


def _crowd() -> float:
    """Runnable threads per processor (load average of the last minute), at least 1. The job's own
    actions take about that many times as long as on an idle machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _too_long(slept_s: float) -> bool:
    """Whether patience with a sleeper is over. The load is read only when it matters."""
    return slept_s >= PATIENCE_S and slept_s >= PATIENCE_S * _crowd()


class Look(NamedTuple):
    """One look. `switches`: how often each thread that counts had gone to sleep; None when somebody
    could act. `still`: whether the look before it saw the same."""

    at: float
    switches: dict[Place, int] | None
    still: bool


class Sleeper(NamedTuple):
    """A thread that sleeps for a time. `place`: its stack pointer; `at`: of the last look that found it
    there, and what `active_ns` said then; `slept_s`: how long it has slept at one place or another."""

    place: int
    at: float
    active: int
    slept_s: float


class Stillness:
    """Looks at the job's processes. `warn(text)` tells the user once what the kernel hides."""

    def __init__(self, warn: Callable[[str], None] = lambda text: None) -> None:
        self.past_sleepers = False
        """Whether the job stood still at the last look only without threads that were left out."""
        self._warn = warn
        self._warned = False
        self._processes: dict[int, Process] = {}
        self._roots: dict[int, int] = {}
        self._left_out: set[Place] = set()
        self._busy: Place | None = None
        self._awake: dict[Place, tuple[float, int]] = {}
        """Threads of ranks that were seen awake: since when, and what `active_ns` said then."""
        self._sleepers: dict[Place, Sleeper] = {}
        """Threads that hinder by their sleep, since the last action."""
        self._next_survey = 0.0
        self._looks: dict[frozenset[int], Look] = {}
        """The last look for each set of acting clients that was asked about. Two parts of the hub
        ask, of different sets."""
        self._called = 0.0
        """When `reached` was last answered by more than `_busy`."""
        self._position: object = None
        self._since = 0.0

    def reached(self, acting: Collection[Client], clients: Collection[Client]) -> bool:
        """Whether the job stands still. `acting`: the clients that are not blocked on an answer."""
        now = time.monotonic()
        if now - self._called < BUSY_S and self._still_busy():
            return False
        self._called = now
        position = positions(clients)
        if position != self._position:
            self._position, self._since = position, now
            self._looks.clear()
            self._awake.clear()
            self._sleepers.clear()
        asked = frozenset(client.number for client in acting)
        last = self._looks.get(asked)
        if last is not None and now - last.at < LOOK_MS / 1000:
            return last.still
        switches = None
        if all(map(_answered, clients)):
            switches = self._look_at_all(acting, clients, now)
        still = switches is not None and last is not None and switches == last.switches
        self._looks[asked] = Look(now, switches, still)
        return still

    @property
    def found_still(self) -> bool:
        """Whether nobody could act at a last look. A second one has to confirm it."""
        return any(look.switches is not None for look in self._looks.values())

    @property
    def found_awake(self) -> bool:
        """Whether the last look ended at a thread that was awake."""
        return self._busy is not None

    def _look_at_all(
        self, acting: Collection[Client], clients: Collection[Client], now: float
    ) -> dict[Place, int] | None:
        still_s = now - self._since
        pids = self._pids(clients)
        acting_pids = {pids[client.number] for client in acting}
        if still_s < UNSEEN_S and (0 in acting_pids or any(client.leads for client in acting)):
            return None
        leading = {pids[client.number] for client in clients if client.leads} - acting_pids
        return self._look(acting_pids, set(pids.values()) - {0}, leading, now)

    def _pids(self, clients: Collection[Client]) -> dict[int, int]:
        """PIDs of clients by number; 0 for those that we cannot see."""
        for client in clients:
            if client.pid is None:
                client.pid = client.stats.owner()
        return {client.number: client.pid or 0 for client in clients}

    def _look(
        self,
        acting: Collection[int],
        clients: Collection[int],
        leading: Collection[int],
        now: float,
    ) -> dict[Place, int] | None:
        """Looks once at all threads: how often each that counts has gone to sleep. None when
        somebody can act. The threads of blocked leaders (`leading`) may work for their GPU."""
        if self._still_busy():
            if self._busy is not None and self._busy in self._awake:
                self._note_work(self._busy, now)
                return None
            if now - self._since < WORK_PATIENCE_S:
                return None
        own = threading.get_native_id()
        still_s = now - self._since
        switches: dict[Place, int] = {}
        self.past_sleepers = hindered = False
        hinders: list[Place] = []
        survey = now >= self._next_survey
        for process, acts in self._tree(acting, clients):
            try:
                for tid, thread in process.look():
                    place = process.pid, tid
                    if tid == own or process.pid in leading:
                        continue
                    if thread.wait is Wait.NONE and acts and process.pid in acting:
                        self._busy = place
                        self._note_work(place, now)
                        return None
                    if _hinders(thread, acts):
                        if place in self._left_out:
                            self.past_sleepers = True
                        elif thread.wait is Wait.NONE:
                            if still_s < WORK_PATIENCE_S:
                                self._busy = place
                                return None
                            hinders.append(place)
                        elif _too_long(self._slept_s(place, thread, now, survey)):
                            hinders.append(place)
                        elif survey:
                            hindered = True
                        else:
                            return None
                    elif thread.wait is Wait.EVENT and not thread.name.startswith(UNCOUNTED):
                        switches[place] = thread.switches
            except OSError:  # it has ended: its parent will notice
                self._processes.pop(process.pid, None)
                return None
            if process.hidden and not self._warned:
                self._warned = True
                self._warn(
                    "the kernel does not show what the ranks' threads wait for (see ptrace_scope "
                    "and hidepid): ranks that sleep in real time may change other ranks' times"
                )
        if survey:
            took_s = time.monotonic() - now
            self._next_survey = now + max(SURVEY_S, took_s / SURVEY_SHARE)
        if hindered:
            return None
        self._left_out.update(hinders)
        if self._busy in self._left_out:  # no later look waits for it
            self._busy = None
        self.past_sleepers |= bool(hinders)
        return switches

    def _slept_s(self, place: Place, thread: Thread, now: float, survey: bool) -> float:
        """For how long a sleeping thread has slept where it sleeps now, as far as surveys have seen."""
        before = self._sleepers.get(place)
        if not survey:
            return before.slept_s if before else 0.0
        active = active_ns(*place) or 0
        slept_s = before.slept_s if before else 0.0
        if before and before.place == thread.slept[0]:
            passed_s = now - before.at - (active - before.active) / 1e9
            slept_s += min(max(passed_s, 0.0), 2 * SURVEY_S)
        self._sleepers[place] = Sleeper(thread.slept[0], now, active, slept_s)
        return slept_s

    def _note_work(self, place: Place, now: float) -> None:
        """A rank's thread is awake. Patience begins anew if it has worked for the last WORKS_S."""
        active = active_ns(*place)
        if active is None:  # this kernel does not say
            self._act(now)
            return
        since, before = self._awake.setdefault(place, (now, active))
        if now - since >= WORKS_S:
            self._awake[place] = now, active
            if active - before >= WORKS * (now - since) * 1e9:
                self._act(now)

    def _act(self, now: float) -> None:
        """Patience begins anew."""
        self._since = now
        self._sleepers.clear()

    def _still_busy(self) -> bool:
        """Whether the thread that kept the last look from its end is awake now. Saves most looks."""
        if self._busy is None:
            return False
        try:
            awake = read_stat(*self._busy).state not in b"S" + ENDED
        except OSError:
            awake = False
        if not awake:
            self._busy = None
        return awake

    def _tree(
        self, acting: Collection[int], clients: Collection[int]
    ) -> Iterator[tuple[Process, bool]]:
        """All processes of the job, each with whether it is, or was started by, a client that could
        act. Ours are among them: the hub's threads carry messages, the launcher may show output. Clients
        that could act come first: mostly one of them is awake, and then no other is looked at."""
        done = set(acting) - {0}
        todo = [(root, False) for root in {self._root(pid) for pid in clients}]
        for pid in done:
            process = self._processes.setdefault(pid, Process(pid))
            yield process, True
            todo += [(child, True) for child in process.children]
        while todo:
            pid, acts = todo.pop()
            if pid in done:
                continue
            done.add(pid)
            acts = pid in acting if pid in clients else acts
            process = self._processes.setdefault(pid, Process(pid))
            yield process, acts
            todo += [(child, acts) for child in process.children]
        for pid in {os.getpid(), os.getppid()} - done:
            done.add(pid)
            yield self._processes.setdefault(pid, Process(pid)), False
        for pid in self._processes.keys() - done:
            del self._processes[pid]

    def _root(self, pid: int) -> int:
        """The process of the launcher's that a client descends from; the client itself when it does
        not descend from our launcher."""
        if pid in self._roots:
            return self._roots[pid]
        launcher, found = os.getppid(), pid
        while (parent := parent_of(found)) > 1 and parent != launcher:
            found = parent
        self._roots[pid] = root = found if parent == launcher and found != pid else pid
        return root


def _answered(client: Client) -> bool:
    """Whether nothing is in transit between a client and us: no message, and no reply."""
    stats, asked = client.stats, len(client.pending) + len(client.fetches)
    if not stats.handled(client.seq) or stats.waiting() > asked:
        return False
    return bool(client.pending) or client.waits_for_others or stats.quiet(client.seq)


def _hinders(thread: Thread, acts: bool) -> bool:
    if thread.wait is Wait.NONE:
        return True
    return acts and thread.wait is Wait.TIME and thread.name not in NAMED_WATCHERS
