"""What the ranks of a run measured of call sites (--host-time auto), as they left it.

Why it exists: the launcher makes the file that all ranks add to (libintercept/time/host_samples.c);
the report says how much was measured, and later runs are charged it (docs/host-time.md).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from phantora_ns.kernels.database.host_table import Seldom
from phantora_ns.protocol import (
    HOST_SAMPLES_FILE,
    HOST_SAMPLES_HEADER,
    HOST_SAMPLES_MAGIC,
    HOST_SAMPLES_SLOT,
    HOST_SAMPLES_VERSION,
    HostSamplesHeader,
    HostSamplesSlot,
)

CAPACITY, FEWEST = 1 << 16, 1 << 10
"""Slots of call sites, where there is room, and at least. What finds no slot is counted as lost."""


@dataclass(frozen=True)
class Reference:
    """The machine at whose speed host code is charged. `probe_ns`, `probe_again_ns`: its times for the probe's two
    passes. `early_ns`: so much of a time is scaled by the first pass, and the rest by the second."""

    probe_ns: int
    probe_again_ns: int
    early_ns: int = 300_000


class Speed(NamedTuple):
    """The probe's time on the reference machine over that here: of its first pass, and of its second."""

    early: float
    rest: float

    def time_ns(self, ns: float, early_ns: int) -> int:
        """A time that was measured here, as the reference machine takes it. Ranks charge by the same formula
        (on_the_reference in libintercept/time/host_samples.c)."""
        early = min(ns, early_ns)
        return round(early * self.early + (ns - early) * self.rest)


def _capacity(free_bytes: int) -> int:
    """A power of two, so that the file takes at most half of the room that is left."""
    capacity = CAPACITY
    while capacity > FEWEST and capacity * HOST_SAMPLES_SLOT.size > free_bytes // 2:
        capacity //= 2
    return capacity


def make_samples(run_dir: Path, reference: Reference) -> None:
    """The file that the ranks measure into, of real blocks: on a sparse file, a full disk would kill who writes.
    Raises OSError."""
    room = os.statvfs(run_dir)
    capacity = _capacity(room.f_bavail * room.f_frsize)
    head = HostSamplesHeader(
        magic=HOST_SAMPLES_MAGIC,
        version=HOST_SAMPLES_VERSION,
        capacity=capacity,
        lost=0,
        measuring=0,
        early_ns=reference.early_ns,
        reference_ns=reference.probe_ns,
        reference_again_ns=reference.probe_again_ns,
        probe_ns=0,
        probe_again_ns=0,
    )
    with open(run_dir / HOST_SAMPLES_FILE, "wb") as file:
        file.write(head.pack())
        file.flush()
        os.posix_fallocate(
            file.fileno(), 0, HOST_SAMPLES_HEADER.size + capacity * HOST_SAMPLES_SLOT.size
        )


@dataclass(frozen=True)
class Measured:
    """What a run measured, at the speed of the reference machine. `speed`: what this machine's times
    were multiplied by."""

    speed: Speed
    sites: dict[int, int]
    seldom: dict[int, Seldom]
    lost: int


def samples_of(run_dir: Path) -> Measured:
    """What the ranks measured. Raises OSError."""
    data = (run_dir / HOST_SAMPLES_FILE).read_bytes()
    head = HostSamplesHeader.unpack(data)
    begin, size, empty = HOST_SAMPLES_HEADER.size, HOST_SAMPLES_SLOT.size, bytes(8)
    slots = [
        HostSamplesSlot.unpack(data, at)
        for at in range(begin, begin + head.capacity * size, size)
        if data[at : at + 8] != empty
    ]
    speed = Speed(1.0, 1.0)
    if head.probe_ns:
        speed = Speed(
            head.reference_ns / head.probe_ns, head.reference_again_ns / head.probe_again_ns
        )
    sites: dict[int, int] = {}
    seldom: dict[int, Seldom] = {}
    for slot in slots:
        if slot.usual:
            sites[slot.key] = speed.time_ns(slot.mean_ns, head.early_ns)
        if slot.seldom:
            every = round(slot.seldom_apart / slot.seldom_again) if slot.seldom_again else 0
            mean_ns = speed.time_ns(slot.seldom_ns / slot.seldom, head.early_ns)
            seldom[slot.key] = Seldom(mean_ns, slot.seldom_first - 1, every, slot.seldom_ranks)
    return Measured(speed, sites, seldom, head.lost)
