"""Why it exists: the accuracy table is only as honest as its bookkeeping: sets kept apart, peaks compared to the byte,
and a step's parts that add up."""
import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "accuracy"


@pytest.fixture(scope="module")
def bench():
    """The bench's modules by name; they import each other as scripts do, from their own folder."""
    sys.path.insert(0, str(BENCH))
    try:
        modules = {}
        for name in ("configs", "compare", "breakdown"):
            spec = importlib.util.spec_from_file_location(f"accuracy_{name}", BENCH / f"{name}.py")
            modules[name] = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = modules[name]
            spec.loader.exec_module(modules[name])
        yield modules
    finally:
        sys.path.remove(str(BENCH))


def test_what_was_measured_is_what_is_configured(bench):
    configured = {c.name: c for c in bench["configs"].load()}
    measured = bench["compare"].real_results(BENCH / "data")
    assert set(measured) == set(configured)
    for name, entry in measured.items():
        assert (entry["flags"], entry["gpus"], entry["set"]) == (configured[name].flags, configured[name].gpus,
                                                                 configured[name].set)
        assert entry["result"]["world"] == len(entry["result"]["peaks"]) == entry["gpus"]


def test_sets_are_disjoint_and_every_mode_is_judged(bench):
    entries = bench["configs"].load()
    steps = {kept: {(e.gpus, e.flags) for e in entries if e.set == kept} for kept in ("calibration", "evaluation")}
    assert not steps["calibration"] & steps["evaluation"]
    for mode in ("none", "ddp", "fsdp", "fsdp_tp", "tp", "pp"):
        assert any(f"--mode {mode} " in e.flags + " " for e in entries if e.set == "evaluation"), mode


@pytest.mark.parametrize("change", ["repeat", "set", "bound"])
def test_a_wrong_list_is_refused(bench, tmp_path, change):
    text = '[[config]]\nname = "a"\ngpus = 1\nflags = "--mode none"\nset = "{}"\nwhy = ""\nbound = "{}"\nseconds = 1\n'
    good = text.format("evaluation", "gpu")
    wrong = {"repeat": good + good.replace('"a"', '"b"'), "set": text.format("training", "gpu"),
             "bound": text.format("evaluation", "disk")}[change]
    path = tmp_path / "configs.toml"
    path.write_text(good)
    assert len(bench["configs"].load(path)) == 1
    path.write_text(wrong)
    with pytest.raises(ValueError):
        bench["configs"].load(path)


def test_a_peak_is_equal_only_to_the_byte_and_on_every_rank(bench):
    unequal = bench["compare"].unequal
    runs = [[[100, 200], [100, 200]], [[100, 200], [150, 200]]]
    assert unequal(runs, [[100, 200], [150, 200]], 0) is None
    assert unequal(runs, [[100, 200], [100, 200]], 0) is None
    assert unequal(runs, [[150, 200], [100, 200]], 0) == (0, 50)
    assert unequal(runs, [[100, 200], [100, 201]], 1) == (1, 1)


def test_parts_of_a_step_add_up_and_agree_with_counting_every_microsecond(bench):
    generator = random.Random(3)
    for _ in range(50):
        events = [{"ts": generator.randrange(300), "dur": generator.randrange(1, 30),
                   "name": generator.choice(["gemm", "ncclDevKernel_AllGather"])} for _ in range(generator.randrange(1, 25))]
        parts = bench["breakdown"].breakdown(events)
        start = min(e["ts"] for e in events)
        running = [{e["name"] for e in events if e["ts"] <= t < e["ts"] + e["dur"]} for t in range(start, start + 400)]
        end = max(e["ts"] + e["dur"] for e in events) - start
        expected = {"compute_alone": {"gemm"}, "hidden": {"gemm", "ncclDevKernel_AllGather"},
                    "exposed": {"ncclDevKernel_AllGather"}, "idle": set()}
        for name, kinds in expected.items():
            assert parts[name] * 1e3 == pytest.approx(sum(at == kinds for at in running[:end])), name
        assert parts["span"] == pytest.approx(sum(parts[name] for name in expected))


def test_every_trace_belongs_to_a_measured_step(bench):
    """The profiled step is not a timed one, but must be of the same length: within 20 %, the profiler's own cost included."""
    measured = bench["compare"].real_results(BENCH / "data")
    for path in sorted((BENCH / "data" / "traces").glob("1b-*.json.gz")):
        span = bench["breakdown"].breakdown(bench["breakdown"].load_events(path))["span"]
        assert span / 1e3 == pytest.approx(measured[path.name.split(".")[0]]["result"]["median_s"], rel=0.2)


def test_results_are_one_json_object_a_line():
    for path in (BENCH / "data").glob("*.jsonl"):
        assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())
