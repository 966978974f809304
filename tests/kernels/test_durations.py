"""Statistics of durations against numpy's, and the laws of taking runs together."""

import math
import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.kernels.database.durations import (
    KEPT,
    LONGEST_NS,
    Accumulator,
    Statistics,
    combine,
    weighted_median,
)

durations = st.lists(st.integers(1, 10**9), min_size=1, max_size=KEPT)


def test_statistics_are_numpys_on_random_samples():
    chance = random.Random(1)
    for size in [1, 2, 3, 9, 10, 11, 20, 100, 255, 256]:
        values = [round(chance.lognormvariate(10, 1)) for _ in range(size)]
        found = Statistics.of(values)
        assert (found.count, found.total, found.minimum, found.maximum) == (
            size,
            sum(values),
            min(values),
            max(values),
        )
        assert found.median == numpy.median(values)
        assert [found.low, found.high] == [
            numpy.quantile(values, q, method="inverted_cdf") for q in (0.1, 0.9)
        ]
        assert found.mean == pytest.approx(numpy.mean(values), rel=1e-12)
        assert found.variance == pytest.approx(
            numpy.var(values, ddof=1) if size > 1 else 0, rel=1e-12
        )
        low, high = math.ceil(size * 0.1) - 1, math.ceil(size * 0.9)
        assert found.middle == round(numpy.mean(sorted(values)[low:high]))
        found.check()


@given(durations, st.integers(0, 2**64 - 1), st.randoms())
def test_up_to_what_is_kept_the_accumulator_is_exact_however_durations_come(values, seed, chance):
    accumulator, rest = Accumulator(seed), list(values)
    while rest:
        size = chance.randrange(1, 10)
        accumulator.extend(rest[:size])
        rest = rest[size:]
    assert accumulator.statistics() == Statistics.of(values)


def test_beyond_what_is_kept_sums_are_exact_and_batches_do_not_matter():
    chance = random.Random(2)
    values = [chance.randrange(1, 10**6) for _ in range(20 * KEPT)]
    whole, pieces = Accumulator(7), Accumulator(7)
    whole.extend(values)
    for at in range(0, len(values), 13):
        pieces.extend(values[at : at + 13])
    found = pieces.statistics()
    assert found == whole.statistics() and len(pieces.kept) == KEPT
    exact = Statistics.of(values)
    assert (found.count, found.total, found.squares) == (exact.count, exact.total, exact.squares)
    assert (found.minimum, found.maximum) == (exact.minimum, exact.maximum)
    found.check()


def test_what_is_kept_is_a_uniform_sample():
    """Every position is kept equally often over many seeds: chi-square with 99 degrees of freedom
    stays below its 99.99 % quantile (161), over the positions in hundredths."""
    size, seeds = 8 * KEPT, 200
    hits = numpy.zeros(100)
    for seed in range(seeds):
        accumulator = Accumulator(seed)
        accumulator.extend(range(1, size + 1))
        assert len(set(accumulator.kept)) == KEPT
        hits += numpy.bincount([(v - 1) * 100 // size for v in accumulator.kept], minlength=100)
    widths = numpy.bincount([v * 100 // size for v in range(size)], minlength=100)
    expected = widths * seeds * KEPT / size
    assert ((hits - expected) ** 2 / expected).sum() < 161


def test_a_step_that_repeats_is_not_sampled_at_the_same_place():
    """Of a launch that takes 100 in one layer of 32 and 200 in the others, about 1 in 32 kept
    durations is the 100."""
    accumulator = Accumulator(3)
    accumulator.extend([100 if at % 32 == 0 else 200 for at in range(32 * 1000)])
    assert 2 <= list(accumulator.kept).count(100) <= 20


@pytest.mark.parametrize("values", [[0], [5, -1], [1.5], ["7"], [True], [None], [LONGEST_NS + 1]])
def test_what_is_no_duration_is_refused_whole(values):
    accumulator = Accumulator(1)
    accumulator.extend([5])
    with pytest.raises(ValueError, match="no duration"):
        accumulator.extend([7, *values])
    assert accumulator.statistics() == Statistics.of([5])
    with pytest.raises(ValueError):
        Statistics.of(values)


def test_no_durations_are_no_statistics():
    assert Accumulator(1).extend([]) == 0 and combine([]) is None
    with pytest.raises(ValueError):
        Statistics.of([])


@given(
    st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=30), min_size=1, max_size=6),
    st.randoms(),
)
def test_runs_taken_together(samples, chance):
    runs, pool = [Statistics.of(s) for s in samples], [v for s in samples for v in s]
    found, exact = combine(runs), Statistics.of(pool)
    found.check()
    assert (found.count, found.total, found.minimum, found.maximum) == (
        exact.count,
        exact.total,
        exact.minimum,
        exact.maximum,
    )
    assert found.variance == pytest.approx(exact.variance, rel=1e-9, abs=1e-6)
    assert min(s.median for s in runs) <= found.median <= max(s.median for s in runs)
    shuffled = list(runs)
    chance.shuffle(shuffled)
    assert combine(shuffled) == found


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5)), min_size=1, max_size=20))
def test_a_weighted_median_is_the_median_of_repeated_values(pairs):
    assert weighted_median(pairs) == numpy.median(
        [value for value, weight in pairs for _ in range(weight)]
    )


def test_percentiles_between_two_runs_stay_on_either_side_of_the_median():
    found = combine([Statistics.of([1]), Statistics.of([2])])
    assert (found.low, found.median, found.high) == (1, 1.5, 2)
    found.check()


def test_one_odd_run_does_not_shift_the_time():
    usual = [Statistics.of([100] * 50), Statistics.of([102] * 50), Statistics.of([101] * 50)]
    assert combine([*usual, Statistics.of([900] * 49)]).median == 101
