"""Why it exists: cluster files, traces and more come from users. No content of one may end in anything but its
use or a refusal in our words (files.py). Some hundred files here, many thousands every night."""

import os
import random

import pytest

from phantora_ns.trace.kineto import TraceError, nanoseconds, read_trace
from tests.fuzz.files import KINDS, LONGEST_S, Kind, search, traces, wrong_with

NIGHT_S = 1200


@pytest.mark.parametrize("name", KINDS)
def test_no_content_breaks_a_reader(tmp_path, name):
    # all that is read of a database takes a quarter of a second, comparisons of a report 30 ms
    files = {"database": 60, "report": 150}.get(name, 400)
    tried, wrong = search(name, tmp_path, 1, files, 10 * LONGEST_S)
    assert not wrong, "\n".join(wrong)
    assert tried == files


def test_what_a_reader_may_not_do_is_seen(tmp_path):
    def fails(path):
        raise KeyError(path)

    def refuses(path):
        raise TraceError(f"{path}: so\nthere")

    for use, words in ((fails, "KeyError"), (refuses, "several lines")):
        kind = Kind(".json", traces, lambda source, content: content, use, (TraceError,))
        assert words in wrong_with(kind, tmp_path / "trace.json")


@pytest.mark.parametrize("name", KINDS)
def test_files_without_mistakes_are_used(tmp_path, name):
    kind = KINDS[name]
    path = tmp_path / f"file{kind.suffix}"
    for content in kind.good():
        path.write_bytes(content)
        (tmp_path / f"good{kind.suffix}").write_bytes(content)
        kind.use(path)


def test_times_of_traces_have_64_bits():
    assert nanoseconds("1795768764000000.125") == 1795768764000000125  # microseconds since 1970
    for wrong in (1e300, 10**400, 2**63, float("inf"), "soon", [1]):
        with pytest.raises(ValueError, match="is no time"):
            nanoseconds(wrong)


def test_a_name_that_is_no_text_is_refused_in_one_line(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(traces()[0].replace(b'"sm90_gemm"', b"[7]"))
    with pytest.raises(TraceError, match=r"damaged: ValueError: an event's name is \[7\]$"):
        read_trace(path)


@pytest.mark.nightly
@pytest.mark.timeout(NIGHT_S + 600)
def test_minutes_of_files(tmp_path):
    seed = int(os.environ.get("CAMPAIGN_SEED") or random.randrange(10**6))
    print(f"seed {seed}: python -m tests.fuzz.files --seed {seed} repeats these")
    for name in KINDS:
        tried, wrong = search(name, tmp_path, seed, float("inf"), NIGHT_S / len(KINDS))
        print(f"{name}: {tried} files")
        assert not wrong, "\n".join(wrong)
