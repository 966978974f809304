"""Why it exists: the accuracy table is only as honest as its bookkeeping: sets kept apart, peaks
compared to the byte, rows reused only when nothing that decided them has changed."""

import importlib
import json
from pathlib import Path

import pytest

from phantora_ns.trace.kineto import read_trace

BENCH = Path(__file__).resolve().parents[2] / "bench" / "accuracy"
MODULES = ("configs", "breakdown", "measured", "rows", "tables", "store", "compare")


@pytest.fixture(scope="module")
def bench():
    """The bench's modules by name."""
    return {name: importlib.import_module(f"bench.accuracy.{name}") for name in MODULES}


def row(name="a", kept="evaluation", kind="steady", error=0.01, allocated=(), shares=None):
    return {
        "name": name,
        "set": kept,
        "gpus": 1,
        "kind": kind,
        "real_s": 0.1,
        "spread": 0.01,
        "simulated_s": 0.1 * (1 + error),
        "error": error,
        "real_issue_s": 0.05,
        "simulated_issue_s": None,
        "real_peaks": [[1, 2]],
        "simulated_peaks": [[1, 2]],
        "allocated_unequal": list(allocated),
        "reserved_unequal": [],
        "kernel_time_share": shares or {"exact": 1.0},
        "guesses": {},
        "wall_s": 1.0,
        "real_parts": None,
        "simulated_parts": None,
        "difference": None,
    }


def test_what_was_measured_is_what_is_configured(bench):
    configured = {c.name: c for c in bench["configs"].load()}
    measured = bench["measured"].own_results()
    assert set(measured) == set(configured)
    for name, entry in measured.items():
        assert (" ".join(entry.flags), entry.gpus, entry.set, entry.bound) == (
            configured[name].flags,
            configured[name].gpus,
            configured[name].set,
            configured[name].bound,
        )
        assert all(len(peaks) == entry.gpus for peaks in entry.every_peaks)


def test_sets_are_disjoint_and_every_mode_is_judged(bench):
    entries = bench["configs"].load()
    steps = {
        kept: {(e.gpus, e.flags) for e in entries if e.set == kept}
        for kept in ("calibration", "evaluation")
    }
    assert not steps["calibration"] & steps["evaluation"]
    for mode in ("none", "ddp", "fsdp", "fsdp_tp", "tp", "pp"):
        assert any(f"--mode {mode} " in e.flags + " " for e in entries if e.set == "evaluation"), (
            mode
        )


@pytest.mark.parametrize("change", ["repeat", "set", "bound"])
def test_a_wrong_list_is_refused(bench, tmp_path, change):
    text = '[[config]]\nname = "a"\ngpus = 1\nflags = "--mode none"\nset = "{}"\nwhy = ""\nbound = "{}"\nseconds = 1\n'
    good = text.format("evaluation", "gpu")
    wrong = {
        "repeat": good + good.replace('"a"', '"b"'),
        "set": text.format("training", "gpu"),
        "bound": text.format("evaluation", "disk"),
    }[change]
    path = tmp_path / "configs.toml"
    path.write_text(good)
    assert len(bench["configs"].load(path)) == 1
    path.write_text(wrong)
    with pytest.raises(ValueError):
        bench["configs"].load(path)


@pytest.fixture
def truth(tmp_path):
    """A folder with two earlier runs, and a list that names them."""
    run = {
        "world": 2,
        "size": "1b",
        "mode": "fsdp",
        "tp": 1,
        "seq": 64,
        "mbs": 1,
        "layers": None,
        "ac": True,
        "compile": False,
        "accum": 2,
        "steps": 5,
        "warmup": 2,
        "median_s": 0.5,
        "times": [9, 9, 0.4, 0.5, 0.6],
        "peak_alloc": 7,
        "peak_reserved": 8,
    }
    (tmp_path / "train.jsonl").write_text(
        json.dumps(run) + "\n" + json.dumps(run | {"world": 4, "ac": False}) + "\n"
    )
    entry = '[[truth]]\nname = "t{0}"\nmatch = {{ world = {0} }}\nset = "calibration"\nwhy = ""\nbound = "gpu"\n'
    (tmp_path / "configs.toml").write_text(entry.format(2) + entry.format(4))
    return tmp_path


def test_earlier_runs_become_entries_of_the_same_form(bench, truth):
    found = bench["measured"].truth_results(truth, truth / "configs.toml")
    one = found["t2"]
    assert (one.set, one.gpus, one.median_s, one.steps, one.every_peaks, one.issue_s) == (
        "calibration",
        2,
        0.5,
        5,
        ([[7, 8]],),
        None,
    )
    assert one.spread == pytest.approx((2 / 3) ** 0.5 * 0.1 / 0.5)
    assert (
        "--ac" in one.flags
        and "--accum=2" in one.flags
        and not any("layers" in flag for flag in one.flags)
    )
    assert "--ac" not in found["t4"].flags
    assert bench["measured"].truth_results(truth / "absent", truth / "configs.toml") == {}


@pytest.mark.parametrize("change", ["unknown set", "run in no set", "ambiguous"])
def test_every_earlier_run_is_in_a_set(bench, truth, change):
    path = truth / "configs.toml"
    text = path.read_text()
    path.write_text(
        {
            "unknown set": text.replace("calibration", "known"),
            "run in no set": text[text.rindex("[[truth]]") :],
            "ambiguous": text.replace("world = 2", 'size = "1b"'),
        }[change]
    )
    with pytest.raises(ValueError):
        bench["measured"].truth_results(truth, path)


@pytest.mark.truth
def test_the_runs_that_were_known_first_are_calibration(bench):
    found = bench["measured"].truth_results()
    if not found:
        pytest.skip(f"no earlier runs in {bench['measured'].TRUTH}")
    evaluation = {"truth-1b-fsdp-512", "truth-3b-tp8-4k"}
    assert {name for name, m in found.items() if m.set == "evaluation"} == evaluation
    assert len(found) == 7 and {m.set for m in found.values()} == {"calibration", "evaluation"}


def test_a_peak_is_equal_only_to_the_byte_and_on_every_recorded_rank(bench):
    unequal = bench["rows"].unequal
    runs = [[[100, 200], [100, 200]], [[100, 200], [150, 200]]]
    assert unequal(runs, [[100, 200], [150, 200]], 0) == []
    assert unequal(runs, [[100, 200], [100, 200]], 0) == []
    assert unequal(runs, [[150, 200], [90, 200]], 0) == [(0, 50), (1, -60)]
    assert unequal(runs, [[100, 200], [100, 201]], 1) == [(1, 1)]
    assert unequal([[[100, 200]]], [[100, 200], [7, 7]], 0) == []


def test_sets_and_kinds_are_never_summed_together(bench):
    rows = [
        row("a", error=0.02),
        row("b", error=-0.04),
        row("c", "calibration", error=0.5),
        row("d", kind="host-bound", error=-0.16),
        row("e", kind="varying", error=0.9),
    ]
    found = {(v["set"], v["kind"]): v for v in bench["rows"].verdicts(rows)}
    assert (
        found["evaluation", "steady"]["mean"] == pytest.approx(0.03)
        and found["evaluation", "steady"]["worst"] == 0.04
    )
    assert found["evaluation", "steady"]["met"] is True
    assert (
        found["calibration", "steady"]["met"] is False
        and found["evaluation", "host-bound"]["met"] is False
    )
    assert found["evaluation", "varying"]["met"] is None
    assert bench["rows"].verdicts([row(error=0.031)])[0]["met"] is False  # mean
    # worst
    assert bench["rows"].verdicts([row(error=0.001)] * 9 + [row(error=0.061)])[0]["met"] is False
    assert bench["rows"].equal_peaks(
        [row(), row(allocated=[(0, 1)]), row() | {"allocated_unequal": None}]
    ) == (1, 3)
    text = "\n".join(bench["tables"].summary(rows))
    assert "NOT met" in text and "evaluation, host-bound runs (1)" in text


def test_a_run_is_held_against_the_bar_of_its_kind(bench):
    kind = bench["rows"].kind_of
    assert [kind("host", 0.01), kind("gpu", 0.029), kind("gpu", 0.03)] == [
        "host-bound",
        "steady",
        "varying",
    ]


def test_rows_are_reused_only_for_the_same_content_and_options(bench, tmp_path):
    store = bench["store"]
    run = {
        "date": "2026-01-02",
        "commit": "c",
        "changed": False,
        "content": "x",
        "options": {"host-time": "none"},
        "machine": {},
        "rows": [row("a")],
    }
    assert store.finished(tmp_path, run) == {}
    store.keep(tmp_path, run)
    store.keep(tmp_path, run | {"options": {"host-time": "measured"}, "rows": [row("b")]})
    store.keep(tmp_path, run | {"rows": [row("a"), row("c")]})
    assert set(store.finished(tmp_path, run | {"date": "2026-01-03"})) == {"a", "c"}
    assert store.finished(tmp_path, run | {"content": "y"}) == {}
    assert len(json.loads((tmp_path / "2026-01-02.json").read_text())["runs"]) == 2
    (tmp_path / "2026-01-04.json").write_text('{"schema": 99, "runs": []}')
    with pytest.raises(ValueError, match="schema 99"):
        store.finished(tmp_path, run)


def test_the_page_gets_the_table_between_its_markers(bench, tmp_path):
    tables = bench["tables"]
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- now:begin -->\nold\n<!-- now:end -->\nbelow\n")
    differing = row(
        "b", "calibration", allocated=[(0, 3), (1, -5)], shares={"exact": 0.4, "guess": 0.001}
    ) | {
        "difference": {
            "real_step_ns": 100,
            "simulated_step_ns": 90,
            "total": -0.1,
            "rows": [{"label": "gemm", "contribution": -0.08}],
        }
    }
    tables.replace_section(
        page,
        "now",
        tables.markdown(
            {
                "date": "d",
                "commit": "0123456789abcdef",
                "changed": False,
                "options": {"steps": 6, "kernels": None},
                "rows": [row(), differing],
            }
        ),
    )
    text = page.read_text()
    assert text.startswith("above\n") and text.endswith("\nbelow\n") and "old" not in text
    assert (
        "-5 r1 +1 |" in text
        and "0.1% guess" in text
        and "gemm -8.0%, the rest -2.0%" in text
        and "steps 6" in text
    )
    assert text.index("**Evaluation**") < text.index("**Calibration**")
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.count("|") in (7, 13)
    with pytest.raises(ValueError, match="other"):
        tables.replace_section(page, "other", [])


def test_fewer_steps_come_with_fewer_to_warm_up(bench):
    real = bench["measured"].own_results()["8b-pp4-4k"]
    flags = bench["compare"].flags_of
    assert flags(real, None) == flags(real, real.steps) == list(real.flags)
    assert flags(real, 6)[-2:] == ["--steps=6", "--warmup=3"]


def test_every_trace_belongs_to_a_measured_step(bench):
    """The profiled step is not a timed one, but must be of the same length: within 20 %, the
    profiler's own cost included."""
    traces = [
        m
        for m in bench["measured"].own_results().values()
        if m.trace and m.name.startswith("1b-none")
    ]
    assert traces
    for measured in traces:
        parts, steps = bench["breakdown"].of_trace(read_trace(measured.trace))
        assert parts.step_ns / steps / 1e9 == pytest.approx(measured.median_s, rel=0.2)


def test_results_are_one_json_object_a_line():
    for path in (BENCH / "data").glob("*.jsonl"):
        assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())
