"""The progress line: simulated time, real time, slow-down, ranks."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.launch.run.progress import format_duration, format_line, render_line


def test_progress_line():
    assert format_line([], 1.0, 8) == "simulated 0 | real 1 s | 0/8 ranks up"
    assert (
        format_line([2_000_000, 4_000_000], 2.0, 8)
        == "simulated 2 ms to 4 ms | real 2 s | slow-down 500x | 2/8 ranks up"
    )
    assert (
        format_line([5_000_000_000], 0.5, 1)
        == "simulated 5 s | real 500 ms | slow-down 0.1x | 1/1 ranks up"
    )


@pytest.mark.parametrize(
    "ns, text",
    [
        (0, "0 us"),
        (1500, "1.5 us"),
        (999_999, "1000 us"),
        (1_000_000, "1 ms"),
        (59_900_000_000, "59.9 s"),
        (60_000_000_000, "1 min 00 s"),
        (3_725_000_000_000, "62 min 05 s"),
    ],
)
def test_durations(ns, text):
    assert format_duration(ns) == text


@given(st.lists(st.integers(0, 10**13), max_size=4), st.floats(0.01, 1e4), st.integers(2, 200))
def test_the_line_on_a_terminal_is_its_text_cut_to_the_width(clocks, real_s, columns):
    """No escape sequence and no line break, and the terminal's last column stays free: a character there
    would move the cursor to the next line."""
    text = format_line(clocks, real_s, 4)
    assert render_line(text, columns) == text[: columns - 1]


@pytest.mark.parametrize("term", ["dumb", "xterm-256color", ""])
def test_the_line_is_the_same_on_every_terminal(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "10")
    assert render_line(format_line([5], 1.0, 1), 200) == format_line([5], 1.0, 1)


def test_a_run_without_a_terminal_does_not_import_rich(tmp_path):
    """It would make every start slower."""
    (tmp_path / "ranks").mkdir()
    code = """import sys; from pathlib import Path
from phantora_ns.cli import app, run_options
from phantora_ns.launch.run import runner
told = []
line = runner.Progress(Path(sys.argv[1]), 1, True, told.append)
line.show()
line.close()
print(told, "rich" in sys.modules)"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("0/1 ranks up'] False\n") and not done.stderr
