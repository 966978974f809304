"""The invariants of an event graph, asserted.

Why it exists: `EventGraph.check()` must be able to find errors of the graph. So it evaluates every
vertex anew instead of reading the graph's results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phantora_ns.sim._timeline import Timeline
from phantora_ns.sim._transfer_flows import TransferFlows
from phantora_ns.sim._transfers import Transfer
from phantora_ns.sim._vertices import LATEST_NS, Vertex


def check_graph(timelines: Sequence[Timeline], flows: TransferFlows) -> None:
    """Asserts that the tables agree, that every time follows from its terms, and that every flow
    belongs to a transfer that is still in the graph."""
    vertices: set[Vertex] = set()
    for timeline in timelines:
        assert set(timeline.order) == set(timeline.live)
        assert len(timeline.order) == len(timeline.live)
        vertices.update(timeline.live.values())
    for vertex in list(vertices):
        vertices.update(vertex.terms)
    for vertex in list(vertices):
        vertices.update(_ancestors(vertex))
    owned = {transfer: flow for flow, transfer in flows.under_way()}
    for vertex in vertices:
        earlier = list(_ancestors(vertex))
        unknown = sum(other.time_ns is None for other in earlier)
        assert vertex.missing >= unknown and (vertex.time_ns is not None) == (vertex.missing == 0)
        assert vertex.queued is None
        if vertex.retired or vertex.time_ns is None:
            continue
        assert all(other.retired or vertex in other.dependents for other in earlier)
        reached = start_ns, settled_ns = vertex.reach()
        if isinstance(vertex, Transfer):
            assert vertex.start_ns == start_ns
            assert vertex.time_ns > start_ns or vertex.time_ns == LATEST_NS
            assert vertex.flow is owned.get(vertex)
            reached = flows.end(vertex, settled_ns)
        assert (vertex.time_ns, vertex.settled_ns) == tuple(min(t, LATEST_NS) for t in reached)
        assert vertex.settled_ns is not None and vertex.settled_ns <= vertex.time_ns
    assert set(owned) <= vertices


def _ancestors(vertex: Vertex) -> Iterable[Vertex]:
    yield from vertex.terms
    yield from (term.vertex for term in vertex.stretched if term.vertex is not None)
