"""How many runs start at once: laws that hold whatever the runs used."""

from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.sweep.admission import Measured, Running, bytes_of, cores_of, may_start

GIB = 2**30
measured = st.builds(
    Measured, st.integers(1, 16), st.floats(0.05, 16), st.integers(1, 32 * GIB), st.just(True)
)
running = st.builds(Running, st.integers(1, 16), st.integers(0, 32 * GIB))
free = st.integers(0, 256 * GIB)
cores = st.integers(1, 64)


def test_one_run_always_may():
    assert may_start(64, [], [], 1, 0)


@given(st.integers(1, 16), st.lists(running, min_size=1), cores, free)
def test_the_first_run_is_alone(ranks, running, cores, free):
    assert not may_start(ranks, running, [], cores, free)


@given(
    st.integers(1, 16), st.lists(running, min_size=1), st.lists(measured, min_size=1), cores, free
)
def test_no_run_starts_without_room(ranks, running, measured, cores, free):
    if may_start(ranks, running, measured, cores, free):
        assert bytes_of(ranks, measured) <= free
        busy = sum(cores_of(one.ranks, measured, cores) for one in running)
        assert busy < cores
        assert not may_start(ranks, running, measured, cores, free, most=len(running))
        assert may_start(ranks, running, measured, cores + 1, free + 1) or cores_of(
            ranks, measured, cores + 1
        ) > cores_of(ranks, measured, cores)


def test_runs_fill_the_cores_that_one_leaves():
    """A run that keeps half a core busy, on four cores with much memory."""
    seen = [Measured(2, 0.5, GIB, True)]
    count = 0
    while may_start(2, [Running(2, GIB)] * count, seen, 4, 100 * GIB):
        count += 1
    assert count == 8


def test_what_ran_beside_others_says_nothing_about_cores():
    seen = [Measured(2, 1.0, GIB, True), Measured(2, 0.1, GIB, False)]
    assert cores_of(2, seen, 8) == 1.0


def test_memory_that_others_will_still_take_is_kept_for_them():
    seen = [Measured(1, 0.1, 10 * GIB, True)]
    assert may_start(1, [Running(1, 10 * GIB)], seen, 8, 12 * GIB)
    assert not may_start(1, [Running(1, 1 * GIB)], seen, 8, 12 * GIB)
