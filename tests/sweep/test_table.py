"""What a sweep says in words while it runs and at its end, held against rows that are made by hand."""

import io
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from phantora_ns.sweep import table
from phantora_ns.sweep.judge import FAILED, OK, OUT_OF_MEMORY, judged, row_of
from phantora_ns.sweep.show import WIDE, make_table
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


WHY = {
    OK: None,
    FAILED: "[rank3]: PermissionError: [Errno 13] Permission denied: 'lspci'",
    OUT_OF_MEMORY: "in step 1 rank 0 asked for 1.00 GiB",
}


def ended(*states):
    """A row for each state; every point's report has a step and a peak."""
    return judged(
        [
            row_of(point(n), result(10**6, 50, state) | {"why": WHY[state]}, {})
            for n, state in enumerate(states)
        ]
    )


def test_results_that_are_failures_are_told_with_what_runs_them_again():
    kept = ended(FAILED, FAILED)
    said = table.kept(kept, 2, "sweep")
    assert said == (
        "2 of 2 points have a result already (2 failed); in sweep; --again runs all points again"
    )
    said = table.kept(ended(OK, OUT_OF_MEMORY, FAILED), 5, "s")
    assert "3 of 5 points have a result already (1 ok, 1 out of memory, 1 failed)" in said
    assert table.kept(ended(OK, OK), 2, "s") == "2 of 2 points have a result already; in s"


def printed(rows, **how):
    """The table as a log has it."""
    text = io.StringIO()
    Console(file=text, width=WIDE).print(make_table(SPEC, rows, **how))
    return text.getvalue()


def test_the_table_has_the_reason_of_each_failure():
    """Also one that rich could take for markup."""
    shown = printed(ended(FAILED, OUT_OF_MEMORY))
    assert f"failed: {WHY[FAILED]}" in shown and f"out of memory: {WHY[OUT_OF_MEMORY]}" in shown


def test_while_it_runs_a_long_reason_takes_one_line():
    (row,) = ended(FAILED)
    row = replace(row, why="x" * 2 * WIDE)
    lines = [printed([row], one_line=one_line).count("\n") for one_line in (True, False)]
    assert lines[0] == printed(ended(OK)).count("\n") < lines[1]


def test_where_failed_runs_tell_more():
    said = table.closing(SPEC, ended(OK, FAILED, FAILED))
    assert said[-1] == "what failed runs printed: f/log.txt, and 1 more"
    assert not any("failed runs" in line for line in table.closing(SPEC, ended(OK)))


def test_how_far_a_failed_run_came_is_no_result():
    """Of one that ran out of memory the peak is: it says what did not fit."""
    good, large, failed = ended(OK, OUT_OF_MEMORY, FAILED)
    assert (good.step_ns, good.peak_bytes) == (10**6, 50)
    assert (large.step_ns, large.peak_bytes) == (None, 50)
    assert (failed.step_ns, failed.peak_bytes) == (None, None)
    assert table.cells(SPEC, failed)[1:5] == ["–", "–", "–", "–"]
    assert "50%" in table.cells(SPEC, large)
