"""Time expressions as messages have them: equal runs of kernels are read once, and come out the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.sim import _timeline
from phantora_ns.sim._timeline import BadExpression, TermsReader

NS = st.integers(0, 3)  # few values, so that many runs are equal
PAIRS = st.lists(st.tuples(NS, NS), min_size=1, max_size=4)


@given(st.lists(PAIRS, max_size=40), st.integers(1, 6))
def test_equal_runs_are_read_as_if_each_were_new(all_pairs, kept):
    """Whatever is still kept of those before."""
    before, _timeline.MOST_KEPT_KERNELS = _timeline.MOST_KEPT_KERNELS, kept
    try:
        reader = TermsReader()
        for pairs in all_pairs:
            ((number, lag_ns, work_ns, runs),) = reader.read(
                [7, 5, [value for pair in pairs for value in pair]]
            )
            alone = [sum(work for work, _ in pairs[:i]) for i in range(len(pairs) + 1)]
            # communication slows no kernel that takes no time
            slow = [sum(w + c for w, c in pairs[:i] if w) for i in range(len(pairs) + 1)]
            assert (number, lag_ns, work_ns) == (7, 5, alone[-1])
            assert runs is None if slow == alone else runs == (alone, slow)
            assert reader._kernels == sum(len(key) // 2 for key in reader._runs)
            assert reader._kernels <= max(kept, len(pairs))
    finally:
        _timeline.MOST_KEPT_KERNELS = before


@pytest.mark.parametrize(
    "wrong",
    [[], [1], [1, -1], [1, "2"], [[1], 2], [1 << 56, 0], [1.5, 0], [1.0, 0], [True, 0], [1, False]],
)
def test_a_list_that_is_no_run_is_refused_each_time(wrong):
    """Also where Python calls it equal to a run that was read before."""
    reader = TermsReader()
    reader.read([1, 0, [1, 0]])
    for _ in range(2):
        with pytest.raises(BadExpression):
            reader.read([1, 0, list(wrong)])
