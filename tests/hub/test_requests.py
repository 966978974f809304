"""Why it exists: an open request keeps what it has found of times until one that it depends on moves."""

from phantora_ns.hub.requests import Query
from phantora_ns.sim._vertices import TimeExpression, Vertex
from phantora_ns.sim._watching import Watches


def test_a_query_bounds_its_client_by_all_ranks_that_it_stands_for():
    """One of them becomes known, and then moves."""
    vertex = Vertex()
    query = Query(None, 1, TimeExpression(500, []), TimeExpression(100, []), lambda _: [[], [], []])
    query.others.append((TimeExpression(500, []), TimeExpression(0, [(vertex, 7)])))
    watches = Watches()
    watches.add(query, query.sources())
    assert (query.bound_ns(), query.own_bound_ns()) == (100, 100)
    for time_ns in (50, 70, 200):
        vertex.time_ns, vertex.settled_ns = time_ns, 0
        watches.note(vertex)
        assert (query.bound_ns(), query.own_bound_ns()) == (min(100, time_ns + 7), 100)
