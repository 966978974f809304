"""Who wants to know that a time has moved.

Why it exists: each answer that the hub owes depends on a few times. Looking at all of them after every
message would cost each message time in proportion to the ranks. So whoever owes an answer names what it
depends on, and looks again when one of these has moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Watcher(Protocol):
    """Owes an answer that depends on times. `stale` becomes true when one of these has moved."""

    stale: bool


class Watches:
    """Watchers by what they depend on: vertices, and the communication of GPUs (`Activity`)."""

    __slots__ = ("_watchers", "_sources", "_moved")

    def __init__(self) -> None:
        self._watchers: dict[object, dict[Watcher, None]] = {}
        self._sources: dict[Watcher, tuple[object, ...]] = {}
        self._moved: dict[Watcher, None] = {}

    def __contains__(self, source: object) -> bool:
        return source in self._watchers

    def add(self, watcher: Watcher, sources: Iterable[object]) -> None:
        """Adds a watcher of these sources. O(sources)."""
        found = self._sources[watcher] = tuple(dict.fromkeys(sources))
        for source in found:
            self._watchers.setdefault(source, {})[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        """Removes a watcher, if it is one. O(its sources)."""
        self._moved.pop(watcher, None)
        for source in self._sources.pop(watcher, ()):
            watchers = self._watchers[source]
            del watchers[watcher]
            if not watchers:
                del self._watchers[source]

    def note(self, source: object) -> None:
        """`source` has moved. O(its watchers)."""
        for watcher in self._watchers.get(source, ()):
            watcher.stale = True
            self._moved[watcher] = None

    def take(self) -> Iterable[Watcher]:
        """Removes and returns the watchers of whatever has moved since the last call."""
        moved, self._moved = self._moved, {}
        return moved
