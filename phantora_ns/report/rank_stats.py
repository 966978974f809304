"""Reads the ranks' shared pages from outside.

Why it exists: a page outlives its process, so the report and the progress line can read what a rank
counted even when it was killed. Offsets: docs/wire-protocol.md, "Shared memory" (struct
ph_rank_stats in libintercept/base/protocol.gen.h).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

MAGIC = 0x50484E5352414E4B
VERSION = 1
SOURCES = ("exact", "launch", "law", "gemm", "attention", "roofline", "copy", "guess")
"""Names of the sources of a kernel's time, by number (docs/wire-protocol.md)."""
HOST_LEVELS = ("exact", "backed off", "class", "unknown", "call")
"""How well the record of host times knew the place of a call; "call": what the calls themselves
cost (enum ph_host_level)."""
_WORDS = struct.Struct("<52Q")


class RankPage(NamedTuple):
    """One process's counters. Times in ns of virtual time, or of CPU for `host_cpu_ns`; sizes in
    bytes."""

    clock_ns: int
    sent_seq: int
    host_cpu_ns: int
    blocked: int
    kernel_launches: int
    comm_launches: int
    allocated_bytes: int
    peak_driver_bytes: int
    torch_peak_allocated: int
    torch_peak_reserved: int
    device: int
    calls: int
    unknown_reads: int
    chosen_values: int
    busy_ns: tuple[int, ...]
    launches: tuple[int, ...]
    host_calls: tuple[int, ...]
    host_ns: tuple[int, ...]
    pinned_bytes: int
    peak_pinned_bytes: int
    replayed_values: int
    repeated_values: int


def read_page(path: Path) -> RankPage:
    """The page in file `path`. Raises OSError when it cannot be read, ValueError when it is no page
    of this version."""
    with open(path, "rb") as file:
        data = file.read(_WORDS.size)
    if len(data) < _WORDS.size:
        raise ValueError(f"{path}: {len(data)} bytes are too few for a rank's page")
    words = _WORDS.unpack(data)
    if words[0] != MAGIC or words[1] != VERSION:
        raise ValueError(f"{path}: not a rank's page of version {VERSION}")
    levels = len(HOST_LEVELS)
    return RankPage(
        *words[2:16],
        words[16:24],
        words[24:32],
        words[32 : 32 + levels],
        words[40 : 40 + levels],
        *words[48:52],
    )
