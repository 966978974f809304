"""One client's communication, and the vertices whose work it stretches.

Why it exists: compute slows down while communication runs on its GPU (sim/contention.py). A vertex
after such work must be evaluated again when overlapping communication begins, ends or moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phantora_ns.sim._vertices import StretchedTerm, Vertex
from phantora_ns.sim.contention import Activity


class Overlap:
    """When communication ran on one client's GPU, and what it may stretch.

    `stretchable`: vertices with stretched terms, until they are final.
    """

    __slots__ = ("activity", "stretchable")

    def __init__(self) -> None:
        self.activity = Activity()
        self.stretchable: dict[Vertex, None] = {}

    def forget(self, before_ns: int, others: Iterable[Iterable[StretchedTerm]]) -> None:
        """Drops communication before `before_ns`, except where it overlaps work that is not final:
        the work of `stretchable` and of the terms in `others`."""
        for vertex in [vertex for vertex in self.stretchable if vertex.retired]:
            del self.stretchable[vertex]
        begins = [term.begin_ns() for term in self._open_terms(others) if term.known]
        self.activity.forget(min([before_ns, *begins]))

    def _open_terms(self, others: Iterable[Iterable[StretchedTerm]]) -> Iterator[StretchedTerm]:
        for vertex in self.stretchable:
            yield from vertex.stretched
        for terms in others:
            yield from terms
