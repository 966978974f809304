"""Strided elementwise kernels: what the loops over their operands' dimensions cost.

The oracle is a real step on one H200 (bench/gpus/data, a calibration part): the products of the
rotary embedding of a batch of two, which broadcast its angles over the batch.
"""

from pathlib import Path

import pytest

from bench.gpus import steps, visit
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.estimators import launch
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import SignatureKind, Source

ROOT = Path(__file__).resolve().parents[2]
NAME = (
    "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>"
)


@pytest.fixture(scope="module")
def database():
    return Database.open(ROOT / "phantora_ns" / "data" / "kernels" / "h200.sqlite")


def product(database, shapes, blocks):
    """What the shipped times say of a product of these shapes, recorded under no identity."""
    found = next(
        one
        for one in database.observations()
        if one.kind == SignatureKind.KERNEL
        and one.fields[0].startswith("_ZN2at6native18elementwise_kernelILi128ELi4E")
        and one.context[3] == [[1, 16384, 32, 64], [16384, 1, 64]]
    )
    fields = [found.fields[0], blocks, *found.fields[2:11], b"new"]
    elements = [1, 1]
    for at, shape in enumerate(shapes):
        for size in shape:
            elements[at] *= size
    context = ["aten::mul", 4 * sum(elements), 0, shapes]
    return KernelTimes("h200", [database]).lookup(SignatureKind.KERNEL, fields, context)


def test_a_batch_that_is_broadcast_costs_a_loop_more(database):
    """8,192 tokens of a batch of two were answered with what 16,384 of one take: 173 us."""
    one, source, _ = product(database, [[1, 16384, 32, 64], [16384, 1, 64]], 65536)
    two, other, _ = product(database, [[2, 8192, 32, 64], [8192, 1, 64]], 65536)
    assert (source, other) == (Source.LAUNCH, Source.LAW) and two > 1.05 * one
    real_ns = sorted(
        kernel.length
        for trace in visit.traces(ROOT / "bench" / "gpus" / "data")
        if trace["part"] == "8b12-fsdp-8k-ac@1"
        for kernel in steps.Step(steps.of_line(trace)).main
        if NAME in kernel.name
        and kernel.name.startswith("void at::native::elementwise_kernel<128, 4")
        and kernel.length > 100_000
    )
    assert len(real_ns) == 4 * 144
    assert real_ns[0] <= two <= real_ns[len(real_ns) // 2]  # full clock, and the power limit's


@pytest.mark.parametrize(
    "shapes, loops",
    [
        ([[2, 8192, 32, 64], [8192, 1, 64]], 4),
        ([[1, 8192, 32, 64], [8192, 1, 64]], 3),
        ([[16, 128], [16, 128]], 1),
        ([[16, 128], [128]], 2),
        ([[16, 128], []], 1),
        ([], 0),
    ],
)
def test_neighbouring_dimensions_are_one_loop_if_the_same_operands_have_them(shapes, loops):
    context = launch.context_of(["aten::mul", 0, 0, shapes])
    assert launch.dimensions(context) == loops
