"""The law of watching: who keeps what an expression was, and evaluates it again only when told that
something in it has moved, always has what it is."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.sim._watching import Watches
from tests.sim.test_graph_law import make_job, replay, with_contention


class Kept:
    """An expression, and its time when it was last evaluated."""

    def __init__(self, expression):
        self.expression, self.stale, self.was = expression, True, None

    def look(self):
        self.was, self.stale = self.expression.reach(), False


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 14), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_what_is_kept_is_what_an_expression_is(seed, ranks, events, order):
    job = with_contention(make_job(random.Random(seed), ranks, events), random.Random(seed + 1))
    rng = random.Random(order)
    kept = []

    def watch(graph, done, objects):
        told = list(graph.watches.take())
        assert {one for one in kept if one.stale} == set(told)
        for one in told:
            one.look()
        for one in kept:
            assert one.was == one.expression.reach()
        for rank, program in enumerate(job.programs):
            if done[rank]:
                call = program[done[rank] - 1]
                head = call[-2] if call[0] == "launch" else call[-1]
                one = Kept(graph.expression(rank, head))
                one.look()
                graph.watches.add(one, one.expression.sources())
                kept.append(one)
        if kept and rng.random() < 0.2:
            graph.watches.remove(kept.pop(rng.randrange(len(kept))))

    replay(job, random.Random(order), 0.7, watch)


def test_a_watcher_that_is_removed_is_not_told():
    watches, source = Watches(), object()
    one, other = Kept(None), Kept(None)
    watches.add(one, [source, source])
    watches.add(other, [source])
    one.stale = other.stale = False
    watches.note(source)
    watches.remove(one)
    assert list(watches.take()) == [other] and one.stale and other.stale
    watches.remove(other)
    watches.note(source)
    assert source not in watches and list(watches.take()) == []
