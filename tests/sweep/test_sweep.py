"""Why it exists: a sweep is hours of other programs' work. What it says is what single runs say, and neither
Ctrl-C nor SIGKILL loses a result or leaves a process. Real jobs, through the real command."""

import contextlib
import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import uuid
from pathlib import Path

import pytest

from phantora_ns.launch.errors import UsageError
from phantora_ns.sweep.results import Results
from tests.leftovers import MARK, assert_nothing_left, interfaces, marked_processes
from tests.page.test_page import BROWSER, drawn

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests/sweep/jobs/train.py"
FILE = f"""
command = ["{sys.executable}", "{JOB}"]
work = "rows * gpus"
unit = "rows"
price = 3.6
options = {{ gpus-per-node = 1, host-time = "none" }}
"""


class Sweep:
    """A sweep in a process of its own, whose processes can be told from all others."""

    def __init__(self, folder, *words, stderr=subprocess.PIPE):
        self.folder, self.mark, self.before = folder, uuid.uuid4().hex, interfaces()
        self.tmp = folder / "t"
        self.tmp.mkdir(exist_ok=True)
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(self.tmp)}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
        environment.pop("XDG_RUNTIME_DIR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phantora_ns.cli", "sweep", *map(str, words)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def line(self, text):
        """Waits for a line of stderr with `text`."""
        for line in self.process.stderr:
            if text in line:
                return line
        raise AssertionError(f"{text} was never said")

    def end(self, timeout=150):
        """(exit code, stdout, the rest of stderr); asserts that nothing is left."""
        out, err = self.process.communicate(timeout=timeout)
        assert_nothing_left(self.mark, self.tmp, self.before)
        return self.process.returncode, out, err


@pytest.fixture
def sweep(tmp_path, built_library):
    started = []

    def start(text, *words, **how):
        (tmp_path / "s.toml").write_text(text)
        started.append(Sweep(tmp_path, "s.toml", *words, **how))
        return started[-1]

    yield start
    for one in started:
        for pid in marked_processes(one.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        one.process.communicate()


def points(folder):
    found = json.loads((folder / "s/results.json").read_text())["points"]
    return {json.dumps(point["settings"]): point for point in found}


def simulated(folder):
    """What was simulated, without what depends on this machine."""
    left_out = ("wall_s", "number")
    return {
        name: {key: value for key, value in point.items() if key not in left_out}
        for name, point in points(folder).items()
    }


@pytest.mark.slow
def test_a_sweep_says_what_single_runs_say(sweep, phantora, tmp_path):
    """Two points that end well, one without memory, one that fails; the second time nothing is run."""
    text = FILE + "[grid]\n--rows = [64, 128]\n"
    text += "[[point]]\n--rows = 1\n--weights = 131072\n[[point]]\n--rows = 1\n--fail = true\n"
    code, out, err = sweep(text).end()
    assert code == 0, err
    found = points(tmp_path)
    states = [point["state"] for point in found.values()]
    assert states == ["ok", "ok", "out of memory", "failed"]
    first, second, large, failed = found.values()
    assert (
        large["why"].startswith("in step 1 rank 0 asked for ")
        and failed["why"] == "ValueError: the job's own failure"
    )
    assert [point["best"] for point in found.values()] == [
        first["pace_ns"] < second["pace_ns"],
        second["pace_ns"] < first["pace_ns"],
        False,
        False,
    ]
    report = tmp_path / "single.json"
    words = ["--quiet", "--gpus-per-node", 1, "--host-time", "none", "--report", report]
    assert phantora(*words, "--", sys.executable, JOB, "--rows", 64).returncode == 0
    single = json.loads(report.read_text())
    assert first["step_ns"] == single["step"]["mean_ns"]
    assert first["peak_bytes"] == single["ranks"][0]["peak_driver_bytes"]
    assert first["rate"] == pytest.approx(64e9 / first["step_ns"])
    assert first["cost"] == pytest.approx(first["step_ns"] / 64 / 1e6)
    with open(tmp_path / "s/results.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["step_ns"] for row in rows[:2]] == [str(first["step_ns"]), str(second["step_ns"])]
    best = first if first["best"] else second
    assert "4 points: 2 ok, 1 out of memory, 1 failed" in out and best["command"] in out
    assert best["command"].partition(" -- ")[0].endswith(f"--work '{best['work']:.0f} rows'")
    starts = re.findall(r"^phantora-ns: point (\d) of 4 starts: (--rows=\d+)", err, re.M)
    assert starts == [("1", "--rows=64"), ("2", "--rows=128"), ("3", "--rows=1"), ("4", "--rows=1")]
    first_end = err.index("phantora-ns: 1 of 4: ")
    assert "left in all" not in err[:first_end] and "left in all" in err[first_end:]
    assert "1 of 4: --rows=64: step " in err and "4 of 4: " in err and "\x1b" not in out + err
    quiet = sweep(text, "--quiet")
    assert quiet.end() == (0, out, "")
    again, before = sweep(text), points(tmp_path)
    code, same, err = again.end()
    assert code == 0 and points(tmp_path) == before and same == out
    assert "4 of 4 points have a result already" in err and "1 of 4" not in err
    if BROWSER is not None:
        shown = drawn(tmp_path / "s/sweep.html", tmp_path)
        assert shown.state == "ready", " ".join(shown.texts)[:2000]
        listed = json.loads((tmp_path / "s/results.json").read_text())["points"]
        checked = 0
        for path, value in shown.numbers:
            _, number, field = path.split(".")
            expected = listed[int(number)][field]
            if value is not None:
                assert float(value) == expected, path
                checked += 1
        assert checked > 8
        assert "the job's own failure" in " ".join(shown.texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_a_sweep_that_is_ended_goes_on(sweep, tmp_path, number):
    text = FILE + "[grid]\n--rows = [16, 32, 64]\n"
    first = sweep(text)
    first.line("1 of 3: ")
    while len(marked_processes(first.mark)) < 4:  # the next run is in its midst
        assert first.process.poll() is None
    first.process.send_signal(number)
    code, out, err = first.end()
    if number == signal.SIGINT:
        assert code == 130 and "points are kept; the same command goes on" in err
        assert "1 points: 1 ok" in out and "Traceback" not in err
    else:
        assert code == -9
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("points/*/result.json")}
    assert 1 <= len(kept) < 3
    code, _, err = sweep(text).end()
    assert code == 0 and f"{len(kept)} of 3 points have a result already" in err
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    ended = simulated(tmp_path)
    assert len(ended) == 3
    if number == signal.SIGKILL:
        code, _, err = sweep(text, "--again", "-o", "s").end()
        assert code == 0 and simulated(tmp_path) == ended


@pytest.mark.slow
def test_on_a_terminal_a_table_is_drawn_while_it_runs(sweep):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 120))
    one = sweep(FILE + "[grid]\n--rows = [16, 32]\n", "--jobs", 1, stderr=theirs)
    os.close(theirs)
    drawn_text = b""
    with contextlib.suppress(OSError):  # at the end nobody has the other side open
        while found := os.read(ours, 1 << 16):
            drawn_text += found
    os.close(ours)
    code, out, _ = one.end()
    assert code == 0 and "2 points: 2 ok" in out
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn_text.decode())
    first, second = (re.search(rf"running --rows={n} for \d+ s", text) for n in (16, 32))
    assert first and second and first.start() < second.start()
    # since the first point was last seen running; a cell may be wrapped, as COLUMNS says
    frame = text[: second.start()].rpartition("running ")[2]
    assert re.search(r"^ *16 +[\d.]+", frame, re.MULTILINE), frame
    assert "ms" in frame and re.search("[MG]iB", frame), frame
    assert "starts:" not in text


def test_two_sweeps_do_not_share_a_folder(tmp_path):
    first = Results(tmp_path / "s")
    with pytest.raises(
        UsageError, match="^another sweep works in this folder; .*; wait for its end"
    ):
        Results(tmp_path / "s")
    first.close()
    Results(tmp_path / "s").close()


def test_no_point_that_ends_well_is_exit_code_1(sweep):
    code, out, err = sweep(FILE + "[grid]\n--rows = [1]\n--fail = [true]\n").end()
    assert code == 1 and "1 points: 1 failed" in out and "ValueError" in err


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "nothing to sweep"),
        (["true"], "there is nothing to vary"),
        (["none.toml"], "cannot read the sweep"),
        (["--grid", "--a=1", "--html", "/no/such/folder/a.html", "-o", "x", "true"], "--html"),
        (["--grid", "--a=1", "-o", "/proc/x", "true"], "the folder of results cannot be used"),
        (["--grid", "--a=1", "--cluster", "h2000", "true"], "the point --a=1 cannot run: "),
        # a file among the job's own words is the job's
        (["--grid", "--a=1", "--cluster", "h2000", "true", "--c", "x.toml"], "--a=1 cannot run: "),
        (["--grid", "--a=1", "--engine", "dask", "true"], "--engine dask and --scheduler"),
        (["--jobs", "0", "x.toml"], "Invalid value for '--jobs'"),
    ],
)
def test_bad_input_is_one_line(phantora, tmp_path, words, said):
    done = phantora("sweep", *words, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert done.stderr.count("\n") == 1 and said in done.stderr
