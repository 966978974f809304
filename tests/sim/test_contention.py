"""Compute beside communication: the interval arithmetic against a fluid taken one nanosecond at a
time, and in the graph."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.config import ConfigError, load_gpu
from phantora_ns.sim.contention import Activity, Contention, tiles_of, waves

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6)


def fluid(spans, begin, work, drag):
    """Nanosecond by nanosecond: a whole one alone, work / (work + drag) of one beside
    communication."""
    left, now = Fraction(work), begin
    while left > 0:
        beside = any(start <= now < start + length for start, length in spans)
        rate = Fraction(work, work + drag) if beside else Fraction(1)
        if left <= rate:
            return now + 1  # done within this nanosecond: rounded up
        left -= rate
        now += 1
    return now


@given(SPANS, st.integers(0, 80), st.integers(1, 40), st.integers(0, 40))
def test_work_ends_when_a_fluid_says(spans, begin, work, drag):
    activity = Activity()
    for owner, (start, length) in enumerate(spans):
        activity.put(owner, start, start + length)
    assert activity.finish_ns(begin, work, drag) == fluid(spans, begin, work, drag)


@given(SPANS, st.randoms(), st.integers(0, 80), st.integers(1, 40), st.integers(1, 40))
def test_neither_order_nor_moving_matters(spans, rng, begin, work, drag):
    plain, moved = Activity(), Activity()
    owners = list(enumerate(spans))
    for owner, (start, length) in owners:
        plain.put(owner, start, start + length)
        moved.put(owner, start + 7, start + 2 * length + 9)
    rng.shuffle(owners)
    for owner, (start, length) in owners:
        moved.put(owner, start, start + length)
    assert plain.finish_ns(begin, work, drag) == moved.finish_ns(begin, work, drag)
    bare = begin + work
    assert bare <= plain.finish_ns(begin, work, drag) <= bare + drag


@given(SPANS, st.integers(0, 80), st.integers(1, 40), st.integers(1, 40))
def test_what_is_forgotten_lies_before_all_work_that_is_asked_about(spans, begin, work, drag):
    activity = Activity()
    for owner, (start, length) in enumerate(spans):
        activity.put(owner, start, start + length)
    before = activity.finish_ns(begin, work, drag)
    activity.forget(begin)
    assert activity.finish_ns(begin, work, drag) == before


def test_the_time_from_which_anything_changed_is_told():
    activity = Activity()
    assert activity.put("a", 10, None) == 10
    assert activity.finish_ns(0, 20, 20) == 30
    assert activity.put("a", 10, 20) == 20
    assert activity.finish_ns(0, 20, 20) == 25
    assert activity.put("a", 10, 20) is None
    assert activity.put("a", 10, 25) == 20
    assert activity.put("a", 12, 25) == 10


def test_every_gpu_model_has_its_shares():
    for model in ("h200", "h100", "a100", "b200", "l40s"):
        found = Contention.of(load_gpu(model))
        assert all(0 <= share < 1 for share in found[:4]) and found.held > 0


def with_entry(name, value):
    gpu = load_gpu("h200")
    table = {key: entry for key, entry in gpu.tables["contention"].items() if key != name}
    tables = {"contention": table if value is None else {**table, name: value}}
    return type("Gpu", (), {"model": "x", "multiprocessors": gpu.multiprocessors, "tables": tables})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gemm", None),
        ("memory", 0.05),
        ("collective", "-5%"),
        ("held", None),
        ("held", -1),
        ("held", "24"),
        ("held", 132),
        ("tile_start", 0.5),
        ("tile_rate", "0%"),
        ("throttle", "120%"),
        ("throttle", True),
    ],
)
def test_a_value_that_is_missing_or_cannot_be_is_named(name, value):
    with pytest.raises(ConfigError, match=f"contention.{name}"):
        Contention.of(with_entry(name, value))


def test_a_table_that_is_missing_is_named():
    with pytest.raises(ConfigError, match="contention.*is missing"):
        Contention.of(type("Gpu", (), {"model": "x", "tables": {}}))


def worked_through(tiles, multiprocessors, left):
    """Wave by wave: every resident block takes its own first tile, then whatever is next; blocks
    that found no room come when all others have left, each with its own first tile."""
    blocks = min(tiles, multiprocessors)
    resident = min(blocks, left)
    shared = tiles - blocks
    wave = 1
    while shared > 0:
        shared -= resident
        wave += 1
    waiting = blocks - resident
    while waiting > 0:
        waiting -= left
        wave += 1
    return wave


@given(st.integers(1, 3000), st.integers(2, 150), st.data())
def test_waves_are_what_blocks_work_through_one_by_one(tiles, multiprocessors, data):
    left = data.draw(
        st.integers((multiprocessors + 1) // 2, multiprocessors)
    )  # NCCL leaves more than half
    alone, beside = waves(tiles, multiprocessors, left)
    assert alone == worked_through(tiles, multiprocessors, multiprocessors)
    assert beside == worked_through(tiles, multiprocessors, left)


@given(st.floats(1, 1e7), st.integers(1, 20000), st.integers(0, 10**6))
def test_a_product_is_never_faster_beside_communication_nor_beyond_its_waves(alone_ns, tiles, k):
    model = Contention.of(load_gpu("h200"))
    beside_ns = model.product_ns(alone_ns, tiles, k, 7495.0, 132)
    alone, beside = waves(tiles, 132, 108)
    assert alone_ns <= beside_ns <= alone_ns * beside / alone * (1 + 1e-9)


def test_products_of_real_steps_are_met_within_a_tenth():
    """us alone and covered by a collective of 8 H200s, medians of traces/8b-fsdp-4k and
    1b-ddp-4k-mbs4 (calibration)."""
    model, peak = Contention.of(load_gpu("h200")), 989.4e3 / 132
    for m, n, k, alone_us, covered_us in (
        (4096, 4096, 4096, 172.7, 249.4),
        (1024, 4096, 4096, 57.2, 90.2),
        (14336, 4096, 4096, 588.4, 782.6),
        (4096, 14336, 4096, 769.5, 783.8),
        (4096, 4096, 14336, 741.3, 886.0),
        (2048, 2048, 16384, 180.2, 352.3),
    ):
        predicted_us = model.product_ns(alone_us * 1e3, tiles_of(m, n), k, peak, 132) / 1e3
        assert abs(predicted_us / covered_us - 1) < 0.1, (m, n, k)
