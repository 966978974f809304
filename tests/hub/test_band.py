"""Why it exists: the band is a law over numbers that no run can check one by one, so it is held
against what must be true of any such law, whatever its constants are."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.protocol import KernelClass, Source
from phantora_ns.report.band import (
    ESTIMATED,
    FITTED,
    GAPS,
    GUESSED,
    HOSTS,
    TOLD,
    Z,
    Evidence,
    band_of,
    kernels_error,
)

STEP = 100_000_000
LABELS = st.sampled_from(KernelClass.LABELS)
SOURCES = st.sampled_from(Source.LABELS)
WORK = st.dictionaries(
    LABELS, st.dictionaries(SOURCES, st.integers(1, 10**12), min_size=1), min_size=1
)
SHARE = st.floats(0, 1)


@st.composite
def evidence(draw):
    step = draw(st.integers(1, 10**12))
    share = {name: draw(SHARE) for name in ("waiting", "beside", "unknown", "spread", "host")}
    host_ns = round(step * share.pop("host"))
    return Evidence(
        step_ns=step,
        busy_ns=draw(st.integers(0, 2 * step)),
        exposed_ns=draw(st.integers(0, 2 * step)),
        host_ns=host_ns,
        work_ns=draw(WORK),
        fitted=draw(st.booleans()),
        nodes=draw(st.integers(1, 3)),
        told=draw(st.booleans()),
        **share,
    )


def busy(work_ns, **changes):
    """A step in which the GPU computes all the time."""
    return Evidence(STEP, STEP, 0, 0, work_ns, **changes)


def test_every_class_has_its_errors():
    assert set(FITTED) == set(ESTIMATED) == set(KernelClass.LABELS)
    assert all(0 < error <= GUESSED for table in (FITTED, ESTIMATED) for error in table.values())


def test_recorded_times_leave_the_chips_spread_alone():
    found = band_of(busy({"gemm": {"exact": 7}, "optimizer": {"exact": 3}}, spread=0.013))
    assert (found.kernels, found.communication, found.host) == (0, 0, 0)
    assert found.gpu == pytest.approx(0.013)
    assert found.high_ns / STEP == pytest.approx(1 + Z * 0.013, rel=1e-6)
    assert STEP / found.low_ns == pytest.approx(1 + Z * 0.013, rel=1e-6)
    nothing = band_of(busy({"gemm": {"exact": 7}}))
    assert (nothing.low_ns, nothing.high_ns) == (STEP, STEP)


@given(evidence())
def test_the_band_contains_the_step(given):
    found = band_of(given)
    assert 0 <= found.low_ns <= given.step_ns <= found.high_ns
    assert all(
        term >= 0 and math.isfinite(term)
        for term in (found.kernels, found.gpu, found.communication, found.host)
    )


@given(evidence(), LABELS, SOURCES, st.floats(0, 1), st.floats(0, 1))
def test_more_guesses_never_narrow_it(given, name, source, some, more):
    """Of the time of one class and source, a larger share is guessed."""
    some, more = sorted((some, more))

    def guessed(share):
        whole = 10**12
        work = {label: dict(sources) for label, sources in given.work_ns.items()}
        sources = work.setdefault(name, {})
        part = round(whole * share)
        sources["guess"] = sources.get("guess", 0) + part
        sources[source] = sources.get(source, 0) + whole - part
        return band_of(
            Evidence(**{f: getattr(given, f) for f in given.__slots__} | {"work_ns": work})
        )

    before, after = guessed(some), guessed(more)
    assert after.low_ns <= before.low_ns and before.high_ns <= after.high_ns


def test_errors_of_one_class_add_up_and_of_several_partly_cancel():
    one = kernels_error({"attention": {"attention": 1}})
    assert one == FITTED["attention"]
    both = kernels_error({"attention": {"attention": 1}, "reduction": {"law": 1}})
    assert both == pytest.approx(math.hypot(FITTED["attention"], FITTED["reduction"]) / 2)
    half = kernels_error({"attention": {"attention": 1, "exact": 1}})
    assert half == pytest.approx(FITTED["attention"] / 2)
    same = kernels_error({"attention": {"attention": 1, "guess": 1}})
    assert same == pytest.approx((FITTED["attention"] + GUESSED) / 2)
    assert kernels_error({"other": {"law": 5}}, fitted=False) == ESTIMATED["other"]


@given(st.integers(0, STEP), st.integers(0, STEP))
def test_less_work_of_the_gpu_leaves_more_to_the_host(one, other):
    """The host works while the GPU does not, and decides on the share of the step in which the GPU waits."""
    more, less = max(one, other), min(one, other)
    wide, narrow = (
        band_of(Evidence(STEP, part, 0, STEP - part, {"gemm": {"exact": 1}}))
        for part in (less, more)
    )
    assert wide.low_ns <= narrow.low_ns
    idle = max(0, 1 - less / STEP - GAPS)
    assert wide.host == pytest.approx(idle / (idle + less / STEP) * HOSTS)


def test_a_host_that_never_waits_decides_on_the_whole_step():
    """However much the GPU does meanwhile. The step gets shorter by no more than the GPU waits."""
    found = [
        band_of(Evidence(STEP, busy, 0, STEP, {"gemm": {"exact": 1}}))
        for busy in (0, STEP // 2, STEP * 9 // 10)
    ]
    assert [one.host for one in found] == pytest.approx([HOSTS] * 3)
    assert {round(one.high_ns / STEP, 6) for one in found} == {round(1 + Z * HOSTS, 6)}
    assert found[0].low_ns == found[1].low_ns == pytest.approx(STEP / (1 + Z * HOSTS), rel=1e-6)
    assert found[2].low_ns == pytest.approx(STEP * (0.9 + GAPS), rel=1e-6)


def test_a_told_score_narrows_the_host_s_part_alone():
    def found(busy_ns, told):
        given = Evidence(
            STEP, busy_ns, 0, STEP // 2, {"gemm": {"exact": 1}}, spread=0.01, told=told
        )
        return band_of(given)

    assert found(STEP // 2, True).host == pytest.approx(TOLD / HOSTS * found(STEP // 2, False).host)
    assert found(STEP, True) == found(STEP, False)


def test_a_host_with_little_in_hand_widens_it_upwards_alone():
    idle, near = (
        band_of(Evidence(STEP, STEP, 0, host, {"gemm": {"exact": 1}}, spread=0.01))
        for host in (STEP // 2, STEP * 95 // 100)
    )
    assert near.low_ns == idle.low_ns and near.high_ns > 1.1 * STEP > idle.high_ns


def test_communication_that_waits_for_others_has_their_errors():
    """Nothing is known of a network when all waiting is for ranks that are late."""
    work = {"attention": {"attention": 1}}
    late = band_of(Evidence(STEP, STEP // 2, STEP // 2, 0, work, waiting=1.0))
    moving = band_of(Evidence(STEP, STEP // 2, STEP // 2, 0, work, waiting=0.0))
    assert late.communication == 0 and late.kernels == pytest.approx(2 * moving.kernels)
    assert moving.communication > 0
