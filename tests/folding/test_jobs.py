"""Folded jobs of the real PyTorch against the same jobs unfolded, and jobs that must be refused."""

import json
from pathlib import Path

import pytest

JOBS = Path(__file__).parent / "jobs"
OWN = {"representative", "messages"}
"""What folding changes of a rank in the report."""


def report_of(phantora, path, *arguments):
    done = phantora("--host-time", "model", "--report", path, *arguments)
    return done, json.loads(path.read_text()) if path.exists() else None


PARALLEL, PIPELINE = JOBS / "parallel.py", JOBS / "pipeline.py"
THREE_D = (
    *("-m", "bench.ranks.three_d"),
    *"--size 160m --layers 2 --tp 2 --pp 2 --seq 512 --accum 2 --steps 2".split(),
)


@pytest.mark.parametrize(
    "fold, nodes, each, job",
    [
        ("2", 5, 2, (PARALLEL,)),
        pytest.param("2", 8, 2, (PARALLEL,), marks=pytest.mark.nightly),
        pytest.param("2", 8, 2, (PARALLEL, "bound"), marks=pytest.mark.nightly),
        ("1/5", 10, 1, (PIPELINE,)),
        pytest.param("2/10", 10, 2, THREE_D, marks=pytest.mark.nightly),
        pytest.param(
            *("2/8 --fold-witnesses first", 8, 2, THREE_D),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=[
        "data and tensor parallel",
        "of 16 ranks",
        "communicators split off",
        "pipeline",
        "tensors, pipeline and data",
        "the same with the first witness",
    ],
)
def test_every_rank_takes_the_time_that_it_takes_unfolded(
    phantora, tmp_path, fold, nodes, each, job
):
    command = ["torchrun", "--nnodes", nodes, "--nproc-per-node", each, *job]
    done, folded = report_of(phantora, tmp_path / "folded", "--fold", *fold.split(), *command)
    assert done.returncode == 0, done.stderr[-3000:]
    done, whole = report_of(phantora, tmp_path / "whole", *command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(whole["ranks"]) == len(folded["ranks"]) == nodes * each
    for one, other in zip(folded["ranks"], whole["ranks"], strict=True):
        same = {key: value for key, value in one.items() if key not in OWN}
        assert same == {key: value for key, value in other.items() if key not in OWN}
    assert folded["simulated_ns"] == whole["simulated_ns"]
    assert folded["step"] == whole["step"]
    found = folded["folding"]
    absent = [one for one in folded["ranks"] if one["representative"] is not None]
    assert len(absent) == found["absent"] == nodes * each - found["running"] > 0
    assert found["compared"] > 0 and found["answers"] > 0
    assert found["refusal"] is None
    assert "folded: " in done.stderr or whole["folding"] is None


@pytest.mark.parametrize(
    "what, said",
    [
        ("gather", "with other values"),
        pytest.param("gloo", "goes over real sockets", marks=pytest.mark.nightly),
        pytest.param("odd", "a group of the ranks 0, 1, 2, 3", marks=pytest.mark.nightly),
        pytest.param("differ", "after other work", marks=pytest.mark.nightly),
        pytest.param("last", "ends with", marks=pytest.mark.nightly),
    ],
)
def test_what_cannot_be_folded_is_refused_in_words(phantora, tmp_path, what, said):
    command = ["torchrun", "--nnodes", 5, "--nproc-per-node", 1, JOBS / "refused.py", what]
    done, report = report_of(phantora, tmp_path / "report", "--fold", "1", *command)
    assert done.returncode != 0
    assert said in report["folding"]["refusal"] and "--fold off" in report["folding"]["refusal"]
    # once when it happens, not once for each rank, and once in the summary
    assert done.stderr.count(f"phantora-ns: {report['folding']['refusal']}") == 2
    assert report["exit_code"] == done.returncode


def test_a_job_that_cannot_be_folded_says_why_and_runs(phantora, tmp_path):
    command = ["torchrun", "--nnodes", 2, "--nproc-per-node", 1, JOBS / "refused.py", "gather"]
    done, report = report_of(phantora, tmp_path / "report", "--fold", "auto", *command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert report["folding"]["not_folded"] and "not folded: " in done.stderr
    assert done.stdout.count("has ended") == 2


@pytest.mark.nightly
def test_the_exit_code_of_absent_ranks_is_their_representatives(phantora, tmp_path):
    script = tmp_path / "ends.py"
    script.write_text("import os, sys; sys.exit(int(os.environ['RANK'] == '3') * 7)\n")
    command = ["torchrun", "--nnodes", 5, "--nproc-per-node", 1, script]
    assert phantora("--host-time", "model", "--fold", "1", *command).returncode != 0
    script.write_text("import os; os.write(1, b'ran %s\\n' % os.environb[b'RANK'])\n")
    for witnesses, running in (("all", ["0", "1", "3", "4"]), ("first", ["0", "1"])):
        options = ("--host-time", "model", "--fold", "1", "--fold-witnesses", witnesses)
        done = phantora(*options, *command)
        assert done.returncode == 0, done.stderr[-3000:]
        assert sorted(done.stdout.split()[1::2]) == running
