"""Values through reductions, against torch on the CPU."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.hub.payload import Exchange, reduce_bytes
from phantora_ns.protocol import Collective

TYPES = {0: torch.int8, 1: torch.uint8, 2: torch.int32, 4: torch.int64, 6: torch.float16, 7: torch.float32,
         8: torch.float64, 9: torch.bfloat16}  # fmt: skip


def raw(tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def reference(parts, redop):
    """In rank order, 16-bit floats in fp32 with one rounding at the end."""
    wide = [
        part.float() if part.dtype in (torch.float16, torch.bfloat16) else part for part in parts
    ]
    total = wide[0]
    for part in wide[1:]:
        total = (
            total + part,
            total * part,
            torch.maximum(total, part),
            torch.minimum(total, part),
            total + part,
        )[redop]
    if redop == 4:
        total = (
            total / len(parts)
            if total.is_floating_point()
            else torch.div(total, len(parts), rounding_mode="trunc")
        )
    return total.to(parts[0].dtype)


@given(st.sampled_from(sorted(TYPES)), st.integers(0, 4), st.integers(1, 5), st.integers(0, 2**31))
@settings(max_examples=300, deadline=None)
def test_reductions_are_torchs(dtype, redop, ranks, seed):
    generator = torch.Generator().manual_seed(seed)
    kind = TYPES[dtype]
    if kind.is_floating_point:
        parts = [(torch.randn(17, generator=generator) * 100).to(kind) for _ in range(ranks)]
        parts[-1][:3] = torch.tensor([float("inf"), float("-inf"), float("nan")]).to(kind)
    else:
        low = 0 if kind == torch.uint8 else -100
        parts = [torch.randint(low, 100, (17,), generator=generator).to(kind) for _ in range(ranks)]
    result = torch.frombuffer(
        bytearray(reduce_bytes([raw(part) for part in parts], dtype, redop)), dtype=kind
    )
    assert torch.equal(result.nan_to_num(7), reference(parts, redop).nan_to_num(7))
    if kind.is_floating_point:
        assert torch.equal(result.isnan(), reference(parts, redop).isnan())


@pytest.mark.parametrize("dtype,numpy_type", [(3, np.uint32), (5, np.uint64)])
def test_large_unsigned(dtype, numpy_type):
    top = np.iinfo(numpy_type).max
    parts = [np.array([top, 3], numpy_type), np.array([2, 4], numpy_type)]
    sums = np.frombuffer(reduce_bytes([part.tobytes() for part in parts], dtype, 0), numpy_type)
    assert sums.tolist() == [1, 7]  # wraps around, as on the GPU
    assert np.frombuffer(
        reduce_bytes([part.tobytes() for part in parts], dtype, 2), numpy_type
    ).tolist() == [top, 4]


@pytest.mark.parametrize(
    "dtype,redop,data",
    [(10, 0, b"ab"), (11, 2, b"ab"), (7, 5, bytes(8)), (7, -1, bytes(8)), (7, 0, b"abc")],
)
def test_what_is_refused_has_no_value(dtype, redop, data):
    assert reduce_bytes([data, data], dtype, redop) == b""


def test_missing_payloads_are_zeros_and_results_go_where_they_belong():
    exchange = Exchange(Collective.REDUCE_SCATTER, 4, 2, 0, -1, 2)
    exchange.payloads[1] = np.array([5, 6], np.int32).tobytes()
    assert [np.frombuffer(exchange.result(rank), np.int32).tolist() for rank in range(2)] == [
        [5],
        [6],
    ]
    rooted = Exchange(Collective.REDUCE, 4, 2, 0, 1, 2)
    rooted.payloads[0] = np.array([5], np.int32).tobytes()
    assert (rooted.result(0), np.frombuffer(rooted.result(1), np.int32).tolist()) == (b"", [5])
    assert Exchange(Collective.ALL_REDUCE, 4, 2, 0, -1, 2).result(0) == b""
