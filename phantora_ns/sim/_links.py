"""The directed links of a topology: names, capacities and latencies, by number.

Why it exists: a topology and the network inside it add links and look them up. Rule: a cable is two
links of equal capacity, one per direction; links are numbered in the order in which they were
added.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TopologyError(ValueError):
    """A cluster describes no usable graph; `key` names the entry in the cluster file."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key, self.problem = key, problem


class Links:
    """Links between named vertices. Capacities are in bytes per ns."""

    def __init__(self) -> None:
        self.capacities: dict[int, float] = {}
        self.latency_ns: list[int] = []
        self.names: list[str] = []
        self.ends: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def add_cable(self, a: str, b: str, bytes_per_ns: float, latency_ns: int) -> tuple[int, int]:
        """The numbers of the links from `a` to `b` and back. Raises TopologyError when they already
        have a cable."""
        for ends in ((a, b), (b, a)):
            if ends in self._numbers:
                raise TopologyError(
                    "network.link", f"{a!r} and {b!r} are joined twice; give one link with the sum"
                )
            self._numbers[ends] = link = len(self.ends)
            self.ends.append(ends)
            self.capacities[link] = bytes_per_ns
            self.latency_ns.append(latency_ns)
            self.names.append(f"{ends[0]} -> {ends[1]}")
        return link - 1, link

    def find(self, a: str, b: str) -> int | None:
        """The link from `a` to `b`, None when there is none."""
        return self._numbers.get((a, b))

    def between(self, a: str, b: str) -> int:
        """The link from `a` to `b`. Raises KeyError."""
        return self._numbers[a, b]

    def vertices(self) -> set[str]:
        """All names."""
        return {name for pair in self.ends for name in pair}

    def called(self, text: str, key: str) -> list[int]:
        """Links named `A -> B` (one direction), `A - B` (both), or `A` (all links of that vertex,
        both directions). Raises TopologyError with `key`."""
        known = self.vertices()
        one_way = " -> " in text
        parts = [part.strip() for part in text.split(" -> " if one_way else " - ")]
        for part in parts:
            if part not in known:
                raise TopologyError(key, unknown(part, known))
        if len(parts) == 1:
            return [link for link, ends in enumerate(self.ends) if parts[0] in ends]
        a, b, *more = parts
        found = [self.find(a, b)] if one_way else [self.find(a, b), self.find(b, a)]
        links = [link for link in found if link is not None]
        if more or len(links) < len(found):
            around = sorted({end for start, end in self.ends if start == a})
            raise TopologyError(key, f"no link {text!r}; {a} is joined to {', '.join(around[:12])}")
        return links

    def check(self) -> None:
        """Asserts every invariant: capacities are positive, numbers are dense, and each cable is two
        links of equal capacity."""
        assert list(self.capacities) == list(range(len(self.ends)))
        for link, (a, b) in enumerate(self.ends):
            assert a != b and self.capacities[link] > 0 and self.latency_ns[link] >= 0
            assert self.capacities[self._numbers[b, a]] == self.capacities[link]


def unknown(name: str, known: Iterable[str]) -> str:
    """The error text for a name that is not in `known`."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"nothing is called {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
