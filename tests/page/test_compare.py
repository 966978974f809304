"""Comparisons of made reports: what moved, where, and conditions with their exit code."""

import copy
import json
import shutil

import pytest

from phantora_ns.api.report import Report
from phantora_ns.cli.app import main
from phantora_ns.page.compare import BY_NAME, CompareError, Run, compare, load
from phantora_ns.page.compare_text import shown, text
from phantora_ns.page.conditions import parse
from phantora_ns.page.render import render, render_comparison
from tests.page.test_page import BROWSER, bare, drawn

GIB = 2**30


def report(step_ns=100_000_000, peak=20 * GIB, **more):
    made = copy.deepcopy(bare()["report"])
    rank = {
        "rank": 0, "node": 0, "device": 0, "gpu_busy_ns": 700_000_000, "comm_ns": 50_000_000,
        "comm_wait_ns": 10_000_000, "exposed_comm_ns": 20_000_000, "host_cpu_ns": 300_000_000,
        "peak_driver_bytes": peak, "peak_allocated_bytes": peak - GIB, "peak_reserved_bytes": peak,
        "peak_pinned_bytes": 0,
    }  # fmt: skip
    step = {
        "rank": 0, "mean_ns": step_ns, "least_ns": step_ns, "most_ns": step_ns, "settled": 5,
        "busy_ns": 70_000_000, "exposed_ns": 10_000_000, "host_ns": 30_000_000, "no_band": None,
        "band": {"low_ns": step_ns - 9, "high_ns": step_ns + 9, "coverage": 0.8},
    }  # fmt: skip
    made |= {"simulated_ns": 10 * step_ns, "ranks": [rank], "step": step}
    made |= {"exit_code": 0, "failed_by": None}
    uncounted = {"launches": 0, "time_share": 0.0, "kernels": []}
    made["arithmetic"] = {
        "flop": {"bf16": 10**12}, "hfu": 0.4, "no_hfu": None, "uncounted": uncounted,
    }  # fmt: skip
    return made | {"cluster": "h200-1x8", "kernel_time_share": {"exact": 1.0}} | more


def write(folder, **reports):
    for name, made in reports.items():
        (folder / f"{name}.json").write_text(json.dumps(made))
    return [str(folder / f"{name}.json") for name in reports]


def values(found, name):
    return next(row["values"] for row in found["metrics"] if row["name"] == name)


def test_every_number_is_a_report_s():
    first, second = report(), report(step_ns=110_000_000, peak=22 * GIB, cluster="b200-1x8")
    found = compare([Run("a", first), Run("b", second)])
    assert values(found, "step_time") == [100_000_000, 110_000_000]
    assert values(found, "peak_memory") == [20 * GIB, 22 * GIB]
    assert values(found, "hfu") == [0.4, 0.4]
    assert found["setup"] == [{"field": "cluster", "values": ["h200-1x8", "b200-1x8"]}]
    assert found["runs"][1]["band"] == [110_000_000 - 9, 110_000_000 + 9]


def test_the_parts_of_a_step_add_up_to_it():
    found = compare([Run("a", report()), Run("b", report(step_ns=130_000_000))])
    sums = [sum(row["values"][i] for row in found["step_parts"]) for i in (0, 1)]
    assert sums == [100_000_000, 130_000_000]
    assert found["step_parts"][0]["kind"] == "everything else"  # the largest change is first


def test_the_parts_of_reports_have_their_names_once():
    found = compare([Run("a", report()), Run("b", report(step_ns=130_000_000))])
    lines = text(found)
    rows = lines[lines.index("where the step changed, means of a step") + 2 :]
    names = {row.split("  ")[0] for row in rows}
    assert names == {"computing", "exposed communication", "idle: everything else"}


def paged(name, scale):
    """A run whose file is a page, with steps of 100 * `scale` ns."""
    steps = [
        {"rank": 0, "number": n, "start_ns": 0, "end_ns": 100 * scale}
        | {"compute": {"gemm": 60 * scale}, "exposed": {"all_gather": 30 * scale}}
        | {"idle": {"host": 10 * scale}}
        for n in range(4)
    ]
    made = report(kernel_time_ns={"gemm": {"exact": 60 * scale}, "made_up": {"guess": scale}})
    return Run(name, made, {"counted_steps": [1, 2, 3], "steps": steps})


def test_parts_of_pages_add_up_to_the_mean_step():
    found = compare([paged("a", 1), paged("b", 3)])
    assert [sum(row["values"][i] for row in found["step_parts"]) for i in (0, 1)] == [100, 300]
    assert found["step_parts"][0] == {"group": "compute", "kind": "gemm", "values": [60, 180]}


NAMES = ["matrix products", "exposed all_gather", "idle: the host is behind", "made_up"]


def test_the_terminal_calls_parts_of_a_step_as_pages_do():
    lines = text(compare([paged("a", 1), paged("b", 3)]))
    names = [line.split("  ")[0] for line in lines]
    assert set(NAMES) <= set(names) and names.count(NAMES[0]) == 2
    assert not [name for name in names if "gemm" in name]


@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium")
def test_the_page_of_a_comparison_has_the_same_names(tmp_path):
    found = compare([paged("a", 1), paged("b", 3)])
    (tmp_path / "compared.html").write_text(render_comparison(found))
    shown_page = drawn(tmp_path / "compared.html", tmp_path)
    assert shown_page.state == "ready"
    assert set(NAMES) <= set(shown_page.texts) and "gemm" not in shown_page.texts


def test_what_is_not_known_is_not_zero():
    found = compare(
        [Run("a", report()), Run("b", report() | {"step": None, "ranks": [], "arithmetic": None})]
    )
    assert values(found, "step_time") == [100_000_000, None]
    assert values(found, "hfu") == [0.4, None]
    assert values(found, "peak_memory") == [20 * GIB, None]
    assert found["step_parts"] == []


@pytest.mark.parametrize(
    "text, broken",
    [
        ("step_time > +3%", True),
        ("step_time > +4%", False),
        ("step_time>=+4%", True),
        ("step_time > +3 ms", True),
        ("step_time > +5 ms", False),
        ("step_time > 103 ms", True),
        ("step_time > 105 ms", False),
        ("step_time < -3%", False),
        ("peak_memory < -1 GiB", True),
        ("peak_memory > 18.5 GiB", True),
        ("guessed > 5%", False),
        ("warnings > 0", True),
        ("computing > +0%", False),
    ],
)
def test_conditions(text, broken):
    found = compare([Run("a", report()), Run("b", report(104_000_000, 18 * GIB))])
    assert bool(parse(text).breaks(found)) == broken, parse(text).breaks(found)


def test_a_bound_that_cannot_be_checked_is_broken():
    found = compare([Run("a", report()), Run("b", report() | {"step": None})])
    assert parse("step_time > +3%").breaks(found) == ["step_time > +3%: not known for B"]
    assert parse("step_time > 1 s").breaks(found) == ["step_time > 1 s: not known for B"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("step_time", "not of the form"),
        ("step_tim > 3%", "choose one of step_time"),
        ("step_time > 3", "has no unit"),
        ("step_time > 3 GiB", "unknown unit"),
        ("step_time > +x%", "not a share"),
        ("warnings > many", "is no number"),
    ],
)
def test_conditions_that_make_no_sense_say_so(text, said):
    with pytest.raises(CompareError, match=said):
        parse(text)


def test_the_command_line_ends_with_an_exit_code(tmp_path, capsys):
    files = write(tmp_path, before=report(), after=report(step_ns=104_000_000))
    assert main(["compare", *files]) == 0
    out = capsys.readouterr().out
    assert "step time (mean)" in out and "+4 ms (+4.0%)" in out
    assert main(["compare", *files, "--fail-if", "step_time > +3%"]) == 1
    assert "failed: step_time > +3%: +4.00% for B" in capsys.readouterr().err
    assert main(["compare", *files, "--fail-if", "step_time > +5%", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert values(found, "step_time") == [100_000_000, 104_000_000]


@pytest.mark.parametrize("text", ["", "{}", "[1]", "<html></html>", '{"ranks": [{}]}'])
def test_what_is_no_report_is_refused_in_one_line(tmp_path, capsys, text):
    (good,) = write(tmp_path, good=report())
    (tmp_path / "bad.json").write_text(text)
    assert main(["compare", good, str(tmp_path / "bad.json")]) == 2
    error = capsys.readouterr().err
    assert "bad.json is no report" in error and error.count("\n") == 1
    assert main(["compare", good, str(tmp_path / "none.json")]) == 2
    assert main(["compare", good]) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"step": {"mean_ns": "1"}},
        {"step": {**report()["step"], "band": 7}},
        {"step": {"mean_ns": 5}},
        {"simulated_ns": 10**400},
        {"kernel_time_ns": {"gemm": {"exact": None}}},
        {"kernel_time_ns": 5},
        {"ranks": [{**report()["ranks"][0], "comm_ns": {}}]},
        {"schema": "2\n"},
    ],
)
def test_a_value_of_another_kind_is_refused_in_one_line(tmp_path, capsys, changes):
    """Some ended in a traceback after the file had been taken for a report."""
    files = write(tmp_path, good=report(), bad=report() | changes)
    assert main(["compare", *files]) == 2
    error = capsys.readouterr().err
    assert "bad.json is " in error and error.count("\n") == 1


def test_json_that_is_nested_too_deeply_is_no_report(tmp_path):
    (tmp_path / "bad.json").write_text("[" * 5000)
    with pytest.raises(CompareError, match="bad.json is no report"):
        load(tmp_path / "bad.json")


def test_a_damaged_report_has_no_summary(tmp_path):
    (file,) = write(tmp_path, bad=report() | {"ended_by": [], "databases": 7, "wall_s": 1.0})
    assert Report.load(file).summary()[0].startswith("no summary: the report is damaged: ")


def test_a_report_of_an_earlier_release_is_refused_and_said_so(tmp_path, capsys):
    """Its step is a median, which is not to be compared with a mean."""
    old = report() | {"schema": 1}
    (tmp_path / "old.html").write_text(render(bare() | {"report": old}, "a run"))
    good, bad = write(tmp_path, good=report(), old=old)
    for path in (bad, str(tmp_path / "old.html")):
        assert main(["compare", good, path]) == 2
        error = capsys.readouterr().err
        assert f"{path} is a report of schema 1, and this release reads 2" in error
        assert "run the job again" in error and error.count("\n") == 1


def test_a_page_is_a_report_too(tmp_path):
    (tmp_path / "run.html").write_text(render(bare(), "a run"))
    run = load(tmp_path / "run.html")
    assert run.report == json.loads(json.dumps(bare()["report"])) and run.page["steps"] == []


def test_the_document_names_every_metric(root):
    text = (root / "docs" / "page.md").read_text()
    assert [name for name in BY_NAME if f"`{name}`" not in text] == []


def test_numbers_have_units():
    assert shown("time", -1_500_000, signed=True) == "-1.5 ms"
    assert shown("bytes", 3 * GIB, signed=True) == "+3.00 GiB"
    assert shown("share", 0.0123) == "1.23%" and shown("count", None) == "-"


@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium")
def test_a_browser_draws_the_comparison(tmp_path):
    runs = [
        Run("before", report()),
        Run("<after>", report(104_000_000)),
        Run("c", report() | {"step": None}),
    ]
    found = compare(runs)
    (tmp_path / "compared.html").write_text(render_comparison(found))
    shown_page = drawn(tmp_path / "compared.html", tmp_path)
    text = " ".join(shown_page.texts)
    assert shown_page.state == "ready", text[:2000]
    assert "104 ms" in text and "+4 ms (+4.0 %)" in text and "<after>" in text
    shutil.rmtree(tmp_path / "browser")
