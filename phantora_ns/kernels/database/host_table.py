"""Host times, from databases to the table that ranks read.

Why it exists: leaders and `--record-host` record how long the framework takes between calls. Ranks
read it from RUN_DIR/host.tbl (docs/host-time.md). What the calls themselves cost is in the GPU's
data file: what a leader does around a call makes the call longer, by 1.2 to 2 times.
Databases come from different machines. Their times are scaled to the speed of the first one's
machine by the ratio of CPU scores, so that a table describes one machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.records import CallSite, Host, HostTime
from phantora_ns.kernels.database.schema import MAX_COUNT
from phantora_ns.model.gpu import HostCosts
from phantora_ns.protocol import (
    HOST_TABLE_MAGIC,
    HOST_TABLE_VERSION,
    HostTableHeader,
    HostTableSlot,
)

INTERRUPTION_KEY = 64
"""The call site that stands for interruptions of the job anywhere (libintercept/time/host_model.c)."""
MIN_CAPACITY = 64


class Seldom(NamedTuple):
    """Before the occurrence `first` of a call site in a process, counted from 0, and after every
    `every` from then on (0: never again), more is done than usual: it takes `ns`. `ranks`: on which
    ranks, the bits of their numbers modulo 32."""

    ns: int
    first: int
    every: int
    ranks: int


@dataclass(frozen=True)
class Here:
    """What `--host-time auto` knows: times of call sites that an earlier run of the job measured, in
    ns at the speed of the reference machine. `measures`: this run measures."""

    sites: Mapping[int, float] = field(default_factory=dict)
    seldom: Mapping[int, Seldom] = field(default_factory=dict)
    measures: bool = False


@dataclass(frozen=True)
class HostRecord:
    """Host times of one machine, ns. `score`: its CPU score; None where it is unknown."""

    score: float | None = None
    gap_ns: float | None = None
    sites: Mapping[int, float] = field(default_factory=dict)
    interruption_ns: float = 0.0

    def costs(self, otherwise: HostCosts) -> HostCosts:
        """`otherwise`, with the recorded gap if there is one."""
        return (
            otherwise
            if self.gap_ns is None
            else replace(otherwise, kernel_gap_ns=round(self.gap_ns))
        )


def read_hosts(databases: Iterable[Database], *, sites: bool = True) -> HostRecord:
    """The host times of all databases; the first database that knows a time decides. `sites`: also
    read the times between calls.

    Raises DatabaseError. O(sites).
    """
    score: float | None = None
    times: dict[str, float] = {}
    found: dict[int, float] = {}
    for database in databases:
        numbers = database.host_numbers()
        factor = score / numbers.score if score and numbers.score else 1.0
        score = score or numbers.score
        for name, time in numbers.times.items():
            times.setdefault(name, time.median_ns)  # the GPU's: the host's speed does not matter
        if sites:
            for site in database.call_sites():
                # A call site that was seen once includes loading; a shorter history says more.
                if site.count > 1:
                    found.setdefault(site.key, site.mean_ns * factor)
    interruption_ns = found.pop(INTERRUPTION_KEY, 0.0)
    # Without the latency: a leader counts it from the call of a launch, which its own measuring
    # slows, and ranks count it from the return of the call.
    return HostRecord(score, times.get("gap"), found, interruption_ns)


def joined(messages: Iterable[Mapping]) -> dict:
    """The HOST messages of several processes on one machine as one: counts are added, times are
    weighted by count, and the score is the mean.

    A call site that each process has seen only once keeps the count 1 and the least time: eight ranks
    that each load a kernel are no eight visits.

    Raises DatabaseError for a malformed message. O(sites).
    """
    hosts = [Host.of_message(message) for message in messages]
    scores = [host.score for host in hosts if host.score is not None]
    whole = Host(sum(scores) / len(scores) if scores else None)
    for host in hosts:
        for name, time in host.numbers.items():
            whole.numbers[name] = _added(whole.numbers.get(name), time)
        for name, time in host.calls.items():
            whole.calls[name] = _added(whole.calls.get(name), time)
        for key, site in host.sites.items():
            before = whole.sites.get(key)
            time = _seen(before and HostTime(*before[3:]), HostTime(*site[3:]))
            whole.sites[key] = CallSite(
                key, site.depth, min(site.text, before.text) if before else site.text, *time
            )
    return whole.message()


def _added(a: HostTime | None, b: HostTime) -> HostTime:
    if a is None:
        return b
    count = a.count + b.count
    return HostTime(
        min(count, MAX_COUNT),
        *((a.count * x + b.count * y) / count for x, y in zip(a[1:], b[1:], strict=True)),
    )


def _seen(a: HostTime | None, b: HostTime) -> HostTime:
    """The time of a call site from two processes. A count of 1 is ignored if the other process has
    seen it more often."""
    if a is None or (a.count == 1) != (b.count == 1):
        return b if a is None or a.count == 1 else a
    return _added(a, b) if a.count > 1 else min(a, b)


def write_table(path: Path, record: HostRecord, unknown_ns: int, here: Here | None = None) -> None:
    """Writes RUN_DIR/host.tbl (docs/wire-protocol.md), whole or not at all. `unknown_ns`: the time
    before a call of which the record says nothing. What a run of the job measured counts before a
    record, which may be of other code around the same operators. Equal records make equal files. Raises
    OSError."""
    here = here or Here()
    sites = {**record.sites, **here.sites}
    capacity = MIN_CAPACITY
    while capacity < 2 * len(sites):
        capacity *= 2
    empty = HostTableSlot(0, 0, 0, 0, 0, 0, 0)
    slots = [empty] * capacity
    for key, mean_ns in sorted(sites.items()):
        at = key & (capacity - 1)
        while slots[at].key:
            at = (at + 1) & (capacity - 1)
        seldom = here.seldom.get(key, Seldom(0, 0, 0, 0))
        slots[at] = HostTableSlot(key, round(mean_ns), *seldom, key in here.sites)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        file.write(
            HostTableHeader(
                HOST_TABLE_MAGIC,
                HOST_TABLE_VERSION,
                capacity,
                len(sites),
                round(record.interruption_ns),
                unknown_ns,
                here.measures,
            ).pack()
        )
        file.write(b"".join(slot.pack() for slot in slots))
    os.replace(partial, path)
