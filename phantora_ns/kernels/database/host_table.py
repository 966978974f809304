"""What hosts paid, from databases to the job's ranks.

Why it exists: leaders and `--record-host` record how long the framework takes between calls, and
what the calls cost; ranks read it from RUN_DIR/host.tbl and device.conf without asking anybody
(docs/host-time.md). Databases are of different machines: their times are brought to the first one's
speed by the ratio of host scores, so that a table speaks of one machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.records import CallSite, Host, HostTime
from phantora_ns.model.gpu import HOST_CALLS, HostCosts
from phantora_ns.protocol import (
    HOST_TABLE_MAGIC,
    HOST_TABLE_SLOT,
    HOST_TABLE_VERSION,
    HostTableHeader,
)

INTERRUPTION_KEY = 64
"""The site that stands for what interrupts the job anywhere: libintercept/time/host_model.c."""
MIN_CAPACITY = 64


@dataclass(frozen=True)
class HostRecord:
    """What is known of one machine's host, ns. `score`: its host-speed workload; None where it is
    unknown."""

    score: float | None = None
    calls: Mapping[str, float] = field(default_factory=dict)
    gap_ns: float | None = None
    sites: Mapping[int, float] = field(default_factory=dict)
    interruption_ns: float = 0.0

    def costs(self, otherwise: HostCosts) -> HostCosts:
        """`otherwise` with what has been recorded in its place; classes that cost nothing are not
        costs."""
        calls = {name: round(self.calls.get(name, ns)) for name, ns in otherwise.call_ns.items()}
        return replace(
            otherwise,
            call_ns=calls,
            kernel_gap_ns=otherwise.kernel_gap_ns if self.gap_ns is None else round(self.gap_ns),
        )


def read_hosts(databases: Iterable[Database], *, sites: bool = True) -> HostRecord:
    """What the databases say together; where several know a thing, the first does. `sites`: also
    the times between calls.

    Raises DatabaseError. O(sites).
    """
    score: float | None = None
    calls: dict[str, float] = {}
    times: dict[str, float] = {}
    found: dict[int, float] = {}
    for database in databases:
        numbers = database.host_numbers()
        factor = score / numbers.score if score and numbers.score else 1.0
        score = score or numbers.score
        for name, time in database.host_calls().items():
            if name in HOST_CALLS:
                calls.setdefault(name, time.mean_ns * factor)
        for (
            name,
            time,
        ) in numbers.times.items():  # of the GPU's side: the host's speed does not matter
            times.setdefault(name, time.median_ns)
        if sites:
            for site in database.call_sites():
                if (
                    site.count > 1
                ):  # else it pays for loading, and less of what came before it tells more
                    found.setdefault(site.key, site.mean_ns * factor)
    interruption_ns = found.pop(INTERRUPTION_KEY, 0.0)
    # No latency: a leader's counts from the call of a launch, slowed by what times it, and ranks
    # count from its return.
    return HostRecord(score, calls, times.get("gap"), found, interruption_ns)


def joined(messages: Iterable[Mapping]) -> dict:
    """One HOST message of several processes' on one machine: counts add up, times are weighted by
    them, the score is their mean.

    What each process has come to only once stays as once (the least of them): eight ranks that each
    load a kernel have not been there eight times.

    Raises DatabaseError for what is no HOST message. O(sites).
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
        count, *((a.count * x + b.count * y) / count for x, y in zip(a[1:], b[1:], strict=True))
    )


def _seen(a: HostTime | None, b: HostTime) -> HostTime:
    """A site's time of two processes: once is not evidence where one of them has been there more
    often."""
    if a is None or (a.count == 1) != (b.count == 1):
        return b if a is None or a.count == 1 else a
    return _added(a, b) if a.count > 1 else min(a, b)


def write_table(path: Path, record: HostRecord, unknown_ns: int) -> None:
    """Writes RUN_DIR/host.tbl (docs/wire-protocol.md), whole or not at all. `unknown_ns`: the time
    before a call of which the record says nothing. Equal records make equal files. Raises
    OSError."""
    capacity = MIN_CAPACITY
    while capacity < 2 * len(record.sites):
        capacity *= 2
    slots: list[tuple[int, int]] = [(0, 0)] * capacity
    for key, mean_ns in sorted(record.sites.items()):
        at = key & (capacity - 1)
        while slots[at][0]:
            at = (at + 1) & (capacity - 1)
        slots[at] = key, round(mean_ns)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        file.write(
            HostTableHeader(
                HOST_TABLE_MAGIC,
                HOST_TABLE_VERSION,
                capacity,
                len(record.sites),
                round(record.interruption_ns),
                unknown_ns,
            ).pack()
        )
        file.write(b"".join(HOST_TABLE_SLOT.pack(*slot) for slot in slots))
    os.replace(partial, path)
