"""Compute beside communication: the interval arithmetic against a fluid taken one nanosecond at a
time, and in the graph."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.sim.contention import Activity

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6)


def fluid(spans, begin, work, contention):
    """Nanosecond by nanosecond: a whole one alone, work / (work + contention) of one beside
    communication."""
    left, now = Fraction(work), begin
    while left > 0:
        beside = any(start <= now < start + length for start, length in spans)
        rate = Fraction(work, work + contention) if beside else Fraction(1)
        if left <= rate:
            return now + 1  # done within this nanosecond: rounded up
        left -= rate
        now += 1
    return now


@given(SPANS, st.integers(0, 80), st.integers(1, 40), st.integers(0, 40))
def test_work_ends_when_a_fluid_says(spans, begin, work, contention):
    activity = Activity()
    for owner, (start, length) in enumerate(spans):
        activity.put(owner, start, start + length)
    assert activity.finish_ns(begin, work, contention) == fluid(spans, begin, work, contention)


@given(SPANS, st.randoms(), st.integers(0, 80), st.integers(1, 40), st.integers(1, 40))
def test_neither_order_nor_moving_matters(spans, rng, begin, work, contention):
    plain, moved = Activity(), Activity()
    owners = list(enumerate(spans))
    for owner, (start, length) in owners:
        plain.put(owner, start, start + length)
        moved.put(owner, start + 7, start + 2 * length + 9)
    rng.shuffle(owners)
    for owner, (start, length) in owners:
        moved.put(owner, start, start + length)
    assert plain.finish_ns(begin, work, contention) == moved.finish_ns(begin, work, contention)
    bare = begin + work
    assert bare <= plain.finish_ns(begin, work, contention) <= bare + contention


@given(SPANS, st.integers(0, 80), st.integers(1, 40), st.integers(1, 40))
def test_what_is_forgotten_lies_before_all_work_that_is_asked_about(spans, begin, work, contention):
    activity = Activity()
    for owner, (start, length) in enumerate(spans):
        activity.put(owner, start, start + length)
    before = activity.finish_ns(begin, work, contention)
    activity.forget(begin)
    assert activity.finish_ns(begin, work, contention) == before


def test_the_time_from_which_anything_changed_is_told():
    activity = Activity()
    assert activity.put("a", 10, None) == 10
    assert activity.finish_ns(0, 20, 20) == 30
    assert activity.put("a", 10, 20) == 20
    assert activity.finish_ns(0, 20, 20) == 25
    assert activity.put("a", 10, 20) is None
    assert activity.put("a", 10, 25) == 20
    assert activity.put("a", 12, 25) == 10
