"""Why it exists: the event graph moves a collective whose start has moved; its flows must end up as
if added there at first. What it withdraws must leave no trace."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.sim._flow_engine import PythonEngine
from phantora_ns.sim._flow_native import NativeEngine
from phantora_ns.sim.flows import FlowSimulator

ENGINES = [PythonEngine, NativeEngine, lambda capacities: NativeEngine(capacities, budget=16)]
CAPACITIES = {"a": 1.0, "b": 3.0, "c": 12.5}

flow = st.tuples(
    st.integers(0, 60),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True),
    st.integers(1, 500),
    st.none() | st.sampled_from([0.5, 2.0]),
)
step = st.tuples(
    st.integers(0, 7),
    st.integers(0, 300),
    st.sampled_from(["ask", "changed", "nothing"]),
    st.integers(0, 7),
)


@pytest.mark.parametrize("engine", ENGINES)
@given(st.lists(flow, min_size=1, max_size=8), st.lists(step, max_size=10))
@settings(max_examples=400, deadline=None)
def test_moved_flows_complete_as_if_added_there(engine, flows, steps):
    simulator = FlowSimulator(CAPACITIES, engine=engine)
    starts = [start for start, *_ in flows]
    handles, told = [], {}
    for i, (start, links, size, cap) in enumerate(flows):
        handles.append(simulator.add(start, links, size, cap))
        if i % 2:
            told[handles[i]] = simulator.completion_ns(handles[i])
    for which, start, then, other in steps:
        which, other = which % len(flows), other % len(flows)
        starts[which] = start
        simulator.move(handles[which], start)
        if then == "ask":
            told[handles[other]] = simulator.completion_ns(handles[other])
        elif then == "changed":
            told.update(simulator.changed())
    told.update(simulator.changed())
    simulator.check()

    fresh = FlowSimulator(CAPACITIES)
    expected = [fresh.add(start, *rest) for start, (_, *rest) in zip(starts, flows)]
    expected = [fresh.completion_ns(handle) for handle in expected]
    for handle, time in zip(handles, expected):
        assert told.get(handle, time) == time  # what was told and then moved has been told again
        assert simulator.completion_ns(handle) == time


@pytest.mark.parametrize("engine", ENGINES)
@given(
    st.lists(flow, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=6),
)
@settings(max_examples=400, deadline=None)
def test_withdrawn_flows_leave_no_trace(engine, flows, withdrawn):
    simulator = FlowSimulator(CAPACITIES, engine=engine)
    handles = [simulator.add(*one) for one in flows]
    told = {handle: simulator.completion_ns(handle) for handle in handles[::2]}
    gone = set()
    for which, asked in withdrawn:
        gone.add(which % len(flows))
        simulator.withdraw(handles[which % len(flows)])
        if asked:
            told.update(simulator.changed())
    told.update(simulator.changed())
    simulator.check()

    fresh = FlowSimulator(CAPACITIES)
    left = [i for i in range(len(flows)) if i not in gone]
    expected = [fresh.add(*flows[i]) for i in left]
    for i, end in zip(left, [fresh.completion_ns(handle) for handle in expected]):
        assert told.get(handles[i], end) == end
        assert simulator.completion_ns(handles[i]) == end
    assert all(time < 1 << 40 for time in told.values())  # nobody is told of one that is gone
