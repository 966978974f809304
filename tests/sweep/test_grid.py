"""Which points a grid has, and which of them its conditions leave. Held against plain loops."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.sweep.grid import Expression, GridError, allowed, expand, names_of

scalars = st.one_of(st.integers(-9, 9), st.booleans(), st.text("abz", max_size=2))
axes = st.dictionaries(
    st.sampled_from(["a", "b", "--c", "set.d"]),
    st.lists(scalars, min_size=1, max_size=4),
    max_size=4,
)


def same(value):
    """A value with its type: 1 and True are different words of a command."""
    return type(value), value


def frozen(point):
    return tuple((key, *same(value)) for key, value in sorted(point.items()))


@given(axes)
def test_every_combination_is_there_once(axes):
    points = expand(axes)
    wanted = set()
    for values in itertools.product(*axes.values()):
        wanted.add(frozen(dict(zip(axes, values))))
    if not axes:
        wanted = set()
    assert len(points) == len(wanted) and {frozen(point) for point in points} == wanted


@given(axes.filter(lambda found: all(len(v) == len(set(map(same, v))) for v in found.values())))
def test_the_last_axis_changes_fastest(axes):
    order = [tuple(values.index(p[k]) for k, values in axes.items()) for p in expand(axes)]
    if all(not isinstance(v, bool) for values in axes.values() for v in values):
        assert order == sorted(order)
    assert len(order) == (math.prod(map(len, axes.values())) if axes else 0)


@given(
    axes, st.lists(st.dictionaries(st.sampled_from(["a", "b"]), scalars, min_size=1), max_size=4)
)
def test_listed_points_follow_and_are_not_doubled(axes, listed):
    points = [frozen(point) for point in expand(axes, listed)]
    grid = [frozen(point) for point in expand(axes)]
    assert points[: len(grid)] == grid and len(points) == len(set(points))
    assert set(points) == set(grid) | {frozen(point) for point in listed}


conditions = st.sampled_from(
    [
        "a * b <= 8",
        "a % 2 == 0",
        "b in (1, 3)",
        "not a == b",
        "max(a, b) < 5",
        "a + 1 > b or b == 2",
    ]
)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(conditions, max_size=3),
)
def test_conditions_leave_what_a_loop_leaves(first, second, texts):
    points = expand({"--x.a": first, "b": second})
    left = allowed(points, texts, ["--x.a", "b"])
    wanted = [
        point
        for point in points
        if all(eval(text, {"a": point["--x.a"], "b": point["b"], "max": max}) for text in texts)
    ]
    assert left == wanted


@given(
    st.lists(
        st.from_regex(r"(--)?[a-z][a-z0-9-]{0,3}(\.[a-z0-9-]{1,3}){0,2}", fullmatch=True),
        unique=True,
        max_size=6,
    )
)
def test_names_can_stand_in_expressions(keys):
    names = names_of(keys)
    assert list(names) == keys and all(name.isidentifier() for name in names.values())


def test_names_are_short_where_they_can_be():
    keys = ["--parallelism.tensor-parallel-degree", "set.gpu", "--a.size", "--b.size"]
    assert list(names_of(keys).values()) == ["tensor_parallel_degree", "gpu", "a_size", "b_size"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("a +", "is no expression"),
        pytest.param("-" * 5000 + "a", "is no expression", id="nested"),
        pytest.param("+".join(["a"] * 5000), "is no expression", id="long"),
        ("c > 1", "there is no c (there are a, b); correct the name"),
        ("a.real > 1", "more than numbers, names, operators"),
        ("__import__('os')", "there is no __import__"),
        ("(lambda: 1)()", "more than numbers"),
        ("a ** 9 ** 9", "more than numbers"),
        ("[x for x in a]", "more than numbers"),
        ("f'{a}'", "more than numbers"),
        ("max", "there is no max"),
    ],
)
def test_what_is_no_condition_is_named(text, said):
    with pytest.raises(GridError) as caught:
        Expression(text, ["a", "b"])
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_condition_without_a_value_is_named():
    with pytest.raises(GridError, match="'a / b > 1' has no value: .*; with a=1, b=0"):
        allowed([{"a": 1, "b": 0}], ["a / b > 1"], ["a", "b"])
    with pytest.raises(GridError, match="has no value"):
        allowed([{"a": 1}], ["a > b"], ["a", "b"])
    with pytest.raises(GridError, match="'a \\* b > 1' has no value: 'x' is a text"):
        # as a number of copies, it would fill the memory
        allowed([{"a": "x", "b": 10**18}], ["a * b > 1"], ["a", "b"])
    with pytest.raises(GridError, match="'x' is a text"):
        allowed([{"a": 10**18, "b": "x"}], ["a * b > 1"], ["a", "b"])


def test_too_large_a_grid_is_refused():
    with pytest.raises(GridError, match="makes 1000000 points"):
        expand({"a": range(1000), "b": range(1000)})
