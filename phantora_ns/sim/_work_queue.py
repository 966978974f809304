"""The event queue: what the graph must still evaluate, in the order of virtual time.

Why it exists: a change at time t affects only later times, so work in order of time is done once. The
queue is a sorted container and not a heap. A re-timed entry moves or leaves, so the queue never
returns a stale one. bench/hub/README.md compares the two.

Entries are (time, priority, sequence, vertex). At equal times, vertices are evaluated before
completions are asked for. Otherwise the order is first in, first out, so runs are reproducible.
"""

from __future__ import annotations

from itertools import count

from sortedcontainers import SortedList

from phantora_ns.sim._transfers import Transfer
from phantora_ns.sim._vertices import Vertex

Entry = tuple[int, int, int, Vertex]

EVALUATE = 0
COMPLETE = 1


class WorkQueue:
    """Vertices to evaluate, and transfers whose completion must be asked for. All operations are
    O(log entries)."""

    __slots__ = ("_entries", "_sequence")

    def __init__(self) -> None:
        self._entries: SortedList[Entry] = SortedList()
        self._sequence = count()

    def __len__(self) -> int:
        return len(self._entries)

    def evaluate(self, vertex: Vertex, from_ns: int) -> None:
        """Queues `vertex` for evaluation: something that it depends on changed at `from_ns`."""
        entry = vertex.queued
        if entry is not None:
            if entry[0] <= from_ns:
                return
            self._entries.remove(entry)
        entry = vertex.queued = (from_ns, EVALUATE, next(self._sequence), vertex)
        self._entries.add(entry)

    def complete(self, transfer: Transfer, at_ns: int) -> None:
        """Queues `transfer`, whose completion must be asked for; it lies at `at_ns` or later."""
        entry = transfer.completion_queued
        if entry is not None:
            if entry[0] == at_ns:
                return
            self._entries.remove(entry)
        entry = transfer.completion_queued = (at_ns, COMPLETE, next(self._sequence), transfer)
        self._entries.add(entry)

    def pop(self, only_evaluate: bool = False) -> Entry | None:
        """Removes and returns the first entry. None when there is none, or when it is a completion
        and `only_evaluate` is set."""
        entries = self._entries
        if not entries or (only_evaluate and entries[0][1] == COMPLETE):
            return None
        entry: Entry = entries.pop(0)
        vertex = entry[3]
        if entry[1] == EVALUATE:
            vertex.queued = None
        else:
            assert isinstance(vertex, Transfer)
            vertex.completion_queued = None
        return entry
