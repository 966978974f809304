"""Why it exists: PyTorch's time-outs of NCCL communication count simulated time. A job that hangs
ends with PyTorch's own words, and a busy machine fails no job."""

import re

import pytest

from tests.torch.outcome import JOBS
from tests.torch_release import torch_release

NCCL2 = torch_release() >= (2, 15)


@pytest.fixture
def run(phantora):
    def run(case, *options):
        # else PyTorch waits a minute for its own flight recorder
        env = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"}
        job = "torchrun", "--nproc-per-node", 2, JOBS / "time_outs.py", case
        return phantora("--quiet", *options, *job, env=env)

    return run


def timed_out_after_ms(stderr):
    """What PyTorch says of each work that timed out."""
    words = (
        r"Operation timed out after (\d+) ms"
        if NCCL2
        else r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=2, OpType=ALLREDUCE,"
        r".* ran for (\d+) milliseconds before timing out"
    )
    return [int(ms) for ms in re.findall(words, stderr)]


def test_ranks_that_disagree_run_into_their_time_out_at_once(run):
    done = run("ranks_that_disagree")
    assert done.returncode == 1
    assert "nothing in the job can go on: rank 0, rank 1 wait for communication" in done.stderr
    found = timed_out_after_ms(done.stderr)
    assert found and min(found) >= 600_000


def test_a_rank_that_is_slow_in_real_time_alone_does_not_time_out(run):
    done = run("a_rank_that_is_slow_in_real_time")
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(re.findall(r"PASSED \d", done.stdout)) == ["PASSED 0", "PASSED 1"]


def test_a_rank_that_comes_too_late_in_simulated_time_times_out(run):
    done = run("a_rank_that_is_late")
    assert done.returncode == 1
    found = timed_out_after_ms(done.stderr)
    assert found and 200_000 <= min(found) <= 301_000


def test_a_root_does_not_wait_for_those_who_receive(run):
    done = run("a_root_that_goes_on_alone")
    assert done.returncode == 0, done.stderr[-3000:]
    values = sorted(re.findall(r"VALUES (\d) \[(.*)\]", done.stdout))
    assert values == [("0", "4.0, 4.0, 4.0, 4.0"), ("1", "4.0, 4.0, 4.0, 4.0")]


def test_a_wait_with_a_time_out_ends_after_that_much_simulated_time(run):
    done = run("a_wait_with_a_time_out", "--host-time", "model")
    took = re.search(r"TOOK ([\d.]+) '(.*)'", done.stdout)
    assert took and 0.2 <= float(took[1]) <= 0.25, done.stdout + done.stderr[-2000:]
    assert "timed out" in took[2] or "timeout" in took[2]


def test_communication_ends_with_its_communicator(run):
    done = run("a_communicator_that_is_aborted")
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"OVER (\w+)", done.stdout) == ["False", "True"]
    assert sorted(re.findall(r"PASSED \d", done.stdout)) == ["PASSED 0", "PASSED 1"]
