"""The best, the cheapest and the Pareto front, held against their definitions."""

import json

from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.sweep.judge import FAILED, OK, OUT_OF_MEMORY, aims, judged, row_of


def point(number, gpus=1, work=None, gpu="h200"):
    return {
        "number": number, "settings": {"a": number}, "gpus": gpus, "nodes": 1, "gpu": gpu,
        "memory_bytes": 100, "work": work, "command": "c", "folder": "f",
    }  # fmt: skip


def result(step_ns=10, peak=5, state=OK):
    return {
        "state": state, "step_ns": step_ns, "low_ns": None, "high_ns": None, "peak_bytes": peak,
        "wall_s": 1.0, "exit_code": 0, "why": None, "doubts": [],
    }  # fmt: skip


states = st.sampled_from([OK, OK, FAILED, OUT_OF_MEMORY])
small = st.integers(1, 9)


def made(found):
    rows = [
        row_of(point(number, gpus), result(step, peak, state), {"": 2.0})
        for number, (step, peak, gpus, state) in enumerate(found)
    ]
    return judged(rows)


rows = st.lists(st.tuples(small, small, st.integers(1, 4), states), max_size=12).map(made)


def beats(one, other):
    pairs = list(zip(aims(one), aims(other)))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@given(rows)
def test_the_front_is_what_nothing_beats(rows):
    good = [row for row in rows if row.state == OK]
    for row in rows:
        assert row.front == (row.state == OK and not any(beats(other, row) for other in good))


@given(rows)
def test_the_best_is_the_fastest_that_fits(rows):
    good = [row for row in rows if row.state == OK]
    best = [row for row in rows if row.best]
    assert len(best) == bool(good)
    for row in best:
        assert row.step_ns == min(one.step_ns for one in good) and row.state == OK
    for row in (row for row in rows if row.cheapest):
        assert row.cost == min(one.cost for one in good)


@given(rows)
def test_marks_say_what_speaks_for_a_row(rows):
    """Of the front each row has one. A row that is beaten has none, but the cheapest may be beaten in all but
    cost."""
    best = next((row for row in rows if row.best), None)
    for row in rows:
        assert ("best" in row.marks) == row.best and ("cheapest" in row.marks) == row.cheapest
        said = {*row.marks} - {"best", "cheapest"}
        assert bool(row.marks) >= row.front and (row.front or not said)
        if best is not None and row.front and not row.best:
            assert ("less memory" in said) == (row.peak_bytes < best.peak_bytes)
            assert ("fewer GPUs" in said) == (row.gpus < best.gpus)
            assert ("as good as the best" in said) == (aims(row) == aims(best) and not row.cheapest)


def test_steps_of_different_size_are_compared_by_their_work():
    small, large = (
        row_of(point(0, work=8), result(10), {}),
        row_of(point(1, work=32), result(20), {}),
    )
    assert [row.best for row in judged([small, large])] == [False, True]
    assert large.rate == 32 / 20e-9


def test_the_cost_is_gpus_times_hours_times_price():
    hour = 3600 * 10**9
    assert row_of(point(0, gpus=4), result(hour), {"": 2.5}).cost == 10.0
    assert row_of(point(0, gpus=4, gpu="b200"), result(hour), {"h200": 1, "b200": 3}).cost == 12.0
    assert row_of(point(0, gpus=4), result(hour), {"b200": 3}).cost is None
    assert row_of(point(0, gpus=1, work=10**6), result(hour), {"": 2.0}).cost == 2.0


def test_rows_are_json():
    assert (
        json.loads(json.dumps(judged([row_of(point(0), result(), {})])[0].as_json()))["best"]
        is True
    )
