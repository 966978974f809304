"""Why it exists: a job that fails must end as it would on GPUs: its own message, torchrun's exit
code, its own time-outs."""

import json
import sys

import pytest

from tests.torch.outcome import JOBS, Outcome
from tests.torch_release import torch_release

WATCHDOG_SAYS = {
    False: [
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=3000",
        "taking the entire process down",
    ],
    # from 2.15 on the process group is another implementation, with a watchdog of its own
    True: ["Operation timed out after ", "Aborting process on rank 0 due to timeout"],
}


def test_one_rank_raises(phantora, tmp_path):
    report = tmp_path / "report.json"
    done = phantora(
        "--report", report, "torchrun", "--nnodes", 2, "--nproc-per-node", 2, JOBS / "raises.py"
    )
    outcome = Outcome(done, 4)
    assert done.returncode == 1
    assert "ValueError: the job's own mistake" in done.stderr
    # it is above the tracebacks of two launchers, so the last lines say it again
    (line,) = [line for line in done.stderr.splitlines() if "its own messages are above" in line]
    assert line.endswith("; rank 2: ValueError: the job's own mistake")
    assert sorted(line["rank"] for line in outcome.lines("REACHED")) == [0, 1, 2, 3]
    assert {line["value"] for line in outcome.lines("REACHED")} == {4.0}
    assert outcome.lines("PASSED") == []
    assert '"failed_by": "job"' in report.read_text() and '"exit_code": 1' in report.read_text()


def test_a_rank_that_never_comes_runs_into_the_watchdogs_time_out(phantora):
    # else PyTorch waits a minute for its own flight recorder
    done = phantora(
        "--quiet",
        "torchrun",
        "--nproc-per-node",
        2,
        JOBS / "absent.py",
        env={"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"},
    )
    assert done.returncode == 1
    for words in WATCHDOG_SAYS[torch_release() >= (2, 15)]:
        assert words in done.stderr


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_rank_that_a_signal_ends_is_named(phantora, tmp_path, name):
    report = tmp_path / "report.json"
    job = "torchrun", "--nproc-per-node", 2, JOBS / "killed.py", name
    done = phantora("--report", report, *job)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "was killed by" in line]
    assert line.startswith("phantora-ns: the command failed with exit code 1; on node-0; ")
    assert f"; rank 1 was killed by {name}" in line
    assert json.loads(report.read_text())["killed"] == [f"rank 1 was killed by {name}; on node-0"]


def test_a_forked_child_gets_the_errors_of_real_cuda(phantora):
    done = phantora("--quiet", "--gpus-per-node", 1, sys.executable, JOBS / "forks.py")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("child ")]
    assert len(said) == 20 and len(set(said)) == 1
    refused, failed, refused_again = said[0].removeprefix("child ").split("; ")
    assert refused.startswith("Cannot re-initialize CUDA in forked subprocess")
    assert "initialization error" in failed
    assert refused_again == refused


def test_a_rank_that_leaves_its_process_group_ends_as_it_wants(phantora):
    """PyTorch's watchdog uses what its library's destructors have taken away, and ends the process by
    SIGABRT, when it looks once more."""
    job = "torchrun", "--nproc-per-node", 2, JOBS / "leaves_group.py"
    done = phantora("--quiet", "--warm-start", "off", *job)
    assert done.returncode == 1 and done.stdout.count("DONE") == 2
    assert "terminate called" not in done.stderr
    assert "exitcode  : 1 (pid" in done.stderr and "was killed by" not in done.stderr
