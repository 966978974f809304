"""Why it exists: what a step is decides the one number that people read first."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.config import load_cluster
from phantora_ns.protocol import Precision
from phantora_ns.report.arithmetic_part import arithmetic_part, arithmetic_text
from phantora_ns.report.steps import WARM_UP, Done, done_of, steps_of


def marks(times, busy=0):
    return [[time, busy * at, 2 * at, 0] for at, time in enumerate(times)]


def at(*lengths):
    times = [7]
    for length in lengths:
        times.append(times[-1] + length)
    return times


def test_warm_up_is_left_out_and_the_rest_is_described():
    found = steps_of(3, marks(at(900, 500, 300, 100, 110, 130), busy=5))
    assert (found.rank, found.count, found.settled) == (3, 6, 3)
    assert (found.least_ns, found.mean_ns, found.most_ns) == (100, 113, 130)
    assert (found.busy_ns, found.host_ns, found.exposed_ns) == (5, 2, 0)


def test_the_steps_time_is_what_a_job_measures_over_them():
    """Steps are not alike: every fourth of these takes three times as long, and so it counts."""
    lengths = [900, 900, 900, *[100, 100, 100, 300] * 5]
    found = steps_of(0, marks(at(*lengths)))
    assert found.settled == 20 and found.mean_ns * 20 == sum(lengths[3:])


def test_what_was_multiplied_is_of_the_settled_steps_and_their_time():
    """Sums are modulo 2^64."""
    told = [
        [*mark, [0, (2**64 - 25 + 10 * at) % 2**64, at * at]]
        for at, mark in enumerate(marks(at(900, 500, 300, 100, 110, 130)))
    ]
    assert done_of(told) == Done(3, 340, (0, 30, 6**2 - 3**2))
    assert done_of(marks(at(900, 500, 300, 100))) is None and done_of(told[:2]) is None


def test_ranks_of_a_job_that_was_started_again_are_not_counted_twice():
    sums = [[10 * at if one == Precision.BF16 else 0 for one in range(10)] for at in range(5)]
    told = [[*mark, flop] for mark, flop in zip(marks(at(9, 5, 5, 5)), sums, strict=True)]
    clients = [{"rank": rank, "steps": told} for rank in (0, 1, 0, 1, -1, None)]
    assert arithmetic_part(None, None, clients, [])["flop"] == {"bf16": 20}


H100 = load_cluster("h100-1x8").gpu_model


def multiplies(ranks, length_ns, **each):
    """Clients that do `each` FLOP of a precision in every step."""
    sums = [
        [at * each.get(name, 0) for name in Precision.LABELS]
        for at in range(6)
    ]  # fmt: skip
    told = [[*mark, flop] for mark, flop in zip(marks(at(*[length_ns] * 5)), sums, strict=True)]
    return [{"rank": rank, "steps": told} for rank in range(ranks)]


@given(
    st.integers(1, 16),
    st.integers(10**6, 10**9),
    st.integers(10**9, 10**14),
    st.floats(0.1, 2.0),
)
def test_mfu_is_the_models_share_of_what_all_gpus_could_do(ranks, length_ns, each, share):
    """In seconds and FLOP/s, the peak from NVIDIA's data sheet. Where the GPUs do what the model needs, MFU is
    HFU."""
    model_flop = share * each * ranks
    clients = multiplies(ranks, length_ns, bf16=each)
    part = arithmetic_part(H100, None, clients, [], model_flop)
    could = ranks * 989.4e12 * (length_ns / 1e9)
    assert part["mfu"] == pytest.approx(model_flop / could, rel=1e-6, abs=1e-6)
    assert part["mfu"] == pytest.approx(share * part["hfu"], rel=1e-4, abs=2e-6)
    assert part["no_mfu"] is None and part["model_flop"] == model_flop
    without = arithmetic_part(H100, None, clients, [])
    assert (without["model_flop"], without["mfu"], without["no_mfu"]) == (None, None, None)
    rest = without.keys() - {"model_flop", "mfu", "no_mfu"}
    assert {name: part[name] for name in rest} == {name: without[name] for name in rest}
    assert "MFU" not in arithmetic_text(without)


@given(st.lists(st.integers(10**6, 10**9), min_size=1, max_size=8), st.randoms())
def test_a_readers_division_gives_hfu(lengths_ns, random):
    """Ranks meet their optimizers at times of their own, so few steps differ in the mean by rank. HFU
    and MFU are of the step that is shown, which is the lowest rank's."""
    each = 10**12
    clients = [
        multiplies(1, length_ns, bf16=each)[0] | {"rank": rank}
        for rank, length_ns in enumerate(lengths_ns)
    ]
    random.shuffle(clients)
    part = arithmetic_part(H100, None, clients, [], model_flop=each * len(clients))
    shown = steps_of(0, marks(at(*[lengths_ns[0]] * 5)))
    done = sum(part["flop"].values()) / (len(clients) * 989.4e12 * shown.mean_ns / 1e9)
    assert part["hfu"] == part["mfu"] == pytest.approx(done, rel=1e-6, abs=1e-6)


def test_mfu_takes_the_peak_of_the_precision_with_the_most_flop():
    for each, peak in (({"bf16": 2 * 10**12, "fp8": 10**12}, 989.4e12),
                       ({"bf16": 10**12, "fp8": 2 * 10**12}, 1978.9e12)):  # fmt: skip
        part = arithmetic_part(H100, None, multiplies(2, 10**7, **each), [], 4e12)
        assert part["mfu"] == pytest.approx(4e12 / (2 * peak * 0.01), abs=1e-6)


def test_idle_gpus_and_processes_that_are_no_ranks_do_not_lower_mfu():
    clients = multiplies(2, 10**7, bf16=10**12)
    known = arithmetic_part(H100, None, clients, [], 1e12)["mfu"]
    others = [{"rank": rank, "steps": []} for rank in (None, -1, 0, 1)]
    assert arithmetic_part(H100, None, [*clients, *others], [], 1e12)["mfu"] == known > 0


def test_mfu_that_is_not_known_says_why():
    clients = multiplies(1, 10**7, bf16=10**12)
    for gpu, told, why in (
        (None, clients, "the cluster's description is gone"),
        (H100, multiplies(1, 10**7), "no products of known size"),
        (H100, multiplies(1, 0, bf16=5), "steps take no time"),
    ):
        part = arithmetic_part(gpu, None, told, [], 1e12)
        assert part["mfu"] is None and part["no_mfu"].startswith(why)
        assert f"MFU unknown, {why}" in arithmetic_text(part)


def test_the_summary_has_mfu_beside_hfu():
    text = arithmetic_text(
        arithmetic_part(H100, None, multiplies(2, 10**7, bf16=5 * 10**12), [], 9e12)
    )
    said = r"HFU 50.5%, MFU 45.5%: 10 TFLOP a step in bf16; 9 TFLOP of the model \(--model-flop\)"
    assert re.fullmatch(said, text)


def test_too_few_updates_make_no_step():
    assert steps_of(0, []) is None and steps_of(0, marks(at(5))) is None
    assert steps_of(0, marks(at(5, 5))).mean_ns == 5


@given(
    st.lists(st.integers(1_000_000, 1_300_000), min_size=2, max_size=30),
    st.integers(2, 4),
    st.integers(1, 10_000),
)
def test_updates_in_several_parts_are_one_step(lengths, parts, apart):
    """Each step has `parts` updates, `apart` from each other; it is as long as with one."""
    whole = at(*lengths)
    split = sorted(time - apart * part for time in whole for part in range(parts))
    one, several = steps_of(0, marks(whole)), steps_of(0, marks(split))
    assert (one.count, one.settled) == (several.count, several.settled)
    assert (one.least_ns, one.mean_ns, one.most_ns) == (
        several.least_ns,
        several.mean_ns,
        several.most_ns,
    )


@given(st.lists(st.integers(1_000_000, 1_300_000), min_size=2, max_size=30))
def test_every_settled_step_counts(lengths):
    found = steps_of(0, marks(at(*lengths)))
    assert found.settled == len(lengths) - min(WARM_UP, len(lengths) // 2)
    assert found.least_ns <= found.mean_ns <= found.most_ns
