"""Why it exists: a rank that deletes a checkpoint waits for ranks that are earlier in simulated time, and may
still open it. It waits for nobody where others cannot know of the file, or wait for its end."""

import json
from pathlib import Path

import pytest

JOB = Path(__file__).parent / "deletions.py"


@pytest.mark.parametrize("mode", ["auto", pytest.param("none", marks=pytest.mark.nightly)])
def test_an_earlier_rank_can_still_open_what_a_later_one_deletes(phantora, tmp_path, mode):
    job = "torchrun", "--nproc-per-node", 2, JOB, tmp_path, mode
    done = phantora("--quiet", "--host-time", mode, *job)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SEEN "))
    seen = {"lock": False, "young": False, "shared": "weights", "after": False}
    assert json.loads(line.removeprefix("SEEN ")) == dict.fromkeys(
        ("unlink", "remove", "unlinkat"), seen
    )
    assert list(tmp_path.glob("*")) == list(tmp_path.glob("*-done"))
