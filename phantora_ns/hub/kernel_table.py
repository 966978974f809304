"""The kernel table in shared memory: durations that every rank reads without asking.

Why it exists: a kernel that has been looked up once must cost no message afterwards, in any rank.
Layout in docs/wire-protocol.md ("Shared memory"). The hub is the only writer, and stores a slot's
key after the rest of it.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

MAGIC = 0x50484E534B524E4C
VERSION = 1
CAPACITY = 65536
HEADER_BYTES = 64
SLOT_BYTES = 32
MAX_FILL = 0.75
"""Linear probing degrades beyond this load; later signatures are answered by message only."""


class KernelTable:
    """The writer's side; `path` is created anew. Raises OSError when it cannot be."""

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        if capacity & (capacity - 1):
            raise ValueError("the capacity is a power of two")
        size = HEADER_BYTES + capacity * SLOT_BYTES
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.capacity = capacity
        self.count = 0
        self._words = memoryview(self._map).cast("Q")
        struct.pack_into("<QQQQQ", self._map, 0, MAGIC, VERSION, capacity, 0, 0)

    def put(
        self,
        key: int,
        duration_ns: int,
        source: int,
        drag_permille: int,
        klass: int = 0,
        works: int = 1,
    ) -> bool:
        """Stores a duration unless the key is there already or the table is full; True when it is
        in afterwards."""
        words = self._words
        at, found = self._find(key)
        if found:
            return True
        if self.count >= self.capacity * MAX_FILL:
            return False
        words[at + 1] = duration_ns
        struct.pack_into("<IIII", self._map, at * 8 + 16, source, drag_permille, klass, works)
        words[at] = key
        self.count += 1
        words[3] = self.count
        return True

    def revise(self, key: int, duration_ns: int, source: int, drag_permille: int) -> bool:
        """Replaces what is stored under a key; whether it was there and has changed. Ranks look
        again after `announce`."""
        words = self._words
        at, found = self._find(key)
        if not found:
            return False
        fresh = struct.pack("<II", source, drag_permille)
        if words[at + 1] == duration_ns and self._map[at * 8 + 16 : at * 8 + 24] == fresh:
            return False
        words[at + 1] = duration_ns
        self._map[at * 8 + 16 : at * 8 + 24] = fresh
        return True

    def announce(self) -> None:
        """Tells the ranks that durations were revised: what they remember of the table is old
        (libintercept/work/duration.c)."""
        self._words[4] += 1

    def _find(self, key: int) -> tuple[int, bool]:
        """The place (in 64-bit words) of a key or of the empty slot where it belongs, and whether
        it is there."""
        words = self._words
        index = key & (self.capacity - 1)
        while True:
            at = (HEADER_BYTES + index * SLOT_BYTES) // 8
            if words[at] == key or words[at] == 0:
                return at, words[at] == key
            index = (index + 1) & (self.capacity - 1)

    def close(self) -> None:
        """Lets go of the mapping; the file stays for ranks that still read it."""
        self._words.release()
        self._map.close()
