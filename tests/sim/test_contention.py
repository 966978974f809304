"""Compute beside communication: the interval arithmetic against a fluid taken one nanosecond at a
time, and in the graph."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.sim.contention import Activity, Runs

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


KERNELS = st.lists(st.tuples(st.integers(1, 25), st.integers(0, 25)), min_size=1, max_size=12)


def activity_of(spans):
    activity = Activity()
    for owner, (start, length) in enumerate(spans):
        activity.put(owner, start, start + length)
    return activity


def finish(activity, begin, kernels):
    return activity.finish_runs_ns(begin, Runs.of(*zip(*kernels)))


@given(SPANS, st.integers(0, 80), KERNELS)
def test_kernels_run_one_after_another(spans, begin, kernels):
    now = begin
    for work, contention in kernels:
        now = fluid(spans, now, work, contention)
    assert finish(activity_of(spans), begin, kernels) == now


@given(SPANS, st.one_of(st.none(), st.integers(0, 80)), st.integers(0, 80), KERNELS)
def test_communication_without_an_end_lasts_until_it_has_one(spans, start, begin, kernels):
    activity = activity_of(spans)
    if start is not None:
        activity.put("open", start, None)
        spans = [*spans, (start, 10_000)]
    assert finish(activity, begin, kernels) == finish(activity_of(spans), begin, kernels)


@given(SPANS, st.integers(0, 80), KERNELS)
def test_without_contention_communication_changes_nothing(spans, begin, kernels):
    kernels = [(work, 0) for work, _ in kernels]
    ends = begin + sum(work for work, _ in kernels)
    assert finish(activity_of(spans), begin, kernels) == ends


@given(st.integers(0, 80), KERNELS)
def test_kernels_wholly_covered_take_what_the_law_says(begin, kernels):
    covering = activity_of([(begin, 10_000)])
    assert finish(covering, begin, kernels) == begin + sum(map(sum, kernels))


@given(SPANS, st.integers(0, 80), KERNELS, KERNELS)
def test_what_is_named_in_between_does_not_matter(spans, begin, first, second):
    activity = activity_of(spans)
    named = finish(activity, begin, first)
    assert finish(activity, named, second) == finish(activity, begin, first + second)


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 60), st.integers(-5, 30)),
        st.tuples(st.just("open"), st.integers(0, 5), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("ask"), st.just(0), st.integers(0, 80), st.integers(0, 40)),
        st.tuples(st.just("forget"), st.just(0), st.integers(0, 60), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=400)
@given(CHANGES)
def test_work_between_changes_ends_when_a_fluid_says(changes):
    """Communication is set, moved, opened and forgotten, and in between work is looked at."""
    activity, spans, forgotten = Activity(), {}, 0
    for what, owner, at, number in changes:
        if what == "put":
            activity.put(owner, forgotten + at, forgotten + at + number)
            spans[owner] = forgotten + at, number
        elif what == "open":
            activity.put(owner, forgotten + at, None)
            spans[owner] = forgotten + at, 10_000
        elif what == "forget":
            # as in the graph: what is forgotten is final
            over = [one for one, span in spans.items() if sum(span) <= forgotten + at]
            for one in over:
                activity.release(one)
            forgotten += at
            activity.forget(forgotten)
            spans = {(one, forgotten) if one in over else one: spans[one] for one in spans}
        else:
            found = activity.finish_ns(forgotten + at, number + 1, owner + number)
            assert found == fluid(spans.values(), forgotten + at, number + 1, owner + number)


def test_only_the_kernels_that_communication_covers_are_slowed():
    """One rate for both would make it 325."""
    beside = activity_of([(100, 1000)])
    assert finish(beside, 0, [(100, 100), (100, 0)]) == 200
    assert finish(beside, 0, [(100, 0), (100, 100)]) == 300


def test_the_time_from_which_anything_changed_is_told():
    activity = Activity()
    assert activity.put("a", 10, None) == 10
    assert activity.finish_ns(0, 20, 20) == 30
    assert activity.put("a", 10, 20) == 20
    assert activity.finish_ns(0, 20, 20) == 25
    assert activity.put("a", 10, 20) is None
    assert activity.put("a", 10, 25) == 20
    assert activity.put("a", 12, 25) == 10


def test_a_kernel_that_takes_no_time_is_not_slowed():
    """Nothing of it overlaps. Else it would wait for the end of communication, also of that which begins then."""
    activity = activity_of([(0, 20), (30, 10)])
    for begin in (10, 25, 35):
        assert finish(activity, begin, [(0, 70)]) == begin
    assert finish(activity, 10, [(0, 70), (5, 0), (0, 70)]) == 15
