"""What clients are told of their waits for communication.

The law: whatever has become history in between, the tellings of a client are its waits in order, each
told by the first telling whose time it does not exceed.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.sim import _timeline
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph

STEP_NS = 100


class NoFlows:
    """No communication: the graph's own vertices suffice."""


def made(lengths):
    """A graph with one client. Its n-th wait ends at (n + 1) * STEP_NS and takes lengths[n]."""
    graph = EventGraph(FlowSimulator({0: 1.0}), NoFlows(), {0: 1.0})
    graph.add_client()
    for number, length in enumerate(lengths, 1):
        after = graph.expression(0, [0, number * STEP_NS, 0])
        vertex = graph.define(0, number, after)
        graph.run()
        assert vertex.time_ns == number * STEP_NS
        graph.stall(
            0,
            0,
            graph.expression(0, [0, number * STEP_NS - length, 0]),
            graph.expression(0, [number, 0, 0]),
        )
    return graph


@given(
    lengths=st.lists(st.integers(0, STEP_NS), max_size=12),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 13 * STEP_NS)), max_size=12),
)
def test_each_wait_is_told_once_when_it_is_over(lengths, steps):
    graph, told, until = made(lengths), 0, 0
    for commits, time in steps:
        if commits:
            graph.commit(time)
            continue
        until = max(until, time)
        over = min(len(lengths), until // STEP_NS)
        assert graph.tell_stalls(0, time) == (told, lengths[told:over] if time == until else [])
        told = max(told, over) if time == until else told


@pytest.mark.parametrize("history", [False, True])
def test_only_the_last_waits_are_told(monkeypatch, history):
    monkeypatch.setattr(_timeline, "MOST_TOLD", 4)
    graph = made(range(10))
    if history:
        graph.commit(10 * STEP_NS)
    assert graph.tell_stalls(0, 8 * STEP_NS) == (6, [6, 7])
    assert graph.tell_stalls(0, 10 * STEP_NS) == (8, [8, 9])
    assert graph.tell_stalls(0, 20 * STEP_NS) == (10, [])
