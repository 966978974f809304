"""Why it exists: a score measured elsewhere reaches a run's host times, and nothing else is taken
for one. How large it is depends on the machine, so no test asks that."""

import ast
import base64
import json
import os
import re
import string
import subprocess
import sys
import tomllib
import zlib
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.calibrate.host import (
    LIBRARY,
    Score,
    enter,
    read,
    score_text,
    script,
)
from phantora_ns.cli.app import main
from phantora_ns.config import ConfigError, load_cluster, load_gpu, topologies_dir
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.host_table import read_hosts
from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.record.host_speed import REFERENCE_SCORE_NS
from phantora_ns.launch.record.host_time import HostTimeOptions, Job, prepare

LINE = (
    "phantora-ns cpu-score: 2000000 ns, 1900000 to 2300000 in 80% of 21 measurements, A CPU @ 2 GHz"
)
SCORES = st.tuples(*[st.integers(1, 10**12)] * 3).map(sorted)


def test_the_script_needs_python_alone():
    """Isolated, without the environment and without site packages, and by the grammar of 3.6."""
    text = script()
    ast.parse(text, feature_version=(3, 6))
    (packed,) = re.findall(r'^LIBRARY = "(.+)"', text, re.M)
    assert zlib.decompress(base64.b64decode(packed)) == LIBRARY.read_bytes()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=text, capture_output=True, text=True, env={}
    )
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1
    score = read(done.stdout, "here")
    assert score.measurements == 21 and score.cpu


def test_the_script_imports_only_what_old_pythons_have():
    names = set()
    for node in ast.walk(ast.parse(script())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.name for alias in node.names}
    assert names <= {
        "base64", "contextlib", "ctypes", "os", "platform", "sys", "tempfile", "time", "zlib"
    }  # fmt: skip


def test_where_its_code_cannot_run_it_says_so_in_one_line():
    other = 'platform.machine = lambda: "aarch64"'
    text = script().replace("\nMEASUREMENTS", f"\n{other}\nMEASUREMENTS")
    done = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "this machine is aarch64" in done.stderr


@settings(max_examples=100, deadline=None)
@given(SCORES, st.integers(1, 999), st.text(string.printable, max_size=60))
def test_a_line_is_found_in_what_surrounds_it(times, count, around):
    least, middle, most = times
    line = f"phantora-ns cpu-score: {middle} ns, {least} to {most} in 80% of {count} measurements, AMD X"
    assert read(f"{around}\n{line}\n{around}", "x") == Score(middle, least, most, count, "AMD X")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_other_text_is_refused_in_one_line(text):
    with pytest.raises(UsageError) as refused:
        read(text, "standard input")
    assert "standard input" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", [LINE.replace("1900000", "2100000"), LINE.replace("2000000", "0"), f"{LINE}\n{LINE}"]
)
def test_scores_that_contradict_themselves_are_refused(text):
    with pytest.raises(UsageError):
        read(text, "x")


def cluster_texts():
    shipped = [path.read_text() for path in sorted(topologies_dir().glob("*.toml"))]
    one = (topologies_dir() / "h200-1x8.toml").read_text()
    return [
        *shipped,
        one.replace("[server]", "[server] # mine"),
        one.replace("[server]", '[server]\ncpu_score = "9 ms" # old'),
        one.replace("[server]", '# [server] is below\n  [server]\n  cpu_score="9 ms"'),
        'gpu = "h200"\n[network]\nkind = "none"',
        'gpu = "h200"\n[network]\nkind = "none"\n[server]',
    ]


@pytest.mark.parametrize("number", range(len(cluster_texts())))
def test_a_score_enters_a_cluster_file_and_nothing_else_moves(tmp_path, number):
    path = tmp_path / "mine.toml"
    path.write_text(cluster_texts()[number])
    before = tomllib.loads(path.read_text())
    comments = set(re.findall("#.*", path.read_text())) - {"# old"}
    for value in ('"2 ms"', '"2.5 ms"'):  # a second score takes the place of the first
        enter(path, value)
        before.setdefault("server", {})["cpu_score"] = json.loads(value)
        assert tomllib.loads(path.read_text()) == before
    assert set(re.findall("#.*", path.read_text())) == comments
    assert load_cluster(path).server.cpu_score_ns == 2_500_000


def test_a_score_of_zero_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(cluster_texts()[-1] + '\ncpu_score = "0 ms"\n')
    with pytest.raises(ConfigError, match="server.cpu_score: is 0"):
        load_cluster(path)


def scale_of(tmp_path, cluster, *options):
    """`host_time.scale` in the report of a run. It says that a score was told unless --host-scale leaves it aside."""
    report = tmp_path / "report.json"
    assert main(["--cluster", str(cluster), "--report", str(report), *options, "true"]) == 0
    found = json.loads(report.read_text())["host_time"]
    assert found["told"] == ("auto" not in options)
    return found["scale"]


def recorded_score():
    """Of the machines on which the shipped host times were recorded, ns."""
    with ExitStack() as stack:
        opened = [stack.enter_context(database) for database in databases.find("h200")]
        return read_hosts(opened, sites=False).score


def test_a_run_takes_the_cluster_s_cpus(tmp_path, capsys):
    """Recorded times by the ratio to their machine's score, measured ones by that to the reference machine's;
    --host-scale on top of it; `auto` is the machine of the times."""
    path = tmp_path / "mine.toml"
    path.write_text(cluster_texts()[-2])
    assert main(["calibrate", "host", "--line", LINE, "--into", str(path)]) == 0
    assert 'server.cpu_score = "2 ms"' in capsys.readouterr().out
    ratio = 2_000_000 / recorded_score()
    assert scale_of(tmp_path, path, "--host-time", "model") == ratio
    assert scale_of(tmp_path, path, "--host-time", "model", "--host-scale", "2") == 2 * ratio
    assert scale_of(tmp_path, path, "--host-time", "model", "--host-scale", "auto") == 1
    assert scale_of(tmp_path, path) == 2_000_000 / REFERENCE_SCORE_NS
    assert scale_of(tmp_path, path, "--host-scale", "2") == 2 * 2_000_000 / REFERENCE_SCORE_NS
    assert scale_of(tmp_path, path, "--host-scale", "auto") == 1
    assert scale_of(tmp_path, path, "--host-time", "none") == 1
    measured = scale_of(tmp_path, path, "--host-time", "measured")
    assert measured > 0 and measured != 1


def test_calls_cost_more_on_slower_cpus(tmp_path):
    """The driver's code runs on the same CPU; a GPU's own latencies do not."""
    path = tmp_path / "mine.toml"
    path.write_text(cluster_texts()[-2])
    assert main(["calibrate", "host", "--line", LINE, "--into", str(path)]) == 0
    ratio = 2_000_000 / recorded_score()
    calls = load_gpu("h200").host.call_ns

    def conf(scale):
        options = HostTimeOptions("model", scale, None, jitter=False)
        prepare(options, load_cluster(path), databases.paths("h200"), tmp_path, Job("job", "2.11"))
        return dict(map(str.split, (tmp_path / "device.conf").read_text().splitlines()[1:]))

    scaled, left = conf(1.0), conf(None)
    assert left.items() >= {f"cost.{name}": str(ns) for name, ns in calls.items()}.items()
    longer = {f"cost.{name}": str(round(ratio * ns)) for name, ns in calls.items()}
    assert scaled.items() >= longer.items()
    changed = {name for name in left if left[name] != scaled[name]}
    assert changed == longer.keys() | {"graph_launch_ns", "graph_node_ns"}


def test_the_command_says_what_to_write(capsys):
    assert main(["calibrate", "host", "--line", LINE]) == 0
    out = capsys.readouterr().out
    assert "A CPU @ 2 GHz: 2.000 ms, 1.900 to 2.300 in 80% of 21 measurements" in out
    assert "they differ by 20%" in out
    assert '[server]\n    cpu_score = "2 ms"' in out and "--host-scale 0.658" in out


def test_the_two_halves_fit_through_a_pipe(tmp_path):
    ours = [sys.executable, "-m", "phantora_ns", "calibrate", "host"]
    there = subprocess.run([*ours, "--script"], capture_output=True, text=True, check=True)
    line = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=there.stdout, capture_output=True, text=True
    )
    done = subprocess.run([*ours, "--line", "-"], input=line.stdout, capture_output=True, text=True)
    assert done.returncode == 0 and score_text(read(line.stdout, "x")) in done.stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--line", "nothing"], "no line of a CPU score; in --line"),
        (["--script", "--line", "-"], "takes no other option"),
        (["--line", LINE, "--into", "missing.toml"], "missing.toml"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, said):
    assert main(["calibrate", "host", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count(os.linesep) == 1
