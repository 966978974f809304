"""What held a peak: the parts add up to it, and go to the operators that were running."""

import random

import pytest
from tests.page.made_trace import MadeTrace

from phantora_ns.page.excerpt import excerpt
from phantora_ns.page.memory import (
    BACKWARD,
    FORWARD,
    HELD,
    HELD_WITH_STATES,
    MOST_POINTS,
    OUTSIDE,
    STATES,
    shown,
)


def made(tmp_path, *records, spans=(), step=(0, 10_000)):
    trace = MadeTrace()
    trace.step(0, *step)
    trace.kernel("gemm_a", step[0] + 1, step[0] + 2, launched=step[0])
    for name, begin, end in spans:
        trace.host(name, begin, end)
    for record in records:
        trace.memory(*record)
    return excerpt(trace.write(tmp_path / "rank-0.json.gz"))["memory"]


def test_the_outermost_operator_gets_what_was_added_in_it(tmp_path):
    found = made(
        tmp_path,
        (500, 100, 100),  # before the step
        (1200, 400, 400, "aten::empty"),
        (1500, 300, 400, ""),  # at the begin of the next operator: something was freed before
        (1600, 900, 950, "aten::mm"),  # and 50 more were there in between
        spans=[("aten::linear", 1100, 1300), ("aten::matmul", 1500, 1600)],
        step=(1000, 2000),
    )
    peak = found["peak"]
    assert (peak["bytes"], peak["at_ns"], peak["step"]) == (950, 1600, 0)
    assert (peak["held_bytes"], peak["operator"]) == (100, "aten::matmul")
    assert sorted(map(tuple, peak["added"])) == sorted(
        [
            ("aten::matmul", 600),
            ("aten::linear", 300),
            (OUTSIDE, -100),
            ("within aten::matmul", 50),
        ]
    )


def training(tmp_path, first):
    """Two steps of training whose first one is step `first`."""
    trace = MadeTrace()
    for number, begin in enumerate((0, 1000), first):
        trace.step(number, begin, begin + 1000)
        trace.kernel("gemm_a", begin + 1, begin + 2, launched=begin)
        trace.kernel("gemm_b", begin + 990, begin + 999, launched=begin + 980)
        trace.host("aten::mm", begin + 100, begin + 200)
        trace.host("MmBackward0", begin + 300, begin + 400, 901)
        trace.add("user_annotation", "Optimizer.step#Adam", (900, 900), begin + 500, begin + 600)
    named = {"ph": "M", "name": "thread_name", "pid": 900, "tid": 901}
    trace.events.append(named | {"args": {"name": "thread 901 (pt_autograd_0)"}})
    for record in [
        (50, 100, 100),  # the weights
        (150, 400, 400, "aten::mm"),
        (350, 200, 450, "aten::mul", 901),  # activations go, gradients come
        (550, 420, 450, "Optimizer.step#Adam.step"),  # the states stay
        (700, 320, 450),  # gradients go
        (1150, 620, 620, "aten::mm"),
        (1350, 700, 900, "aten::mul", 901),
    ]:
        trace.memory(*record)
    return excerpt(trace.write(tmp_path / "rank-0.json.gz"))["memory"]["peak"]


def test_a_peak_is_split_by_what_it_is(tmp_path):
    peak = training(tmp_path, first=0)
    assert peak["bytes"] == 900 and peak["step"] == 1
    assert dict(map(tuple, peak["phases"])) == {
        HELD: 100,
        STATES: 220,
        FORWARD: 300,
        BACKWARD: 280,  # 80 net, and 200 within
    }


def test_a_host_that_is_ahead_of_its_gpu(tmp_path):
    """The GPU's steps lie later than the host's; memory is the host's."""
    trace = MadeTrace()
    for number, begin in enumerate((0, 1000)):
        trace.step(number, begin, begin + 1000)
        trace.kernel("gemm", 5000 + begin, 5990 + begin, launched=begin + 10)
    for record in [(50, 100, 100), (1100, 300, 300, "aten::mm"), (1900, 100, 300)]:
        trace.memory(*record)
    peak = excerpt(trace.write(tmp_path / "rank-0.json.gz"))["memory"]["peak"]
    assert (peak["step"], peak["held_bytes"]) == (1, 100)


def test_what_the_optimizer_gives_back_as_it_ends_is_no_part_of_the_next_step(tmp_path):
    """Its end is the border of the steps, and zero_grad takes no time after it."""
    trace = MadeTrace()
    for number, begin in enumerate((0, 1000)):
        trace.step(number, begin, begin + 1000)
        trace.kernel("gemm", begin + 10, begin + 990, launched=begin + 5)
        trace.add("user_annotation", "Optimizer.step#Adam", (900, 900), begin + 500, begin + 1000)
    for record in [
        (50, 100, 100),  # weights
        (400, 180, 180, "aten::mm"),  # and gradients
        (700, 480, 480, "aten::sqrt"),  # states, and 100 that are only needed here
        (1000, 380, 480, "Optimizer.step#Adam"),
        (1000, 300, 480, "Optimizer.zero_grad#Adam"),
        (1300, 700, 700, "aten::mm"),
    ]:
        trace.memory(*record)
    peak = excerpt(trace.write(tmp_path / "rank-0.json.gz"))["memory"]["peak"]
    assert (peak["step"], peak["held_bytes"]) == (1, 300)
    assert dict(map(tuple, peak["phases"])) == {HELD: 100, STATES: 200, FORWARD: 400}


def test_without_the_first_steps_nobody_knows_the_states(tmp_path):
    assert dict(map(tuple, training(tmp_path, first=3)["phases"])) == {
        HELD_WITH_STATES: 320,
        FORWARD: 300,
        BACKWARD: 280,
    }


@pytest.mark.parametrize("resets", [False, True])
def test_a_peak_from_before_the_trace_is_not_its_own(tmp_path, resets):
    """With --trace-steps 2:4 the first record's peak is that of steps 0 and 1, and what it says to be there was there.
    TorchTitan resets the allocator's peak in each step; most jobs do not."""
    earlier = 0 if resets else 950
    trace = MadeTrace()
    trace.step(2, 0, 1000)
    trace.step(3, 1000, 2000)
    trace.kernel("gemm", 10, 20, launched=5)
    for record in [
        (100, 200, 950),
        (300, 700, max(earlier, 720), "aten::mm"),
        (900, 200, max(earlier, 720), "aten::mm"),
        (1300, 600, max(earlier, 720), "aten::mm"),
    ]:
        trace.memory(*record)
    peak = excerpt(trace.write(tmp_path / "rank-0.json.gz"))["memory"]["peak"]
    # without a reset the allocator's peak stays at 950, which hides a maximum between two records
    assert (peak["bytes"], peak["at_ns"], peak["step"]) == (720 if resets else 700, 300, 2)
    assert peak["held_bytes"] == 200
    assert dict(map(tuple, peak["phases"])) == {
        HELD_WITH_STATES: 200,
        FORWARD: peak["bytes"] - 200,
    }


@pytest.mark.parametrize("seed", range(5))
def test_parts_add_up_to_the_peak(tmp_path, seed):
    random.seed(seed)
    allocated = peak = 0
    records, highest = [], 0
    for at in range(0, 10_000, 3):
        allocated = max(0, allocated + random.randrange(-900, 1000))
        peak = max(peak, allocated + random.randrange(0, 50))
        highest = max(highest, allocated)
        records.append((at, allocated, peak, f"op {random.randrange(30)}"))
    found = made(tmp_path, *records, step=(4000, 10_000))
    held = found["peak"]["held_bytes"]
    assert held + sum(count for _, count in found["peak"]["added"]) == peak
    assert sum(count for _, count in found["peak"]["phases"]) == peak
    assert len(found["points"]) <= MOST_POINTS * 1.01
    assert max(point[1] for point in found["points"]) == highest
    times = [point[0] for point in found["points"]]
    assert times == sorted(times)


def test_a_trace_without_memory_says_nothing(tmp_path):
    assert made(tmp_path) is None and shown([(0, None)]) is None


def test_the_rank_with_the_highest_peak_is_shown():
    ranks = [(rank, {"peak": {"bytes": size}}) for rank, size in ((0, 5), (1, 9), (2, 9))]
    assert shown(ranks)["rank"] == 1
