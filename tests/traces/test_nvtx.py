"""Why it exists: NVTX ranges of PyTorch and of other libraries are in a trace. They are made through
NVIDIA's own header, so a mistake in its interface shows."""

import gzip
import json
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent / "nvtx"
UNTRACED = -2
"""NVTX's own answer when no tool is there."""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The C library, compiled against the header that PyTorch's wheels bring."""
    site = Path(pytest.__file__).parents[1]
    header = next(site.glob("nvidia/*/include/nvtx3/nvToolsExt.h"))
    path = tmp_path_factory.mktemp("nvtx") / "libranges.so"
    flags = ["-shared", "-fPIC", "-pthread", "-I", header.parents[1], "-o", path]
    subprocess.run(["cc", *flags, HERE / "ranges.c", "-ldl"], check=True)
    return path


def run(phantora, library, *options):
    job = ["torchrun", "--nproc-per-node", 1, HERE / "job.py", library]
    done = phantora("--quiet", "--host-time", "model", *options, *job)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LEVELS ")]
    return [int(word) for word in line.split()[1:]]


@pytest.fixture(scope="module")
def traced(phantora, library, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces") / "run"
    levels = run(phantora, library, "--trace", folder)
    trace = json.loads(gzip.decompress((folder / "rank-0.json.gz").read_bytes()))
    return levels, trace["traceEvents"]


@pytest.fixture(scope="module")
def ranges(traced):
    """Name -> (begin, end, thread) of the job's own ranges."""
    return {
        event["name"]: (event["ts"], event["ts"] + event["dur"], event["tid"])
        for event in traced[1]
        if event.get("cat") == "user_annotation" and not event["name"].startswith("ProfilerStep")
    }


def test_every_range_and_mark_is_there(ranges):
    assert set(ranges) == {
        "python", "nested", "a mark", "outer", "library: registered", "inner", "library: inner",
        "grüß \U0001f600", "from one thread to another", "(no name)",
    }  # fmt: skip


def test_functions_return_levels_of_their_domain(traced):
    assert traced[0] == [0, 0, 1, 1, 0, 0, UNTRACED]


def test_ranges_hold_what_ran_in_them(traced, ranges):
    begin, end, thread = ranges["python"]
    inner_begin, inner_end, inner_thread = ranges["nested"]
    assert begin < inner_begin < inner_end <= end and thread == inner_thread
    operators = {
        event["name"]: event["ts"]
        for event in traced[1]
        if event.get("cat") == "cpu_op" and event["name"] in ("aten::matmul", "aten::add")
    }
    assert begin <= operators["aten::matmul"] < inner_begin <= operators["aten::add"] <= inner_end


def test_marks_take_no_time(ranges):
    for name in ("a mark", "library: inner", "grüß \U0001f600"):
        assert ranges[name][0] == ranges[name][1]


def test_without_a_trace_nothing_is_attached(phantora, library):
    assert run(phantora, library) == [UNTRACED] * 7
