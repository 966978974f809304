"""Why it exists: how long products take beside communication is a model of waves of tiles; it must
agree with counting the waves one by one, and with measured products."""

from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.config import load_gpu
from phantora_ns.model.contention import tiles_of, waves


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
    # NCCL leaves more than half
    left = data.draw(st.integers((multiprocessors + 1) // 2, multiprocessors))
    alone, beside = waves(tiles, multiprocessors, left)
    assert alone == worked_through(tiles, multiprocessors, multiprocessors)
    assert beside == worked_through(tiles, multiprocessors, left)


@given(st.floats(1, 1e7), st.integers(1, 20000), st.integers(0, 10**6))
def test_a_product_is_never_faster_beside_communication_nor_beyond_its_waves(alone_ns, tiles, k):
    model = load_gpu("h200").contention
    beside_ns = model.product_ns(alone_ns, tiles, k, 7495.0, 132)
    alone, beside = waves(tiles, 132, 108)
    assert alone_ns <= beside_ns <= alone_ns * beside / alone * (1 + 1e-9)


def test_products_of_real_steps_are_met_within_a_tenth():
    """us alone and covered by a collective of 8 H200s, medians of traces/8b-fsdp-4k and
    1b-ddp-4k-mbs4 (calibration)."""
    model, peak = load_gpu("h200").contention, 989.4e3 / 132
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
