"""How early vertices can still be, whatever anybody does.

Why it exists: a rank asks whether its GPU has reached an event, is told no, and asks again at its next
call, some hundred times a step. If it is told how early that can be, it need not ask before.

The bound follows from what is final and from what only gets longer. Nothing that is not final lies at or
before the LBTS (sim/graph.py). Compute takes at least its time alone, and communication at least that
of its flows alone on their links, from when its members come.
"""

from __future__ import annotations

from collections.abc import Iterable

from phantora_ns.sim._transfers import LaunchEnd, Transfer
from phantora_ns.sim._vertices import StretchedTerm, TimeExpression, Vertex

MOST = 64
"""Most vertices that are followed back for one answer. A vertex beyond them counts as no earlier than the
LBTS."""


def final_ns(vertex: Vertex, lbts_ns: int) -> int | None:
    """The vertex's time if it stays where it is when no client acts before `lbts_ns`; else None."""
    settled_ns = vertex.settled_ns
    if settled_ns is not None and (settled_ns <= lbts_ns or vertex.retired):
        return vertex.time_ns
    return None


def earliest_ns(vertices: Iterable[Vertex], lbts_ns: int) -> list[int]:
    """Lower bounds of the vertices' final times, when no client acts before `lbts_ns`. Call
    `EventGraph.run` first. O(MOST x their terms)."""
    known: dict[Vertex, int] = {}
    return [_earliest_ns(vertex, lbts_ns, known) for vertex in vertices]


def expression_earliest_ns(expression: TimeExpression, lbts_ns: int) -> int:
    """A lower bound of the expression's final time, as `earliest_ns` of one vertex."""
    return _latest_ns(expression.base_ns, expression.terms, expression.stretched, lbts_ns, {})


def alone_ns(vertex: Vertex | None) -> int:
    """How long the communication that ends with the vertex takes at least from its begin, beside no other. Equal
    launches of a communicator take the same. 0: nothing is known, or it is no communication."""
    if isinstance(vertex, LaunchEnd):
        return max((transfer.alone_ns for transfer in vertex.transfers), default=0)
    return vertex.alone_ns if isinstance(vertex, Transfer) else 0


def _earliest_ns(vertex: Vertex, lbts_ns: int, known: dict[Vertex, int]) -> int:
    """`known`: the bounds that were found for this LBTS."""
    time_ns = final_ns(vertex, lbts_ns)
    if time_ns is not None:
        return time_ns
    if type(vertex) is Transfer:
        start_ns = vertex.start_ns
        if start_ns is None or start_ns > lbts_ns:
            start_ns = lbts_ns  # not final; looking at every member would take too long
        return max(lbts_ns, start_ns + vertex.least_ns)
    found_ns = known.get(vertex)
    if found_ns is not None or len(known) >= MOST:
        return lbts_ns if found_ns is None else found_ns
    known[vertex] = lbts_ns  # so that it counts as one of MOST
    base_ns = max(lbts_ns, vertex.base_ns)
    found_ns = _latest_ns(base_ns, vertex.terms.items(), vertex.stretched, lbts_ns, known)
    known[vertex] = found_ns
    return found_ns


def _latest_ns(
    base_ns: int,
    terms: Iterable[tuple[Vertex, int]],
    stretched: Iterable[StretchedTerm],
    lbts_ns: int,
    known: dict[Vertex, int],
) -> int:
    """The maximum of `base_ns` and of the terms' lower bounds."""
    found_ns = base_ns
    for before, weight in terms:
        term_ns = _earliest_ns(before, lbts_ns, known) + weight
        if term_ns > found_ns:
            found_ns = term_ns
    for vertex, lag_ns, work_ns, _, _ in stretched:
        term_ns = lag_ns + work_ns
        if vertex is not None:
            term_ns += _earliest_ns(vertex, lbts_ns, known)
        if term_ns > found_ns:
            found_ns = term_ns
    return found_ns
