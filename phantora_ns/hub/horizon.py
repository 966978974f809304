"""How far virtual time is known: the lower bound on time stamps (LBTS) over all clients, and which
clients are idle.

Why it exists: an answer may be released once no later action of any client can change it. Each client
is in one of three states:

- Running: its host clock bounds it. The clock is in its rank statistics (or, with a message in
  transit, in its last handled message).
- Blocked on an answer whose time is known: that time bounds it.
- Blocked on something that is not known yet (a collective, a communicator, the values of others): it
  can act only after another client has, so it is never the earliest to act. Its own bound would be a
  fixed point over the graph of who waits for whom. That is never below the smallest bound of the
  first two kinds, so the minimum over those is the minimum over all. Clients that wait for each
  other in a circle never act.

Processes of the job that have not sent HELLO do not count. They affect the others' timelines only
through a communicator, which forms no earlier than its other members arrive.

A client that is blocked outside our calls (a socket, a lock, a sleep) may be waiting for a client
whose answer waits for it. It counts as idle when no message is in transit between it and us, its clock
stands still over some samples, it uses no CPU, and all of its threads sleep. It is then left out of
the LBTS until it moves. Its next action may lie in the past of answers already given. The graph then
re-times everything, and counts the answers that would have been different (`revised`). The commit
horizon, before which history is dropped, does include idle clients.

In optimistic mode (for many cores) a time is answered as soon as it is known, whatever the LBTS is.
If the time moves, the graph re-times everything that depends on it, including the rank's later clock,
and counts it. Queries stay conservative. Only values that the rank's own code has read from clocks
keep the old time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from phantora_ns.hub.registry import Client

STILL_SAMPLES = 3
"""Samples without movement before a client counts as idle."""
SAMPLE_MS = 5
"""Milliseconds between samples. Three of them are well below what a person notices and well above a
thread's usual hand-over."""
HELD_POLL_MS = 2
"""Milliseconds between checks of the running clients' clocks while answers are held back, because a
clock that moves sends no message."""
STILL_CPU_NS = 100_000
"""CPU time between two samples that still counts as none, because watchdog threads wake up
occasionally."""
LEADER_STILL_SAMPLES = 100
"""For a leader, which loads modules, compiles, and waits for a real GPU: half a second, during which
none of its children may work either."""
UNSEEN_STILL_SAMPLES = 100
"""For a client whose PID we cannot see. Only its clock is visible, so the wait is half a second."""


def lower_bound_ns(clients: Iterable[Client]) -> int | None:
    """The LBTS; None when no client can act before another has. O(clients)."""
    lowest = None
    for client in clients:
        if client.gone:
            continue
        if client.pending:
            bound_ns = _blocked_bound_ns(client)
            if bound_ns is None:
                continue
        elif client.fetching is not None or (client.idle and not client.stirs()):
            continue
        else:
            bound_ns = client.bound_ns()
        if lowest is None or bound_ns < lowest:
            lowest = bound_ns
    return lowest


def commit_bound_ns(clients: Iterable[Client]) -> int | None:
    """A lower bound on the time of any future action, including those of idle clients and of clients
    that wait for values; None when unknown."""
    lowest = None
    for client in clients:
        if client.gone:
            continue
        if not client.pending:
            bound_ns = client.bound_ns()
        else:
            bounds = [request.floor_ns() for request in client.pending.values()]
            known = [bound for bound in bounds if bound is not None]
            if not known:
                continue
            bound_ns = min(known)
        if lowest is None or bound_ns < lowest:
            lowest = bound_ns
    return lowest


def anchors_may_move(clients: Iterable[Client], before_ns: int) -> bool:
    """Whether a client's clock may still be revised to before `before_ns`. That is possible when its
    anchor was sent before the anchor was final.

    If no anchor may move, the clocks that `before_ns` was computed from are right, so nothing earlier
    can happen. O(clients).
    """
    anchors = (client.anchor for client in clients if not client.gone)
    return any(
        anchor is not None
        and not anchor.retired
        and (anchor.settled_ns is None or anchor.settled_ns > before_ns)
        for anchor in anchors
    )


def sample_idle(clients: Iterable[Client], needed_ns: int) -> list[Client]:
    """Samples every running client that holds back an answer at `needed_ns`, and marks the idle ones.

    Returns the clients that have ended. Called every SAMPLE_MS while an answer is held back.
    """
    dead = []
    for client in clients:
        if client.gone or client.pending or client.fetching is not None:
            continue
        if not client.idle and client.bound_ns() >= needed_ns:
            continue
        pid = client.stats.owner()
        if pid is None:
            if client.ended():
                dead.append(client)
        else:
            _sample(client, pid)
    return dead


def _sample(client: Client, pid: int) -> None:
    """Samples a living client. `pid` is 0 if it is in a PID namespace that we cannot see into."""
    cpu_ns = _cpu_ns(pid) if pid else 0
    position = (client.bound_ns(), client.seq)
    before = client.seen
    client.seen = (position, cpu_ns)
    moved = (
        not before or before[0] != position or cpu_ns is None or cpu_ns - before[1] > STILL_CPU_NS
    )
    if moved or not client.stats.quiet(client.seq):
        client.still = 0
        client.idle = False
        return
    client.still += 1
    if client.idle:
        return
    if not pid:
        client.idle = client.still >= UNSEEN_STILL_SAMPLES
    elif client.leads:
        client.idle = client.still >= LEADER_STILL_SAMPLES and tree_sleeps(pid)
    else:
        client.idle = client.still >= STILL_SAMPLES and _all_threads_sleep(pid)


def tree_sleeps(pid: int) -> bool:
    """Whether a process and all of its descendants sleep. A compiler that it waits for would not
    sleep. O(their threads)."""
    if not _all_threads_sleep(pid):
        return False
    try:
        for task in os.scandir(f"/proc/{pid}/task"):
            with open(f"{task.path}/children") as children:
                if not all(tree_sleeps(int(child)) for child in children.read().split()):
                    return False
    except OSError:
        # It has ended, or this kernel does not list children (CONFIG_PROC_CHILDREN).
        return os.path.exists(f"/proc/{pid}")
    return True


def _blocked_bound_ns(client: Client) -> int | None:
    lowest = None
    for request in client.pending.values():
        bound_ns = request.bound_ns()
        if bound_ns is not None and (lowest is None or bound_ns < lowest):
            lowest = bound_ns
    return lowest


def _cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process; None when it is gone. Clock number: CPUCLOCK_SCHED of
    linux/posix-timers.h."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return None


def _all_threads_sleep(pid: int) -> bool:
    """Whether no thread is runnable or in uninterruptible (disk) sleep, by the third field of
    /proc/PID/task/TID/stat."""
    try:
        for task in os.scandir(f"/proc/{pid}/task"):
            with open(f"{task.path}/stat", "rb") as stat:
                if stat.read().rpartition(b") ")[2][:1] != b"S":
                    return False
    except OSError:
        return False
    return True
