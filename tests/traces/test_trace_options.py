"""What --trace and its companions accept, and the one line that says what is wrong before anything
starts."""

import os

import pytest

from phantora_ns.hub.trace_times import traced
from phantora_ns.trace.options import (
    TraceOptionError,
    TraceOptions,
    check_options,
    parse_ranks,
    parse_steps,
)


@pytest.mark.parametrize(
    "text, steps",
    [("3:5", (3, 5)), ("3:", (3, None)), (":5", (0, 5)), ("3", (3, 4)), ("0:1", (0, 1))],
)
def test_steps_are_a_slice(text, steps):
    assert parse_steps(text) == steps


@pytest.mark.parametrize(
    "text", ["", ":", "5:3", "3:3", "-1:2", "1:2:3", "a:b", "3:5x", "1e3:", "9999999999:"]
)
def test_other_steps_are_refused(text):
    with pytest.raises(
        TraceOptionError, match=r"^--trace-steps .*; on the command line; give FIRST:END"
    ):
        parse_steps(text)


@pytest.mark.parametrize(
    "text, ranks",
    [
        ("0", ((0, 0),)),
        ("0,8", ((0, 0), (8, 8))),
        ("8-11,0", ((0, 0), (8, 11))),
        ("0-3,2-5,6", ((0, 6),)),
        ("1, 3", ((1, 1), (3, 3))),
    ],
)
def test_ranks_are_numbers_and_ranges(text, ranks):
    assert parse_ranks(text, 16) == ranks
    assert [rank for rank in range(-1, 17) if traced(ranks, rank)] == [
        r for first, last in ranks for r in range(first, last + 1)
    ]


@pytest.mark.parametrize("text", ["", "16", "0-16", "3-1", "-1", "0,,1", "a", "0;1"])
def test_other_ranks_are_refused(text):
    with pytest.raises(TraceOptionError, match=r"^--trace-ranks "):
        parse_ranks(text, 16)


def test_every_rank_is_traced_when_none_is_named():
    assert traced(None, 5) and traced(None, -1) and not traced(((0, 3),), -1)


def test_the_folder_is_checked_and_not_made(tmp_path):
    options = check_options(tmp_path / "traces", "3:5", "0,2", 4)
    assert options == TraceOptions(tmp_path / "traces", (3, 5), ((0, 0), (2, 2)))
    assert not (tmp_path / "traces").exists()
    assert options.environment() == {
        "PHANTORA_TRACE": "1",
        "PHANTORA_TRACE_STEPS": "3:5",
        "PHANTORA_TRACE_RANKS": "0-0,2-2",
    }
    assert check_options(tmp_path, None, None, 4) == TraceOptions(tmp_path)
    assert check_options(None, None, None, 4) is None


@pytest.mark.parametrize("steps, ranks", [("1:2", None), (None, "0")])
def test_companions_need_a_folder(steps, ranks):
    with pytest.raises(
        TraceOptionError, match="without --trace; on the command line; add --trace DIR"
    ):
        check_options(None, steps, ranks, 4)


def test_bad_folders_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "rank-3.json.gz").write_text("")
    for folder, reason in (
        (tmp_path / "file", "is not a folder"),
        (tmp_path / "old", "another run, such as rank-3.json.gz"),
        (tmp_path / "no" / "such", "does not exist"),
    ):
        with pytest.raises(TraceOptionError, match=reason):
            check_options(folder, None, None, 4)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    for folder in (tmp_path / "locked", tmp_path / "locked" / "new"):
        with pytest.raises(TraceOptionError, match=r"cannot be written|nothing can be made"):
            check_options(folder, None, None, 4)


@pytest.mark.parametrize(
    "options, said",
    [
        (("--trace", "/no/such/place"), "the folder /no/such does not exist"),
        (("--trace", "{tmp}", "--trace-steps", "5:3"), "--trace-steps 5:3 means no step"),
        (
            ("--trace", "{tmp}", "--trace-ranks", "0,4"),
            "there is no rank 4; the job has ranks 0 to 3",
        ),
        (("--trace-steps", "1:2"), "--trace-steps without --trace"),
    ],
)
def test_the_command_line_says_so_in_one_line_and_starts_nothing(phantora, tmp_path, options, said):
    words = [option.format(tmp=tmp_path) for option in options]
    done = phantora(*words, "torchrun", "--nnodes", 2, "--nproc-per-node", 2, "x.py")
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1
