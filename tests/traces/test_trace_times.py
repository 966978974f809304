"""When work ran: against the contention model's own arithmetic, and against an event graph that
knows the work as vertices."""

import json
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.sim.collectives import FlowSpec, Plan
from phantora_ns.sim.contention import Activity, Runs
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph, Op
from phantora_ns.trace.times import Times

spans = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 200)), max_size=12)


@given(spans, st.integers(0, 600), st.integers(1, 400), st.integers(0, 300))
def test_stretching_is_the_contention_models(intervals, begin_ns, work_ns, contention_ns):
    activity = Activity()
    for owner, (start, length) in enumerate(intervals):
        activity.put(owner, start, start + length)
    times = Times(
        [number + 1, start + length, start, start, "ring", "LL", 1]
        for number, (start, length) in enumerate(intervals)
    )
    runs = Runs.of([work_ns], [contention_ns])
    assert times.finish_ns(begin_ns, runs, 1) == activity.finish_ns(
        begin_ns, work_ns, contention_ns
    )


class OneLink:
    """Every all-reduce crosses one link of one byte per ns."""

    def plan(self, kind, gpus, count_bytes, dtype=9, root=0):
        return Plan((FlowSpec((0,), count_bytes, None),), 3, 5, "ring", "Simple", 2)


kernels = st.lists(
    st.tuples(st.integers(1, 80), st.integers(0, 60), st.integers(0, 30), st.booleans()),
    min_size=1,
    max_size=25,
)


def flat(terms, behind=0):
    """A time expression of terms (vertex, lag, kernels), without the last `behind` kernels."""
    return [
        part
        for vertex, lag, kernels in terms
        for part in (vertex, lag, [*chain(*kernels[: len(kernels) - behind])] or 0)
    ]


@given(kernels, st.integers(0, 200), st.lists(st.integers(1, 300), max_size=4))
def test_work_runs_between_the_events_around_it(run, lateness, sizes):
    """A stream of client 0 computes; beside it, on another stream, all-reduces with client 1, which
    comes late. Some kernels wait for the last of them. The time expressions before and after each
    kernel are also vertices of the graph."""
    graph = EventGraph(FlowSimulator({0: 1.0}), OneLink(), {0: 1.0})
    for _ in range(2):
        graph.add_client()
    lines = []

    def tell(number, node, reached):
        launch = [] if reached is None else [reached.reach()[0], node.start_ns, "ring", "Simple", 2]
        lines.append([number, node.time_ns, *launch])

    graph.follow(0, tell)
    comm = graph.communicator((0, 1), (0, 1), ("a", "b"))
    number, last = 1, 0
    for index, size in enumerate(sizes):
        for client in (0, 1):
            expression = graph.expression(
                client,
                [last if client == 0 else 0, 10 if client == 0 else lateness * (index + 1), 0],
            )
            graph.launch(
                comm,
                client,
                number if client == 0 else index + 1,
                expression,
                [Op(0, size, 7, 0, -1)],
            )
        last, number = number, number + 1
    graph.run()
    terms, probes = {0: (0, [])}, []
    for duration, contention, gap, waits in run:
        terms = {vertex: (lag + gap, before) for vertex, (lag, before) in terms.items()}
        if waits and last:
            terms.setdefault(last, (0, []))
        terms = {
            vertex: (lag, [*before, (duration, contention)])
            for vertex, (lag, before) in terms.items()
        }
        after = [(vertex, *weights) for vertex, weights in terms.items()]
        for behind in (1, 0):
            graph.define(0, number, graph.expression(0, flat(after, behind)))
            number += 1
        sums = [(vertex, lag, *map(sum, zip(*before))) for vertex, lag, before in after]
        probes.append((sums, duration, contention, number - 2, number - 1))
    graph.run()
    known = {number: node.time_ns for number, node in graph.vertices(0)}
    graph.finish_following()
    times = Times(json.loads(json.dumps(lines)))
    end_before = 0
    for after, duration, contention, begins, ends in probes:
        begin_ns, end_ns = times.span(after, duration, contention)
        assert (begin_ns, end_ns) == (known[begins], known[ends])
        assert end_before <= begin_ns <= end_ns
        end_before = end_ns


def test_what_was_never_known_has_no_time():
    times = Times([[1, 50], [3, 90]])
    assert (
        times.vertex(0) == 0
        and times.vertex(1) == 50
        and times.vertex(2) is None
        and times.vertex(9) is None
    )
    assert times.span([(1, 5, 10, 0)], 10, 0) == (55, 65)
    assert times.span([(1, 5, 10, 0), (2, 0, 10, 0)], 10, 0) is None
    assert times.launch(3) is None


def test_a_line_that_was_not_written_whole_is_left_out(tmp_path):
    path = tmp_path / "x.times"
    path.write_text('[1,50]\n[2, 80, 60, 70, "tree", "LL128", 16]\n[3,9')
    times = Times.read(path)
    assert times.vertex(2) == 80 and times.vertex(3) is None
    assert times.launch(2) == (60, 70, "tree", "LL128", 16)
