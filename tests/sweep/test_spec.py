"""What a file and a command line ask for, and the one line that each mistake gets before a run starts."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.cli.app import parse_options
from phantora_ns.launch.errors import UsageError
from phantora_ns.sweep.point import differences, points_of
from phantora_ns.sweep.spec import Given, parse_axis, read_spec

JOB = [sys.executable, "tests/sweep/jobs/train.py"]


def spec_of(text, tmp_path, **given):
    file = tmp_path / "s.toml"
    file.write_text(text)
    return read_spec(file, Given(**given))


FILE = """
command = "torchrun --nproc-per-node {gpus} train.py"
work = "batch * gpus"
price = 2
[options]
cluster = "h200-rail"
set = { "network.nic_latency" = "1 us" }
[environment]
SIZE = "{gpus}"
[grid]
gpus = [1, 2]
--batch = [8]
--compile = [true, false]
set.gpu = ["h200", "b200"]
env.MODE = ["fast", false]
[[point]]
gpus = 4
option.nnodes = 2
"""


def test_a_file_is_commands_options_and_environments(tmp_path, built_library):
    spec = spec_of(FILE, tmp_path, where=("gpus < 4 or nnodes == 2",))
    assert len(spec.points) == 17 and spec.price == {"": 2.0}
    spec = spec_of(FILE.replace("[[point]]\ngpus = 4\noption.nnodes = 2\n", ""), tmp_path)
    points = points_of(spec, parse_options, "1")
    first, last = points[0], points[-1]
    assert first.command == (
        "torchrun",
        "--nproc-per-node",
        "1",
        "train.py",
        "--batch",
        "8",
        "--compile",
    )
    assert last.command == ("torchrun", "--nproc-per-node", "2", "train.py", "--batch", "8")
    assert first.environment == {"SIZE": "1", "MODE": "fast"}
    assert last.environment == {"SIZE": "2", "MODE": None}
    chosen = parse_options(first.options)
    assert (chosen.cluster, chosen.host_time) == ("h200-rail", "model")
    assert chosen.set == ("network.nic_latency=1 us", "gpu=h200")
    assert (last.gpu, last.ranks, last.gpus, last.work) == ("b200", 2, 2, 16.0)
    assert len({point.key for point in points}) == len(points)


def test_the_command_line_changes_a_file(tmp_path):
    spec = spec_of(FILE, tmp_path, grid=("gpus=4",), command=("torchrun", "--nproc-per-node", "{gpus}", "b.py"),
                   price="h200=1,b200=3", options={"host_time": "none"})  # fmt: skip
    assert {point["gpus"] for point in spec.points} == {4}
    assert spec.command[-1] == "b.py" and spec.price == {"h200": 1.0, "b200": 3.0}
    assert spec.options["host_time"] == "none" and spec.options["cluster"] == "h200-rail"


words = st.text("abcz-_.7", min_size=1, max_size=4).filter(
    lambda text: parse_axis(f"x={text}")[1] == [text]
)
values = st.lists(st.integers(-99, 99) | st.booleans() | words, min_size=1, max_size=4)


@given(
    st.sampled_from(["batch", "--a.b-c", "set.gpu", "env.X"]), values, st.booleans(), st.booleans()
)
def test_an_axis_is_the_same_in_all_its_forms(key, values, braces, space):
    shown = ",".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)
    text = f"{key}{' ' if space else '='}{'{' + shown + '}' if braces else shown}"
    assert parse_axis(text) == (key, values)
    quoted = [str(v).lower() if isinstance(v, bool) else repr(v) for v in values]
    assert parse_axis(f"{key}=[{', '.join(quoted)}]") == (key, values)


GRID = 'command = "true"\n[grid]\n"--a" = [1, 2]\n'


@pytest.mark.parametrize(
    "text, given, said",
    [
        ("a = ", {}, "is not TOML"),
        pytest.param("a = " + "[" * 5000, {}, "is not TOML", id="nested"),
        pytest.param("a = " + "9" * 5000, {}, "is not TOML", id="digits"),
        pytest.param(GRID, {"grid": ("--a=" + "[" * 5000,)}, "is no list", id="nested axis"),
        pytest.param(
            'command = "true"\n[grid]\n"--a" = [9' + "0" * 4000 + "]",
            {"where": ("a * a < 0",)},
            "no point is left",
            id="digits in an expression",
        ),
        ('comand = "true"', {}, "there is no key comand"),
        ('command = "true"', {}, "there is nothing to vary"),
        ("[grid]\nb = [1]", {}, "there is no command"),
        ('command = "a \'b"\n[grid]\n--a = [1]', {}, "cannot be split into words"),
        ("grid = 3", {}, "grid is no table"),
        ('command = "true"\n[grid]\n--a = []', {}, "--a has no value"),
        ('command = "true"\n[grid]\n--a = [[1]]', {}, "--a: [1] is neither a text"),
        ('command = "true {b}"\n[grid]\n--a = [1]', {}, "{b} is filled by nothing"),
        ('command = "true"\n[grid]\nb = [1]', {}, "b changes nothing"),
        ('command = "true"\n[grid]\nfoo.gpu = [1]', {}, "foo.gpu: is neither an argument"),
        ('command = "true"\n[grid]\noption.nodes = [1]', {}, "there is no option --nodes"),
        (
            'command = "true"\n[options]\nhtml = "a"\n[grid]\n--a = [1]',
            {},
            "--html is not for a sweep",
        ),
        (GRID, {"where": ("a > 2",)}, "no point is left"),
        (GRID, {"where": ("b > 2",)}, "there is no b (there are a)"),
        (GRID, {"price": "cheap"}, "'cheap' is no price"),
        (GRID, {"grid": ("--a",)}, "is not KEY=VALUES"),
        (GRID, {"grid": ("--a=[1",)}, "is no list"),
        ("work = 3\n" + GRID, {}, "work is no text"),
        ("where = 3\n" + GRID, {}, "where is no list of texts"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, text, given, said):
    with pytest.raises(UsageError) as caught:
        spec_of(text, tmp_path, **given)
    assert said in str(caught.value) and str(tmp_path / "s.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_point_that_cannot_run_is_named_before_any_runs(tmp_path, built_library):
    spec = spec_of('command = "torchrun --nproc-per-node {n} a.py"\n[grid]\nn = [1, 99]', tmp_path)
    with pytest.raises(
        UsageError, match="^sweep: the point n=99 cannot run: .*; leave it out by where$"
    ):
        points_of(spec, parse_options, "1")
    spec = spec_of(
        'work = "n - 1"\ncommand = "torchrun --nproc-per-node {n} a.py"\n[grid]\nn = [1]', tmp_path
    )
    with pytest.raises(UsageError, match="'n - 1' is 0, which is no amount above 0"):
        points_of(spec, parse_options, "1")


def test_a_result_is_used_again_only_if_nothing_changed(tmp_path, monkeypatch, built_library):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("1")
    text = f'command = ["{sys.executable}", "a.py"]\noptions = {{ gpus-per-node = 1 }}\n[grid]\n--b = [1]\n'

    def key(text=text, version="1"):
        return points_of(spec_of(text, tmp_path), parse_options, version)[0].key

    first = key()
    assert key() == first and key(text.replace("[1]", "[2, 1]")) != first
    assert (
        points_of(spec_of(text.replace("[1]", "[2, 1]"), tmp_path), parse_options, "1")[1].key
        == first
    )
    assert key(version="2") != first and key(text.replace("per-node = 1", "per-node = 2")) != first
    assert key(text + "[environment]\nA = 'b'\n") != first
    # docs/how-to/sweep.md says so: of variables, only those that the sweep sets
    monkeypatch.setenv("PATH", os.environ["PATH"] + ":/no/such/folder")
    monkeypatch.setenv("A", "b")
    assert key() == first
    (tmp_path / "a.py").write_text("2")
    assert key() != first


def test_what_differs_on_another_machine_is_named(tmp_path, monkeypatch, built_library):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("first")
    text = f'command = ["{sys.executable}", "job.py"]\n[grid]\n--a = [1]\n'
    point = points_of(spec_of(text, tmp_path), parse_options, "1")[0]
    assert differences(point, parse_options, "1") == []
    (tmp_path / "job.py").write_text("other")
    assert differences(point, parse_options, "2") == ["job.py", "phantora-ns (2, not 1)"]
    (tmp_path / "job.py").unlink()
    assert differences(point, parse_options, "1") == ["job.py"]


@pytest.mark.parametrize(
    "text, expression, unit",
    [
        ("16*8192 / (tp tokens", None, None),
        ("16*8192 / tp tokens", "16*8192 / tp", "tokens"),
        ("16*8192 / tp", "16*8192 / tp", "work"),
        ("8 if tp > 1 else tp", "8 if tp > 1 else tp", "work"),
        ("tp tp", "tp", "tp"),
        ("max(tp, 2) sample-pairs", "max(tp, 2)", "sample-pairs"),
    ],
)
def test_work_may_end_with_its_unit(text, expression, unit):
    given = Given(command=("true",), grid=("--tp=1,2",), work=text)
    if unit is None:
        with pytest.raises(UsageError, match="is no expression"):
            read_spec(None, given)
        return
    spec = read_spec(None, given)
    assert (spec.work, spec.unit) == (expression, unit)


def test_one_unit_is_that_of_the_command_line(tmp_path):
    grid = "[grid]\n--tp = [1]\n"
    both = 'command = "true"\nwork = "8 rows"\nunit = "tokens"\n' + grid
    with pytest.raises(UsageError, match="has the unit rows, and unit is tokens; write one"):
        spec_of(both, tmp_path)
    assert spec_of(both.replace("8 rows", "8"), tmp_path).unit == "tokens"
    assert spec_of(both, tmp_path, work="9 lines").unit == "lines"
    with pytest.raises(UsageError, match="is no word"):
        spec_of(both.replace("tokens", "a b"), tmp_path)
