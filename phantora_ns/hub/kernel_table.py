"""The kernel table in shared memory: durations that every rank reads without asking.

Why it exists: once a kernel has been looked up, no rank may need a message for it again. The layout
is in docs/wire-protocol.md ("Kernel table"). Only the hub writes, and it stores a slot's key after the
rest of the slot.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from phantora_ns.protocol import (
    KERNEL_TABLE_HEADER,
    KERNEL_TABLE_HEADER_AT,
    KERNEL_TABLE_MAGIC,
    KERNEL_TABLE_SLOT,
    KERNEL_TABLE_VERSION,
    BoundBy,
    KernelTableHeader,
    KernelTableSlot,
)

CAPACITY = 65536
_USED, _GENERATION = (KERNEL_TABLE_HEADER_AT[field] // 8 for field in ("used", "generation"))
MAX_FILL = 0.75
"""Linear probing degrades beyond this load. Later signatures are answered by message only."""


class KernelTable:
    """The writer's side; `path` is created anew. Raises OSError when it cannot be."""

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        if capacity & (capacity - 1):
            raise ValueError("the capacity is a power of two")
        size = KERNEL_TABLE_HEADER.size + capacity * KERNEL_TABLE_SLOT.size
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.capacity = capacity
        self.count = 0
        self._words = memoryview(self._map).cast("Q")
        header = KernelTableHeader(KERNEL_TABLE_MAGIC, KERNEL_TABLE_VERSION, capacity, 0, 0)
        self._map[: KERNEL_TABLE_HEADER.size] = header.pack()

    def put(
        self,
        key: int,
        duration_ns: int,
        source: int,
        contention_permille: int,
        bound_by: int = BoundBy.MEMORY,
        queue_slots: int = 1,
        flop: int = 0,
    ) -> bool:
        """Stores a duration unless the key is already there or the table is full. Returns whether
        the key is in the table afterwards."""
        words = self._words
        at, found = self._find(key)
        if found:
            return True
        if self.count >= self.capacity * MAX_FILL:
            return False
        slot = KernelTableSlot(
            0, duration_ns, source, contention_permille, bound_by, queue_slots, flop
        )
        self._map[at * 8 : at * 8 + KERNEL_TABLE_SLOT.size] = slot.pack()
        words[at] = key
        self.count += 1
        words[_USED] = self.count
        return True

    def revise(self, key: int, duration_ns: int, source: int, contention_permille: int) -> bool:
        """Replaces the values under a key. Returns whether the key was there and its values have
        changed. Ranks look again after `announce`."""
        words = self._words
        at, found = self._find(key)
        if not found:
            return False
        old = KernelTableSlot.unpack(self._map, at * 8)
        new = old._replace(
            duration_ns=duration_ns, source=source, contention_permille=contention_permille
        )
        if new == old:
            return False
        words[at + 1] = duration_ns  # one store, because a rank may be reading the slot
        self._map[at * 8 + 16 : at * 8 + KERNEL_TABLE_SLOT.size] = new.pack()[16:]
        return True

    def announce(self) -> None:
        """Tells the ranks that durations were revised, so that they drop what they remember of the
        table (libintercept/work/duration.c)."""
        self._words[_GENERATION] += 1

    def _find(self, key: int) -> tuple[int, bool]:
        """The index (in 64-bit words) of a key, or of the empty slot where it belongs, and whether
        the key is there."""
        words = self._words
        index = key & (self.capacity - 1)
        while True:
            at = (KERNEL_TABLE_HEADER.size + index * KERNEL_TABLE_SLOT.size) // 8
            if words[at] == key or words[at] == 0:
                return at, words[at] == key
            index = (index + 1) & (self.capacity - 1)

    def close(self) -> None:
        """Closes the mapping. The file stays for ranks that still read it."""
        self._words.release()
        self._map.close()
