"""The law of the flow simulator: flows added in any order complete as if all had been known from
the start."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.sim._flow_engine import PythonEngine
from phantora_ns.sim._flow_native import NativeEngine
from phantora_ns.sim._flow_time import TICKS_PER_NS
from phantora_ns.sim.flows import FlowSimulator

from .oracle import Change, Spec, completions, near_rounding_edge, to_ns


class ThinEngine(NativeEngine):
    """Keeps so few log entries that history is always being thinned: rollbacks start from points
    far back."""

    def __init__(self, capacities):
        super().__init__(capacities, budget=20)


ENGINES = [PythonEngine, NativeEngine, ThinEngine]

LINKS = "abcd"


@st.composite
def schedules(draw):
    capacities = {link: draw(st.sampled_from([1, 2, 3, 7, 12.5, 50, 0.25])) for link in LINKS}
    spec = st.builds(
        Spec,
        start=st.integers(0, 60),
        links=st.lists(st.sampled_from(LINKS), max_size=3).map(tuple),
        size=st.sampled_from([0, 1, 5, 60, 100, 360, 1000]) | st.integers(0, 2000),
        cap=st.none() | st.sampled_from([0.5, 1, 2, 3.5, 10]),
        count=st.sampled_from([1, 1, 1, 2, 5]),
    )
    specs = draw(st.lists(spec, min_size=1, max_size=9))
    changes = draw(
        st.lists(
            st.builds(
                Change,
                at=st.integers(0, 200),
                link=st.sampled_from(LINKS),
                capacity=st.sampled_from([0.5, 1, 4, 20]),
            ),
            max_size=3,
            unique_by=lambda change: (change.at, change.link),
        )
    )
    order = draw(st.permutations(range(len(specs) + len(changes))))
    queries = draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    return capacities, specs, changes, order, queries


def assert_completes(simulator, handle, exact):
    reported = simulator.completion_ns(handle)
    assert reported == to_ns(exact) or (
        near_rounding_edge(exact) and abs(reported - to_ns(exact)) == 1
    )
    tick = simulator._engine.end_tick(handle._slot) if handle._slot is not None else None
    if tick is not None:
        assert abs(Fraction(exact) - Fraction(tick, TICKS_PER_NS)) < Fraction(1, 1 << 14)


@pytest.mark.parametrize("engine", ENGINES)
@given(schedule=schedules())
@settings(max_examples=300, deadline=None)
def test_any_order_of_insertion_completes_as_the_oracle(engine, schedule):
    capacities, specs, changes, order, queries = schedule
    simulator = FlowSimulator(capacities, engine=engine)
    handles, reported = {}, {}
    for number, query in zip(order, queries, strict=True):
        if number < len(specs):
            s = specs[number]
            handles[number] = simulator.add(s.start, s.links, s.size, s.cap, s.count)
        else:
            change = changes[number - len(specs)]
            simulator.set_capacity(change.at, change.link, change.capacity)
        if query:
            before = dict(reported)
            moved = simulator.changed()
            assert all(before[handle] != time for handle, time in moved.items())
            reported.update(moved)
            for handle in handles.values():
                reported[handle] = simulator.completion_ns(handle)
                assert reported[handle] == moved.get(handle, before.get(handle, reported[handle]))
            simulator.check()
    for number, exact in enumerate(completions(capacities, specs, changes)):
        assert_completes(simulator, handles[number], exact)
    simulator.check()


def random_schedule(seed, flows, links, span_ns, cap_share=0.2):
    """Flows that share links by chance: routes of 0 to 4 links, sizes over four decades, many equal
    starts."""
    rng = random.Random(seed)
    capacities = {f"l{i}": rng.choice([12.5, 25, 50, 450, 3.3]) for i in range(links)}
    specs = [
        Spec(
            start=rng.randrange(span_ns) // 16 * rng.choice([1, 16]),
            links=tuple(rng.choices(list(capacities), k=rng.choice([0, 1, 1, 2, 2, 3, 4]))),
            size=int(10 ** rng.uniform(0, 4)) * rng.choice([0, 1, 1, 1, 1]),
            cap=rng.choice([1, 5, 12.5]) if rng.random() < cap_share else None,
            count=rng.choice([1, 1, 1, 3]),
        )
        for _ in range(flows)
    ]
    return capacities, specs


@cache
def oracle_times(seed, flows, links, span):
    return completions(*random_schedule(seed, flows, links, span), exact=False)


def run_in_order(capacities, specs, order, engine, ask_every=0):
    """Completions by flow number, the flows being added in `order` with questions in between."""
    simulator = FlowSimulator(capacities, engine=engine)
    handles = {}
    for position, number in enumerate(order):
        s = specs[number]
        handles[number] = simulator.add(s.start, s.links, s.size, s.cap, s.count)
        if ask_every and position % ask_every == 0:
            simulator.completion_ns(handles[number])
    return (
        [simulator.completion_ns(handles[number]) for number in range(len(specs))],
        simulator,
        handles,
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_two_hundred_orders_give_the_same_ticks(engine):
    capacities, specs = random_schedule(seed=7, flows=60, links=9, span_ns=4000)
    _, simulator, handles = run_in_order(capacities, specs, range(60), engine)
    expected = [
        handles[i]._slot is not None and simulator._engine.end_tick(handles[i]._slot)
        for i in range(60)
    ]
    rng = random.Random(8)
    for _ in range(200):
        order = rng.sample(range(60), 60)
        _, simulator, handles = run_in_order(
            capacities, specs, order, engine, ask_every=rng.choice([0, 1, 5])
        )
        assert expected == [
            handles[i]._slot is not None and simulator._engine.end_tick(handles[i]._slot)
            for i in range(60)
        ]
    assert simulator.rollbacks or simulator.events


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "seed, flows, links, span", [(1, 1500, 12, 100_000), (2, 1500, 60, 40_000), (3, 600, 4, 60_000)]
)
def test_schedules_of_many_flows_match_the_oracle(engine, seed, flows, links, span):
    capacities, specs = random_schedule(seed, flows, links, span)
    rng = random.Random(seed)
    order = sorted(range(flows), key=lambda i: specs[i].start + rng.randrange(span // 10))
    _, simulator, handles = run_in_order(capacities, specs, order, engine, ask_every=7)
    assert simulator.rollbacks > flows // 20
    for number, exact in enumerate(oracle_times(seed, flows, links, span)):
        assert_completes(simulator, handles[number], exact)
    simulator.check()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_schedule_shifted_in_time_gives_the_same_durations(engine):
    capacities, specs = random_schedule(seed=11, flows=200, links=8, span_ns=9000)
    shift = 123_456_789_012_345
    later = [Spec(s.start + shift, s.links, s.size, s.cap, s.count) for s in specs]
    here, _, _ = run_in_order(capacities, specs, range(200), engine)
    there, _, _ = run_in_order(capacities, later, range(200), engine)
    assert [time + shift for time in here] == there


def grouped_schedule(seed, flows, span_ns):
    """Eight groups of links that mostly keep to themselves, one of them much busier, and now and
    then a flow across two."""
    rng = random.Random(seed)
    capacities = {
        (group, link): rng.choice([10, 50, 50, 12.5]) for group in range(8) for link in range(3)
    }
    specs = []
    for _ in range(flows):
        groups = [rng.choice([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7])]
        if rng.random() < 0.02:
            groups.append(rng.randrange(8))
        route = tuple(
            (group, rng.randrange(3)) for group in groups for _ in range(rng.choice([1, 2]))
        )
        specs.append(
            Spec(
                rng.randrange(span_ns // 10) * 10,
                route,
                rng.choice([100, 500, 1000, rng.randrange(1, 4000)]),
            )
        )
    return capacities, specs


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(6))
def test_late_flows_queries_and_commits_give_the_bits_of_the_plain_engine_in_order(engine, seed):
    count, span = 900, 40_000
    capacities, specs = grouped_schedule(seed, count, span)
    _, plain, plain_handles = run_in_order(
        capacities, specs, sorted(range(count), key=lambda i: specs[i].start), PythonEngine
    )
    rng = random.Random(seed)
    order = sorted(range(count), key=lambda i: specs[i].start + rng.randrange(span // 8))
    earliest_to_come = [
        min(specs[i].start for i in order[position:]) for position in range(count)
    ] + [span]
    simulator = FlowSimulator(capacities, engine=engine)
    handles = {}
    for position, number in enumerate(order):
        handles[number] = simulator.add(
            specs[number].start, specs[number].links, specs[number].size
        )
        if rng.random() < 0.3:
            simulator.completion_ns(handles[rng.choice(order[: position + 1])])
        if rng.random() < 0.1:
            simulator.changed()
        if rng.random() < 0.1:
            simulator.commit(earliest_to_come[position + 1] - rng.randrange(50))
    assert simulator.rollbacks > 50
    for number in range(count):
        assert simulator.completion_ns(handles[number]) == plain.completion_ns(
            plain_handles[number]
        )
        if handles[number]._final_ns is None:
            end = simulator._engine.end_tick(handles[number]._slot)
            assert end == plain._engine.end_tick(plain_handles[number]._slot)
    simulator.check()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flow_that_starts_when_another_ends_in_its_past(engine):
    """g ends at 10; x shares with g; a late flow on `a` at 10 meets x only later, through z: x must
    still speed up at 10."""
    specs = {
        "g": Spec(0, ("b",), 50),
        "x": Spec(0, ("b",), 100),
        "z": Spec(12, ("a", "b"), 100),
        "late": Spec(10, ("a",), 100),
    }
    simulator = FlowSimulator({"a": 10, "b": 10}, engine=engine)
    handles = {}
    for name, s in specs.items():
        handles[name] = simulator.add(s.start, s.links, s.size)
        simulator.completion_ns(handles[name])
    for name, exact in zip(
        specs, completions({"a": 10, "b": 10}, list(specs.values())), strict=True
    ):
        assert_completes(simulator, handles[name], exact)
    simulator.check()


@pytest.mark.parametrize("seed", [30, 37, 65, 66])
def test_thinned_history_never_restores_what_it_dropped(seed):
    """Seeds found by marking points where some flows were already ahead: those had dropped their
    state there."""
    capacities, specs = grouped_schedule(seed, 900, 40_000)
    rng = random.Random(seed)
    in_order, _, _ = run_in_order(capacities, specs, range(900), NativeEngine)
    order = sorted(
        range(900), key=lambda i: specs[i].start + rng.randrange(40_000 // rng.choice([1, 2, 8]))
    )
    late, simulator, _ = run_in_order(
        capacities, specs, order, ThinEngine, ask_every=rng.choice([1, 3])
    )
    assert late == in_order and simulator.rollbacks > 200


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(4))
def test_a_group_is_complete_when_the_last_of_its_flows_would_be(engine, seed):
    """Groups of six flows, added late, moved, asked and committed, against the same flows added
    singly and in order."""
    rng = random.Random(seed)
    capacities, specs = grouped_schedule(seed, 600, 30_000)
    groups = [
        [(s.links, s.size, rng.choice([None, 5]), rng.choice([1, 3])) for s in specs[i : i + 6]]
        for i in range(0, 600, 6)
    ]
    starts = sorted(s.start for s in specs[:100])
    simulator, told, handles = FlowSimulator(capacities, engine=engine), {}, {}
    for number in sorted(range(100), key=lambda i: starts[i] + rng.randrange(3000)):
        first = starts[number] + rng.randrange(500)
        handles[number] = simulator.add_group(first, simulator.group(groups[number]))
        if rng.random() < 0.5:
            told[handles[number]] = simulator.completion_ns(handles[number])
        simulator.move(handles[number], starts[number])
        told.update(simulator.changed())
        simulator.commit(starts[number] - 3500)
    plain = FlowSimulator(capacities, engine=PythonEngine)
    single = [
        [plain.add(starts[number], *flow) for flow in group] for number, group in enumerate(groups)
    ]
    for number, members in enumerate(single):
        expected = max(map(plain.completion_ns, members))
        assert told.get(handles[number], expected) == expected
        assert simulator.completion_ns(handles[number]) == expected
    simulator.check()
    assert simulator.rollbacks > 50


def test_groups_without_bytes_and_without_links():
    simulator = FlowSimulator({"a": 1})
    assert simulator.completion_ns(simulator.add_group(7, simulator.group([]))) == 7
    assert (
        simulator.completion_ns(simulator.add_group(7, simulator.group([(["a"], 0), ([], 0)]))) == 7
    )
    assert (
        simulator.completion_ns(simulator.add_group(7, simulator.group([(["a"], 0), (["a"], 3)])))
        == 10
    )
    with pytest.raises(ValueError, match="needs links"):
        simulator.group([([], 1)])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(4))
def test_large_components_that_part_and_late_changes_of_capacity(engine, seed):
    """Hundreds of flows at once in two halves, joined by short flows only: a late flow takes back
    one half, not the other."""
    rng = random.Random(seed)
    capacities = {
        (half, link): rng.choice([10, 50, 12.5]) for half in range(2) for link in range(8)
    }
    specs, changes = [], []
    for _ in range(180):
        half = rng.randrange(2)
        route = tuple((half, link) for link in rng.sample(range(8), rng.choice([1, 2, 3])))
        specs.append(
            Spec(rng.randrange(600), route, rng.randrange(500, 5000), rng.choice([None, None, 0.7]))
        )
    for at in (0, 300, 590):
        specs.append(Spec(at, ((0, rng.randrange(8)), (1, rng.randrange(8))), 3))
    late = [
        Spec(rng.randrange(500, 2000), ((rng.randrange(2), rng.randrange(8)),), rng.randrange(500))
        for _ in range(30)
    ]
    changes = [
        Change(rng.randrange(2000), (rng.randrange(2), rng.randrange(8)), rng.choice([5, 20]))
        for _ in range(15)
    ]
    changes = list({(change.at, change.link): change for change in changes}.values())

    plain = FlowSimulator(capacities, engine=PythonEngine)
    for change in changes:
        plain.set_capacity(change.at, change.link, change.capacity)
    expected = [plain.add(s.start, s.links, s.size, s.cap) for s in specs + late]
    expected = [plain.completion_ns(handle) for handle in expected]

    simulator = FlowSimulator(capacities, engine=engine)
    handles = {
        number: simulator.add(s.start, s.links, s.size, s.cap) for number, s in enumerate(specs)
    }
    simulator.completion_ns(handles[0])
    arrivals = [*enumerate(late, len(specs)), *((None, change) for change in changes)]
    for number, arrival in rng.sample(arrivals, len(arrivals)):
        if number is None:
            simulator.set_capacity(arrival.at, arrival.link, arrival.capacity)
        else:
            handles[number] = simulator.add(arrival.start, arrival.links, arrival.size, arrival.cap)
        simulator.completion_ns(handles[rng.choice(list(handles))])
    assert [simulator.completion_ns(handles[number]) for number in range(len(expected))] == expected
    simulator.check()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_half_of_a_component_that_a_late_flow_leaves_alone_goes_on_rightly(engine):
    """Both halves are one component, joined by a flow that ended early; the slower half is taken
    out of it behind its back."""
    capacities = {"a": 5, "b": 10}
    specs = [Spec(0, ("a", "b"), 3)]
    specs += [Spec(0, (link,), 1000 + 10 * i) for i in range(40) for link in "ab"]
    specs += [Spec(0, ("b",), 24), Spec(50, ("a",), 100)]
    simulator = FlowSimulator(capacities, engine=engine)
    handles = [simulator.add(s.start, s.links, s.size) for s in specs[:-1]]
    simulator.completion_ns(handles[-1])
    handles.append(simulator.add(specs[-1].start, specs[-1].links, specs[-1].size))
    for handle, exact in zip(handles, completions(capacities, specs), strict=True):
        assert_completes(simulator, handle, exact)
    simulator.check()


@pytest.mark.parametrize(
    "change", [{"size": 1001}, {"cap": 4.9}, {"count": 2}, {"links": ("a",)}, {"start": 3}]
)
def test_the_comparison_with_the_oracle_can_fail(change):
    """An oracle that has been given one thing wrong, however little, must not pass."""
    specs = [Spec(2, ("a", "b"), 1000, 5), Spec(0, ("a",), 3000), Spec(40, ("b",), 500, None, 2)]
    wrong = [replace(specs[0], **change), *specs[1:]]
    simulator = FlowSimulator({"a": 10, "b": 7})
    handles = [simulator.add(s.start, s.links, s.size, s.cap, s.count) for s in specs]
    for handle, exact in zip(handles, completions({"a": 10, "b": 7}, specs), strict=True):
        assert_completes(simulator, handle, exact)
    with pytest.raises(AssertionError):
        for handle, exact in zip(handles, completions({"a": 10, "b": 7}, wrong), strict=True):
            assert_completes(simulator, handle, exact)
