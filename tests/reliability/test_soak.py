"""Why it exists: what a job leaves behind in every step, or a run on the machine, is seen only after
thousands. Every night."""

import pytest

from tests.reliability.soak import long, many

STEPS, MARKS = 10_000, 20
GIB_32 = 32 << 30


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_messages_and_memory_of_a_job_of_600_steps(tmp_path):
    marks = long(tmp_path, 600, 6, 8 << 20)
    assert len({mark.messages for mark in marks[1:]}) == 1, marks
    # buffers grow to their size until step 1,500, by 2 KiB a step in a rank, and 4 KiB in the hub
    assert marks[-1].most_of_a_rank_kib - marks[2].most_of_a_rank_kib < 1024, marks
    assert marks[-1].hub_kib - marks[2].hub_kib < 4096, marks


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_long_job_holds_no_more_from_step_to_step(tmp_path):
    marks = long(tmp_path, STEPS, MARKS, 8 << 20)
    assert len(marks) == MARKS and marks[-1].step == STEPS
    # the first has the start; a communicator is made and freed every 100 steps
    assert len({mark.messages for mark in marks[1:]}) == 1, marks
    half = marks[MARKS // 2 - 1]
    assert marks[-1].most_of_a_rank_kib - half.most_of_a_rank_kib < 256, marks
    assert marks[-1].hub_kib - half.hub_kib < 1024, marks


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_job_of_simulated_days(tmp_path):
    slow = ("--set", "network.nic_bandwidth=100 Mbit/s")
    marks = long(tmp_path, 400, 8, GIB_32, slow)
    assert marks[-1].simulated_ns > 10 * 86_400 * 10**9
    steps = [after.simulated_ns - before.simulated_ns for before, after in zip(marks, marks[1:])]
    assert max(steps) - min(steps) < 10**9, "the clock has lost its grain"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("at_once", [1, 4])
def test_many_jobs(tmp_path_factory, at_once):
    folder = tmp_path_factory.mktemp("m")
    wrong = many(folder, 64, at_once)
    assert not wrong, "\n".join(wrong)
