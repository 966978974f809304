"""Why it exists: batch normalisation reaches cuDNN as a call with sizes only. Its time must follow from
them: from traffic where channels are innermost, else from one block a channel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.kernels import rates
from phantora_ns.kernels.estimators import batch_norm
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import SignatureKind, Source

H200 = rates.load("h200")
FORWARD, BACKWARD = "cudnnBatchNormalizationForwardTraining", "cudnnBatchNormalizationBackward"
FP32, HALF = 0, 2


def numbers(images, channels, side, kind=FP32, last=False):
    """As the interceptor writes them (libintercept/simulated/math/cudnn_legacy.c)."""
    area = side * side
    strides = [channels * area, area, side, 1]
    if last:
        strides = [channels * area, 1, channels * side, channels]
    return [2 if last else 1, 0, kind, 0, 4, images, channels, side, side, *strides]


def ns(name, *sizes, **options):
    return batch_norm.duration_ns(batch_norm.parse(name, numbers(*sizes, **options)), H200)


def test_a_call_is_read():
    call = batch_norm.parse(BACKWARD, numbers(24, 48, 96, HALF, True))
    assert call == ("Backward", 24, 48, 96 * 96, 2, True)
    assert call.size_bytes == 24 * 48 * 96 * 96 * 2
    assert batch_norm.parse("cudnnCTCLoss", [1, 2, 3]) is None


@given(
    st.sampled_from((FORWARD, BACKWARD)),
    st.integers(1, 256),
    st.integers(1, 2048),
    st.integers(1, 128),
    st.sampled_from((FP32, HALF)),
    st.booleans(),
)
def test_no_call_beats_the_memory_and_more_images_take_no_less(
    name, images, channels, side, kind, last
):
    time = ns(name, images, channels, side, kind=kind, last=last)
    size = images * channels * side * side * (4 if kind == FP32 else 2)
    # half of what it reads first may still be in the cache
    assert time > size / H200.memory_bytes_per_ns
    assert ns(name, 2 * images, channels, side, kind=kind, last=last) >= time


@pytest.mark.parametrize(
    ("name", "images", "channels", "side", "last", "us"),
    [
        (FORWARD, 24, 48, 96, False, 120.6),
        (FORWARD, 24, 336, 96, False, 337.4),
        (FORWARD, 80, 2048, 24, False, 343.5),
        (FORWARD, 80, 96, 48, True, 73.3),
        (BACKWARD, 24, 336, 96, False, 465.0),
        (BACKWARD, 80, 2048, 24, False, 510.0),
        (BACKWARD, 80, 96, 48, True, 102.7),
    ],
)
def test_floats_are_near_real_ones(name, images, channels, side, last, us):
    """On an H200 (bench/kernels/varied.py)."""
    assert ns(name, images, channels, side, last=last) / 1e3 == pytest.approx(us, rel=0.3)


def test_few_channels_leave_multiprocessors_without_work():
    """Real: 379.8 us for 16 channels, 638.3 for 144."""
    few, many = (ns(FORWARD, 80, channels, 96) for channels in (16, 144))
    assert few > 0.4 * many


def test_it_is_no_guess():
    times = KernelTimes("h200")
    _, source, _ = times.lookup(SignatureKind.CALL, [FORWARD, numbers(7, 33, 17)])
    assert source != Source.GUESS
    _, source, _ = times.lookup(SignatureKind.CALL, [FORWARD, [1, 0, 0, 0, 4, 0, 0]])
    assert source == Source.GUESS
