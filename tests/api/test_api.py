"""Why it exists: `phantora_ns.run` is the command line from Python. Its keywords are the command's, its
errors have the command's line, and it leaves the caller's process alone."""

import json
import os
import signal
import subprocess
import sys
import typing

import click
import pytest
from hypothesis import given, strategies as st

import phantora_ns
from phantora_ns.api.report import Rank
from phantora_ns.api.run import Options
from phantora_ns.cli.app import cli, main, parse_options
from phantora_ns.launch.command.options import RunOptions, option_words
from tests.page.test_compare import report

JOB = ["--gpus-per-node", "1"]
FLAGS = {"keep_run_dir", "quiet"}


@pytest.fixture
def job(root):
    return [sys.executable, root / "tests/api/job.py"]


# ---- the keywords are the options ----


def test_keywords_are_the_options_of_the_command_line():
    assert set(Options.__annotations__) == set(RunOptions.__dataclass_fields__)


def test_types_of_keywords_are_those_of_the_options():
    hints = typing.get_type_hints(Options)
    for parameter in cli.params:
        if not parameter.expose_value:
            continue
        kinds = set(typing.get_args(hints[parameter.name])) or {hints[parameter.name]}
        choices = {one for kind in kinds for one in typing.get_args(kind) if isinstance(one, str)}
        choices |= {one for one in kinds if isinstance(one, str)}
        if isinstance(parameter.type, click.Choice):
            assert choices == set(parameter.type.choices), parameter.name
        if getattr(parameter, "is_flag", False):
            assert kinds == {bool}, parameter.name
        several = any("Sequence" in str(kind) for kind in kinds)
        assert several == parameter.multiple, parameter.name


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "cluster": st.none() | texts,
            "set": st.lists(texts, max_size=3) | texts,
            "slow_gpu": st.lists(texts, max_size=3),
            "nnodes": st.none() | st.integers(1, 99),
            "host_time": st.sampled_from([None, "auto", "model", "none"]),
            "values": texts,
            "quiet": st.booleans(),
        },
    )
)
def test_keywords_become_the_options_that_they_name(given):
    parsed = parse_options(option_words(given))
    for name, value in given.items():
        if name in ("set", "slow_gpu"):
            value = (value,) if isinstance(value, str) else tuple(value)
        if value is None:
            value = RunOptions.__dataclass_fields__[name].default
        assert getattr(parsed, name) == value


def test_a_dictionary_is_several_settings():
    words = option_words({"set": {"gpu": "b200", "network.nic_bandwidth": "800 Gbit/s"}})
    assert parse_options(words).set == ("gpu=b200", "network.nic_bandwidth=800 Gbit/s")


def test_help_names_every_keyword():
    import inspect

    assert set(Options.__annotations__) < set(inspect.signature(phantora_ns.run).parameters)


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'clutser'"):
        phantora_ns.run(["true"], clutser="h200-rail")


def test_importing_the_package_imports_nothing_else():
    code = (
        "import sys, phantora_ns; print([m for m in sys.modules if m.startswith('phantora_ns.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(phantora_ns.__all__) <= set(dir(phantora_ns))


# ---- a run ----


def state():
    """What a run must not change in this process."""
    return {
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "signals": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
    }


def test_a_run_gives_its_report_and_leaves_this_process_alone(
    job, tmp_path, monkeypatch, built_library
):
    phantora_ns.Report  # noqa: B018 - its module is imported once, before
    before, modules = state(), set(sys.modules)
    log, file = tmp_path / "log", tmp_path / "report.json"
    result = phantora_ns.run(
        [*job, "mark"], cwd=tmp_path, env={"API_TEST": "mark"}, log=log,
        gpus_per_node=1, host_time="model", report=file, leaders="none", model_flop=6.0 * 512 * 512 * 64,
    )  # fmt: skip
    assert state() == before and not {"torch", "zmq"} & (set(sys.modules) - modules)
    assert json.loads(file.read_text()) == result.data == phantora_ns.Report.load(file).data
    assert "trained" in log.read_text() and "phantora-ns: simulated" in log.read_text()
    assert result.exit_code == 0 and result.failed_by is None and result.world_size == 1
    step = result.data["step"]
    assert result.step_time_ns == step["mean_ns"] > 0
    assert result.flop_utilisation == result.data["arithmetic"]["hfu"] and result.ended_by is None
    assert result.model_flop_utilisation == result.data["arithmetic"]["mfu"] > 0
    assert result.data["arithmetic"]["model_flop"] == 6 * 512 * 512 * 64
    assert result.step_band_ns == (step["band"]["low_ns"], step["band"]["high_ns"])
    assert result.peak_allocated_bytes == result.ranks[0].peak_allocated_bytes > 512 * 512 * 4


def test_a_failing_job_is_an_exception_with_the_report(job, tmp_path, capfd, built_library):
    options = {"gpus_per_node": 1, "host_time": "none", "quiet": True}
    with pytest.raises(phantora_ns.JobError) as caught:
        phantora_ns.run([*job, "mark"], **options)
    line = "the command failed with exit code 1; on node-0; its own messages are above; rank 0: AssertionError"
    assert str(caught.value) == line and f"phantora-ns: {line}\n" in capfd.readouterr().err
    assert caught.value.exit_code == caught.value.report.exit_code == 1
    unchecked = phantora_ns.run([*job, "mark"], check=False, log=tmp_path / "log", **options)
    assert unchecked.exit_code == 1 and unchecked.failed_by == "job"


@pytest.mark.parametrize(
    "words, keywords",
    [
        (["torchrun", "--nproc-per-node", "99", "a.py"], {}),
        (["true"], {"cluster": "h2000"}),
        (["true"], {"host_time": "never"}),
        (["true"], {"nnodes": 0}),
        ([], {}),
    ],
)
def test_an_error_has_the_line_of_the_command(words, keywords, capfd, built_library):
    with pytest.raises(phantora_ns.UsageError) as caught:
        phantora_ns.run(words, **keywords)
    assert capfd.readouterr() == ("", "")
    if words:
        assert main([*option_words(keywords), "--", *words]) == 2
        assert capfd.readouterr().err == f"phantora-ns: {caught.value}\n"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keyword", ["log", "cwd"])
def test_what_run_itself_is_given_is_checked(keyword, built_library):
    with pytest.raises(phantora_ns.UsageError, match=f"^{keyword}: .*; in the call of run; "):
        phantora_ns.run(["true"], **{keyword: "/no/such/place"})


def test_an_interrupt_ends_the_run_and_is_raised(tmp_path, root, built_library):
    """A script that is interrupted while its run's job sleeps."""
    script = tmp_path / "script.py"
    script.write_text(
        "import phantora_ns\n"
        "try:\n"
        "    phantora_ns.run(['sh', '-c', 'echo begun; exec sleep 1000'], gpus_per_node=1)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    with subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert out == "interrupted\n" and process.returncode == 0
    assert "phantora-ns: SIGINT: ending the job\n" in err and "Traceback" not in err


# ---- reports ----


def whole():
    """A made report with all that a summary needs."""
    made = report()
    shares = dict.fromkeys(("kernels", "gpu", "communication", "host"), 0.01)
    values = {"unknown_reads": 0, "chosen": 0, "replayed": 0, "repeated": 0, "hollow_bytes": 0}
    made["step"]["band"] |= shares
    counts = ("revised", "answers_past_sleepers", "expired_values", "bad_messages", "messages")
    made |= dict.fromkeys(counts, 0) | {
        "starts": None,
        "kernel_time_ns": {},
        "memory_held": None,
        "databases": [],
        "out_of_memory": False,
    }
    return made | {"values": {"policy": "zeros"} | values}


def test_load_reads_what_the_command_writes(tmp_path):
    file = tmp_path / "a.json"
    phantora_ns.Report(report()).save(file)
    loaded = phantora_ns.Report.load(file)
    assert loaded.data == report() and loaded.step_time_ns == 100_000_000
    with pytest.raises(phantora_ns.UsageError, match="is no report; "):
        (tmp_path / "b.json").write_text("{}")
        phantora_ns.Report.load(tmp_path / "b.json")
    with pytest.raises(phantora_ns.UsageError, match="cannot read "):
        phantora_ns.Report.load(tmp_path / "c.json")


def test_what_is_not_known_is_none():
    made = phantora_ns.Report(whole() | {"step": None, "ranks": []})
    assert made.step_time_ns is made.step_band_ns is made.peak_memory_bytes is None
    assert "step" not in repr(made) and made._repr_html_()


def test_a_report_of_another_version_is_shown_all_the_same():
    made = phantora_ns.Report(report())
    assert "another version of phantora-ns wrote it" in made._repr_html_()


def test_ranks_are_a_table(monkeypatch):
    pytest.importorskip("pandas")
    made = phantora_ns.Report(report())
    table = made.to_pandas()
    assert table.index.tolist() == [0] and table.loc[0, "gpu_busy_ns"] == 700_000_000
    assert table["kernel_launches"].isna().all()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ImportError, match="needs pandas, which is not installed; pip install pandas"
    ):
        made.to_pandas()


def test_a_rank_has_the_fields_of_the_report(root):
    from tests.packaging.test_reference import first_table, section

    documented = first_table(section((root / "docs/report.md").read_text(), "## `ranks`"))
    assert set(Rank.__dataclass_fields__) == documented


def test_a_notebook_shows_the_numbers_and_no_foreign_markup():
    made = phantora_ns.Report(whole() | {"warnings": {"<script>alert(1)</script>": 1}})
    shown = made._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "step 100 ms" in shown and "700.00" in shown and "<script>" not in shown
