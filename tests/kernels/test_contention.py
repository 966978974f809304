"""How much longer a signature takes beside communication: the class decides, and for matrix
products their tiles."""

import pytest

from phantora_ns.config import load_gpu
from phantora_ns.kernels.contention import KernelContention
from phantora_ns.protocol import BoundBy, SignatureKind

BF16, FP32, COMPUTE_32F = 14, 0, 68


def product(m, n, k, batch=1, kind=BF16):
    return [0, 0, 0, m, n, k, batch, kind, kind, kind, kind, COMPUTE_32F, 1, m, k, m]


@pytest.fixture(scope="module")
def contention():
    return KernelContention(load_gpu("h200"))


def test_a_class_has_one_share(contention):
    for bound_by, permille in (
        (BoundBy.MEMORY, 220),
        (BoundBy.COMPUTE, 340),
        (BoundBy.ATTENTION, 200),
        (BoundBy.ISSUE, 220),
        (BoundBy.MIXED, 220),
        (BoundBy.FUSED, 220),
    ):
        assert contention.permille(SignatureKind.CUDNN, [[]], bound_by) == permille
        assert contention.permille(SignatureKind.KERNEL, [], bound_by) == permille


def test_a_thin_product_is_bound_by_memory(contention):
    assert contention.permille(SignatureKind.GEMM, product(1, 4096, 4096), BoundBy.MEMORY) == 220


def test_a_product_that_fills_the_gpu_exactly_once_takes_twice_as_long(contention):
    assert (
        contention.permille(SignatureKind.GEMM, product(2048, 2048, 16384), BoundBy.COMPUTE) == 1000
    )


def test_a_product_that_leaves_room_is_not_stretched(contention):
    assert contention.permille(SignatureKind.GEMM, product(1024, 2048, 4096), BoundBy.COMPUTE) == 0


def test_batches_are_tiles_too(contention):
    one = contention.permille(SignatureKind.GEMM, product(4096, 4096, 4096), BoundBy.COMPUTE)
    assert (
        one
        == contention.permille(
            SignatureKind.GEMM, product(1024, 1024, 4096, batch=16), BoundBy.COMPUTE
        )
        > 0
    )


def test_a_large_product_loses_its_share_of_the_multiprocessors(contention):
    large = contention.permille(SignatureKind.GEMM, product(65536, 65536, 512), BoundBy.COMPUTE)
    assert large == pytest.approx(1000 * (132 / 108 - 1), abs=2)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [1, 2],
        "text",
        None,
        product(0, 0, 0),
        product(-1, 5, 5),
        product(1 << 62, 1 << 62, 1 << 62),
    ],
)
def test_any_fields_have_an_answer(contention, fields):
    assert 0 <= contention.permille(SignatureKind.GEMM, fields, BoundBy.COMPUTE) < 1 << 32


@pytest.mark.parametrize("model", ["h100", "a100", "b200", "l40s"])
def test_every_model_has_an_answer_for_every_type(model):
    contention = KernelContention(load_gpu(model))
    for kind in (0, 1, 2, 3, 14, 28):
        assert (
            0
            <= contention.permille(
                SignatureKind.GEMM, product(4096, 4096, 4096, kind=kind), BoundBy.COMPUTE
            )
            <= 1000
        )
