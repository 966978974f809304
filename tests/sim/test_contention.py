"""Compute beside communication: the interval arithmetic against a fluid taken one nanosecond at a
time, and in the graph."""

from fractions import Fraction
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bench.gpus import steps, visit
from phantora_ns.sim.contention import Activity

DATA = Path(__file__).resolve().parents[2] / "bench" / "gpus" / "data"

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


def halted(spans, copies, begin, work, contention):
    """Nanosecond by nanosecond, as `fluid`, with nothing at all beside a copy."""
    left, now = Fraction(work), begin
    while left > 0:
        if not any(start <= now < start + length for start, length in copies):
            beside = any(start <= now < start + length for start, length in spans)
            rate = Fraction(work, work + contention) if beside else Fraction(1)
            if left <= rate:
                return now + 1
            left -= rate
        now += 1
    return now


@given(SPANS, SPANS, st.integers(0, 80), st.integers(1, 40), st.integers(1, 40))
def test_work_stands_still_beside_copies(spans, copies, begin, work, contention):
    activity = Activity()
    for owner, (start, length) in enumerate(spans):
        activity.put(("ring", owner), start, start + length)
    for owner, (start, length) in enumerate(copies):
        activity.put(("copy", owner), start, start + length, copies=True)
    expected = halted(spans, copies, begin, work, contention)
    assert activity.finish_ns(begin, work, contention) == expected


def test_real_kernels_stand_still_beside_the_copy_of_one_rank():
    """FSDP on one GPU: a reduce-scatter is a copy on a stream of its own. Casts of 5 to 24 us that
    it meets in the backward pass end when it ends, 40 us later at most."""
    for trace in visit.traces(DATA):
        if trace["part"] not in ("1b-fsdp-4k@1", "8b12-fsdp-8k-ac@1"):
            continue
        step = steps.Step(steps.of_line(trace))
        copies = [k for k in step.side if k.name.startswith("Memcpy DtoD") and k.length > 100_000]
        met = [
            (kernel, copy)
            for copy in copies
            for kernel in step.main
            if kernel.begin < copy.end - 50_000 and kernel.end > copy.begin + 50_000
        ]
        assert len(met) >= 6
        assert all(0 <= kernel.end - copy.end < 40_000 for kernel, copy in met)
