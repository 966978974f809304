"""How far virtual time is known: the lower bound on time stamps (LBTS) over all clients.

Why it exists: an answer may be released once no later action of any client can change it. Each client
is in one of three states:

- Running: its host clock bounds it. The clock is in its rank statistics (or, with a message in
  transit, in its last handled message).
- Blocked on an answer whose time is known: that time bounds it.
- Blocked on something that is not known yet (a collective, a communicator, the values of others, its
  turn to exit): it can act only after another client has, so it is never the earliest to act. Its own
  bound would be a fixed point over the graph of who waits for whom. That is never below the smallest bound of the
  first two kinds, so the minimum over those is the minimum over all. Clients that wait for each
  other in a circle never act.

Processes of the job that have not sent HELLO do not count. They affect the others' timelines only
through a communicator, which forms no earlier than its other members arrive.

A client that is blocked outside our calls (a socket, a lock, a sleep) may be waiting for a client
whose answer waits for it. It is left out of the LBTS only while the whole job stands still
(hub/stillness.py), and only for one answer, the earliest: whoever gets it may wake the others. The
next action of a client that was left out may lie in the past of answers already given. The graph then
re-times everything, and counts the answers that would have been different (`revised`). The commit
horizon, before which history is dropped, does include such clients.

An absent rank of a folded job (hub/folding.py) can act when its representative has, so its bound is
part of the representative's. Where links are uneven, it may be earlier than the representative, whose
answer it then holds back for ever. When nobody can act, such bounds are left out. The graph re-times
what was answered too early, as above.

In optimistic mode (for many cores) a time is answered as soon as it is known, whatever the LBTS is.
If the time moves, the graph re-times everything that depends on it, including the rank's later clock,
and counts it. Queries stay conservative. Only values that the rank's own code has read from clocks
keep the old time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from phantora_ns.hub.processes import read_stat
from phantora_ns.hub.registry import Client

SAMPLE_MS = 5
"""Milliseconds between checks whether a client that holds back an answer has died."""
HELD_POLL_MS = 2
"""Milliseconds between checks of the running clients' clocks while answers are held back, because a
clock that moves sends no message."""


def acting(clients: Iterable[Client]) -> list[Client]:
    """The clients that are not blocked on an answer. O(clients)."""
    return [
        client
        for client in clients
        if not client.gone and not client.pending and not client.waits_for_others
    ]


def bound_ns(client: Client) -> int | None:
    """A lower bound on the time of the client's next action; None while it can act only after
    another client has."""
    if client.pending:
        return _blocked_bound_ns(client, False)
    return None if client.waits_for_others else client.bound_ns()


def last(clients: Iterable[Client]) -> tuple[int | None, Client | None]:
    """The LBTS, and the client whose bound it is: the one farthest behind. None, None when no client
    can act before another has. O(clients)."""
    lowest_ns, found = None, None
    for client in clients:
        if client.gone:
            continue
        client_ns = bound_ns(client)
        if client_ns is not None and (lowest_ns is None or client_ns < lowest_ns):
            lowest_ns, found = client_ns, client
    return lowest_ns, found


def blocked_bound_ns(clients: Iterable[Client], own: bool = False) -> int | None:
    """The LBTS over the clients that are blocked on answers alone: the LBTS of a job that stands
    still. `own`: of what runs; absent ranks do not count. O(clients)."""
    lowest = None
    for client in clients:
        if client.gone or not client.pending:
            continue
        bound_ns = _blocked_bound_ns(client, own)
        if bound_ns is not None and (lowest is None or bound_ns < lowest):
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


def _blocked_bound_ns(client: Client, own: bool) -> int | None:
    lowest = None
    for request in client.pending.values():
        bound_ns = request.own_bound_ns() if own else request.bound_ns()
        if bound_ns is not None and (lowest is None or bound_ns < lowest):
            lowest = bound_ns
    return lowest


def _all_threads_sleep(pid: int) -> bool:
    """Whether no thread is runnable or in uninterruptible (disk) sleep."""
    try:
        return all(
            read_stat(pid, int(tid)).state == b"S" for tid in os.listdir(f"/proc/{pid}/task")
        )
    except OSError:
        return False
