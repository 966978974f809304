"""What a sweep says in words while it runs and at its end, held against rows that are made by hand."""

from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.sweep import table
from phantora_ns.sweep.judge import judged, row_of
from phantora_ns.sweep.spec import Spec
from phantora_ns.sweep.sweep_run import left_s
from tests.sweep.test_judge import point, result

SPEC = Spec("", (), ({"a": 0}, {"a": 1}), work="a", unit="tokens")
seconds = st.floats(0.1, 1e4)


def rows(*steps):
    """`steps`: (ns, work)."""
    return judged(
        [row_of(point(n, work=work), result(ns), {}) for n, (ns, work) in enumerate(steps)]
    )


def test_a_shorter_step_with_less_work_is_explained():
    said = table.closing(SPEC, rows((977_000_000, 131_072), (441_000_000, 32_768)))
    assert said[2] == (
        "  not the shortest step: 441 ms with a=1, which does 32,768 tokens a step, not 131,072"
    )
    for alike in (rows((10, 8), (20, 8)), rows((10, 8), (20, 4)), rows((10, None), (20, None))):
        assert not any("not the shortest" in line for line in table.closing(SPEC, alike))


def test_headings_name_the_unit():
    assert "tokens/s" in table.headings(SPEC)


@given(st.lists(seconds, min_size=1), st.lists(seconds, max_size=4), st.integers(0, 20))
def test_the_rest_of_a_sweep_is_bounded_by_its_points(ended, running, waiting):
    """Not more than all of it one after another, and not less than if all ran at once."""
    each = sum(ended) / len(ended)
    rest = [max(0.0, each - one) for one in running]
    left = left_s(ended, running, waiting)
    slack = 1e-9 * (1 + sum(rest) + waiting * each)
    assert max([0.0, *rest]) - slack <= left <= sum(rest) + waiting * each + slack
    assert left_s(ended, running, waiting + 1) > left - slack
    assert left_s([], running, waiting) is None


def test_the_rest_is_exact_when_points_are_alike():
    assert left_s([100.0], [], 3) == 300.0
    assert left_s([100.0], [50.0, 50.0], 2) == 150.0
