"""Why it exists: the accuracy table is only as honest as its bookkeeping: sets kept apart, peaks
compared to the byte, rows reused only when nothing that decided them has changed."""

import dataclasses
import importlib
import json
import math
import statistics
from pathlib import Path

import pytest

from phantora_ns.trace.kineto import read_trace

BENCH = Path(__file__).resolve().parents[2] / "bench" / "accuracy"
MODULES = (
    *("configs", "breakdown", "programs", "measured", "rows", "tables", "store", "moved", "bands"),
    *("compare", "errors"),
)


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
        "real_least_s": 0.09,
        "real_most_s": 0.11,
        "real_runs": [[0.1, None]],
        "within": abs(error) < 0.15,
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
        assert (" ".join(entry.program.flags), entry.gpus, entry.set, entry.bound) == (
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
    assert (one.least_s, one.most_s) == (0.4, 0.6)
    flags = one.program.flags
    assert "--ac" in flags and "--accum=2" in flags
    assert not any("layers" in flag for flag in flags)
    assert "--ac" not in found["t4"].program.flags
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


def test_a_job_that_was_measured_twice_is_one_row(bench, truth):
    """Its band holds the steps of both runs, its median lies between theirs."""
    path = truth / "train.jsonl"
    again = json.loads(path.read_text().splitlines()[0])
    again |= {"median_s": 0.7, "times": [9, 9, 0.7, 0.7, 0.8], "peak_alloc": 6}
    path.write_text(path.read_text() + json.dumps(again) + "\n")
    configs = truth / "configs.toml"
    with pytest.raises(ValueError):
        bench["measured"].truth_results(truth, configs)
    configs.write_text(
        configs.read_text().replace("match = { world = 2 }", "match = { world = 2 }\nruns = 2")
    )
    one = bench["measured"].truth_results(truth, configs)["t2"]
    assert (one.least_s, one.most_s, one.median_s) == (0.4, 0.8, pytest.approx(0.6))
    assert one.every_peaks == ([[7, 8]], [[6, 8]])


@pytest.mark.truth
def test_the_runs_that_were_known_first_are_calibration(bench):
    found = bench["measured"].truth_results()
    if not found:
        pytest.skip(f"no earlier runs in {bench['measured'].TRUTH}")
    by_set = {
        kept: {n for n, m in found.items() if m.set == kept}
        for kept in ("calibration", "evaluation")
    }
    assert len(found) == 18 and sum(map(len, by_set.values())) == 18
    known = {
        *("truth-8b-fsdp-4k", "truth-1b-ddp-4k", "truth-1b-fsdp_tp-2x2-4k"),
        *("truth-1b-fsdp-4k-accum4", "truth-160m-tp2-1k"),
        *("truth-3b-8k-1", "truth-3b-8k-2", "truth-deepspeed-z3-512"),
    }
    assert by_set["calibration"] == known
    for one in found.values():
        assert one.least_s <= one.median_s <= one.most_s
        assert all(len(peaks) in (1, one.gpus) for peaks in one.every_peaks)


def test_jobs_of_frameworks_are_rows_with_the_command_that_was_measured(bench):
    found = bench["measured"].framework_results()
    assert len(found) == 17 and {one.set for one in found.values()} == {"evaluation"}
    one = found["deepspeed-zero3-2"]
    assert (one.bound, one.gpus, one.steps) == ("host", 2, 12)
    words = one.program.words(6)
    assert words[0].endswith("job.py") and "--size" in words and "torchrun" not in words
    assert all(len(peaks) == one.gpus for peaks in one.every_peaks)
    assert not set(found) & set(bench["measured"].own_results())


def test_what_scripts_print_is_read(bench):
    script = bench["programs"].Script(("a.py",), ("--steps=9",), 9)
    with pytest.raises(ValueError):
        script.read("step 1\nTraceback")
    result = {"median_s": 2.0, "peak_alloc_ranks": [3, 4], "peak_reserved_ranks": [5, 6]}
    result |= {"times": [9.0, 1.5, 2.5], "warmup": 1}
    outcome = script.read(f"noise\nRESULT {json.dumps(result)}\nmore")
    assert outcome == (2.0, None, [[3, 5], [4, 6]], [1.5, 2.5])
    titan = bench["programs"].Titan(Path("x.toml"), 8192, 12)
    line = "step: {:2d}  loss: 7.0  grad_norm: 1.0  memory: 50.00GiB(35%)  tps: {}  tflops: 4.0  mfu: 40.00%"
    log = "\n".join(line.format(step, "1" if step < 4 else "8,192") for step in range(1, 13))
    assert titan.read(log) == (1.0, None, None, [1.0] * 9)


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
        row("a", error=0.01),
        row("b", error=-0.02),
        row("c", "calibration", error=0.5),
        row("d", kind="host-bound", error=-0.16),
        row("e", kind="varying", error=0.9),
    ]
    verdicts = bench["rows"].verdicts
    found = {(v["set"], v["kind"]): v for v in verdicts(rows)}
    steady = found["evaluation", "steady"]
    assert (steady["mean"], steady["worst"], steady["signed"]) == pytest.approx(
        (0.015, 0.02, -0.005)
    )
    assert steady["met"] is True
    assert found["calibration", "steady"]["met"] is False
    assert found["evaluation", "host-bound"]["met"] is False
    assert found["evaluation", "varying"]["met"] is None
    for errors, met in (
        ((0.021, -0.021), False),  # mean
        ((0.041, -0.001, -0.001, -0.001), False),  # worst
        ((0.011,), False),  # signed
        ((0.019, -0.019), True),
    ):
        assert verdicts([row(error=error) for error in errors])[0]["met"] is met
    hosts = [row(kind="host-bound", error=0.09)] * 4
    assert verdicts([*hosts, row(kind="host-bound", error=0.14) | {"within": False}])[0]["met"]
    assert not verdicts([*hosts, *[row(kind="host-bound", error=0.0) | {"within": False}] * 2])[0][
        "met"
    ]
    assert bench["rows"].equal_peaks(
        [row(), row(allocated=[(0, 1)]), row() | {"allocated_unequal": None}]
    ) == (1, 3)
    text = "\n".join(bench["tables"].summary(rows))
    assert "NOT met" in text and "evaluation, host-bound runs (1)" in text


def test_a_host_bound_step_is_held_against_all_real_ones(bench):
    """Least to most of the steps of all repeats, widened by 5 %."""
    real = bench["measured"].own_results()["160m-ddp-1k"]
    assert real.least_s < real.median_s < real.most_s
    assert real.most_s > 0.042, "the run beside others, in which a step took 42 ms in the median"
    within = bench["rows"].within
    assert within(real, real.most_s * 1.049) and not within(real, real.most_s * 1.051)
    assert within(real, real.least_s * 0.951) and not within(real, real.least_s * 0.949)


def banded(low, high, error=0.0, **changes):
    """A row with a step of 0.2 s by the report, and a band of it."""
    band = {"low_ns": low * 200_000_000, "high_ns": high * 200_000_000}
    step = {"mean_ns": 200_000_000, "busy_ns": 150_000_000, "exposed_ns": 20_000_000}
    step |= {"host_ns": 50_000_000, "band": band}
    return row(error=error) | {"step": step} | changes


def test_coverage_counts_real_runs_within_the_band(bench):
    def runs(low, high, *real_s):
        return banded(low, high) | {
            "simulated_s": 0.1,
            "real_runs": [[one, None] for one in real_s],
        }

    rows = [
        runs(0.9, 1.1, 0.1),
        runs(0.99, 1.01, 0.1 / 1.05),
        runs(0.9, 1.1, 0.1 / 1.05, 0.1 / 1.2),
        row(),
        row() | {"step": None},
    ]
    found = bench["rows"].coverage(rows)
    assert (found["rows"], found["runs"], found["inside"]) == (3, 4, 2)
    assert found["width"] == pytest.approx(0.62 / 4) and found["error"] == pytest.approx(0.3 / 4)
    assert bench["rows"].coverage([row()]) is None
    assert "bands: 2 of 4 real runs inside" in "\n".join(bench["tables"].summary(rows))
    kept = runs(0.9, 1.1, 0.1)  # by an earlier release
    kept["step"]["median_ns"] = kept["step"].pop("mean_ns")
    assert bench["rows"].coverage([kept]) == bench["rows"].coverage([runs(0.9, 1.1, 0.1)])


def work(gemm, law, mhz=1600.0):
    return {
        "kernel_time_ns": {"gemm": {"exact": gemm}, "reduction": {"law": law}},
        "gpu_clock": {"mean_mhz": mhz, "held_share": 1.0},
    }


def test_what_moved_adds_up_and_is_named(bench):
    before = banded(0.9, 1.1, 0.0, **work(120, 30))
    after = banded(0.9, 1.1, 0.05, **work(240, 72, 1500.0))
    after["step"] |= {"mean_ns": 210_000_000, "busy_ns": 156_000_000, "exposed_ns": 26_000_000}
    moved = bench["moved"].compare(before, after)
    assert moved.share == pytest.approx(0.05)
    shares = {cause.label: cause.share for cause in moved.causes}
    assert shares == {
        "gemm (recorded)": pytest.approx(0.0),
        "reduction (fitted law)": pytest.approx(0.03),
        "exposed communication": pytest.approx(0.03),
        "contention, gaps and other waits": pytest.approx(-0.01),
    }
    assert sum(shares.values()) == pytest.approx(0.05)
    line = bench["moved"].shown(moved)
    assert "reduction (fitted law) +3.0%" in line and "clock 1600 to 1500 MHz" in line
    assert "gemm" not in line
    assert bench["moved"].compare(before, banded(0.9, 1.1, 0.001)) is None


def test_a_night_is_compared_with_the_last_of_other_content(bench, tmp_path):
    moved, store = bench["moved"], bench["store"]
    run = {
        "date": "2026-01-02",
        "commit": "c" * 40,
        "changed": False,
        "content": "x",
        "options": {"steps": 6},
        "machine": {"torch": "2.11.0"},
        "rows": [banded(0.9, 1.1, **work(120, 30)), row("peaks")],
    }
    assert "nothing to compare" in moved.since_the_last(tmp_path, run)[0]
    store.keep(tmp_path, run)
    store.keep(tmp_path, run | {"date": "2026-01-03", "options": {"steps": 9}, "content": "z"})
    assert "nothing to compare" in moved.since_the_last(tmp_path, run)[0]
    now = run | {"date": "2026-01-04", "content": "y"}
    now["rows"] = [
        banded(0.9, 1.1, 0.05, **work(120, 30)),
        row("peaks") | {"simulated_peaks": [[1, 3]]},
    ]
    lines = moved.since_the_last(tmp_path, now)
    assert lines[0].startswith("since 2026-01-02 (commit cccccccccccc): 1 of 2 steps moved")
    assert lines[1].split()[0] == "a" and lines[2] == "peak memory moved: peaks"


def test_the_hosts_error_is_chosen_so_that_bands_hold_their_share(bench):
    """Runs as the law says of hosts that are 30 % off: that is what is found."""
    bands = bench["bands"]
    evidence = bands.band.Evidence(10**8, 4 * 10**7, 0, 10**8, {"other": {"exact": 1}})
    deviations = [statistics.NormalDist().inv_cdf((n + 0.5) / 2000) for n in range(2000)]
    errors = tuple(math.copysign(math.log1p(abs(z) * 0.3), z) for z in deviations)
    few = bands.Row("b", evidence, errors[::10])
    before = bands.band.HOSTS, bands.band.TOLD
    assert bands.best("HOSTS", [bands.Row("a", evidence, errors), few]) == pytest.approx(
        0.3, abs=3e-3
    )
    assert bands.best("HOSTS", [bands.Row("a", evidence, (0.0,))]) <= 1e-3
    score = dataclasses.replace(evidence, told=True)
    assert bands.best("TOLD", [bands.Row("a", score, errors)]) == pytest.approx(0.3, abs=3e-3)
    assert (bands.band.HOSTS, bands.band.TOLD) == before


def test_a_told_score_takes_a_server_s_speed_out_of_the_errors(bench):
    """Of two runs that took as long as their servers' scores say, none is off; without a score a run says nothing."""
    bands, reference = bench["bands"], bench["bands"].REFERENCE_SCORE_NS
    evidence = {name: False for name in bands.SHARES} | {"waiting": 0.0, "beside": 0.0}
    one = banded(0.9, 1.1, **work(120, 30)) | {
        "simulated_s": 0.1,
        "real_runs": [[0.1, reference], [0.15, round(1.5 * reference)], [0.3, None]],
    }
    one["step"] |= {"evidence": evidence | {"spread": 0.0, "unknown": 0.0, "nodes": 1}}
    (found,) = bands.told([one])
    assert found.evidence.told and found.errors == pytest.approx((0, 0), abs=1e-6)
    assert bands.told([one | {"real_runs": [[0.1, None]]}]) == []


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
            assert line.count("|") in (7, 14)
    with pytest.raises(ValueError, match="other"):
        tables.replace_section(page, "other", [])


def test_fewer_steps_come_with_fewer_to_warm_up(bench):
    program = bench["measured"].own_results()["8b-pp4-4k"].program
    assert program.words(None) == program.words(program.steps) == [*program.script, *program.flags]
    assert program.words(6)[-2:] == ["--steps=6", "--warmup=3"]


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


def test_a_job_that_ran_only_on_further_machines_is_a_row_of_its_own(bench, tmp_path):
    measured = bench["measured"]
    found = measured.further_results(tmp_path / "truth")
    assert {one.set for one in found.values()} == {"calibration"}
    assert set(found) == set(measured.further_results(unmeasured=True)), "all of them were measured"
    megatron = found["megatron-tp2-small"].program
    assert megatron.words(None)[0] == str(tmp_path / "truth" / "frameworks" / "megatron_gpt.py")
    assert megatron.words(10)[-2:] == ["--steps=10", "--warmup=5"] and megatron.steps == 20
    file, keys = tmp_path / "hosts.jsonl", ("name", "machine", "how", "median_s", "times")
    runs = [
        ("160m-none-512", "C", "real", 4.0, [3.0, 5.0]),
        ("160m-none-512", "C", "real", 4.0, [4.0]),
        ("160m-none-512", "D", "real", 1.0, [1.0]),
    ]
    file.write_text("".join(json.dumps(dict(zip(keys, run, strict=True))) + "\n" for run in runs))
    (job,) = measured.further_results(results=file).values()
    assert (job.median_s, job.least_s, job.most_s) == (2.5, 1.0, 5.0)
    assert (job.bound, job.gpus, job.every_peaks) == ("host", 1, ())


def test_a_job_on_several_machines_has_their_median_and_all_their_steps(bench, tmp_path):
    """Each machine counts once, however often it ran the job. Where machines differ by more than steps do, that is
    the spread: the kind of the row follows from it."""
    measured, rows = bench["measured"], bench["rows"]
    real = next(m for m in measured.own_results().values() if m.bound == "gpu" and m.every_peaks)
    real = dataclasses.replace(real, name="job", median_s=2.0, least_s=1.5, most_s=2.5, spread=0.01)
    other = dataclasses.replace(real, name="other")
    peaks = [[1, 2]]
    runs = [
        ("job", "C", "real", 4.0, [3.0, 5.0], None),
        ("job", "C", "real", 4.2, [4.2], peaks),
        ("job", "D", "real", 1.0, None, None),
        ("job", "D", "measured", 9.0, None, None),
        ("unknown", "D", "real", 9.0, [9.0], None),
    ]
    keys = ("name", "machine", "how", "median_s", "times", "peaks")
    file = tmp_path / "hosts.jsonl"
    file.write_text("".join(json.dumps(dict(zip(keys, run, strict=True))) + "\n" for run in runs))
    found = measured.on_other_hosts({"job": real, "other": other}, file)
    assert found["other"] == other
    job = found["job"]
    assert (job.median_s, job.least_s, job.most_s) == (2.0, 1.0, 5.0)
    assert job.every_peaks == (*real.every_peaks, peaks)
    assert job.spread == pytest.approx(statistics.pstdev([2.0, 4.1, 1.0]) / 2.0)
    assert rows.kind_of(real.bound, real.spread) == "steady"
    assert rows.held_against(job, 2.2, [[1, 2], [1, 3]]) == {
        "kind": "varying",
        "real_s": 2.0,
        "real_least_s": 1.0,
        "real_most_s": 5.0,
        "real_runs": [[2.0, None], [4.0, None], [4.2, None], [1.0, None]],
        "within": True,
        "spread": job.spread,
        "error": pytest.approx(0.1),
        "real_peaks": peaks,
        "allocated_unequal": rows.unequal(job.every_peaks, [[1, 2], [1, 3]], 0),
        "reserved_unequal": rows.unequal(job.every_peaks, [[1, 2], [1, 3]], 1),
    }
    kept = {"simulated_s": 2.2, "simulated_peaks": [[9, 9]], "allocated_unequal": None}
    assert rows.held_again(kept, job)["allocated_unequal"] is None
    kept["allocated_unequal"] = []
    assert rows.held_again(kept, job)["allocated_unequal"] == [(0, 8)]


def test_an_error_of_a_class_holds_four_fifths_of_its_time(bench):
    """Of normal errors it is their deviation. One configuration that is far off does not move it, and one with half of
    the time does."""
    errors = bench["errors"]
    normal = [statistics.NormalDist(0, 0.05).inv_cdf((n + 0.5) / 1000) for n in range(1000)]
    totals = [errors.Total(1e6 * math.exp(error), 1e6) for error in normal]
    assert errors.deviation(totals) == pytest.approx(0.05, rel=0.01)
    assert errors.deviation([*totals, errors.Total(9e6, 1e6)]) == pytest.approx(0.05, rel=0.01)
    far = errors.Total(2e9, 1e9)
    assert errors.deviation([*totals, far]) == pytest.approx(math.log(2) / 1.2816)
