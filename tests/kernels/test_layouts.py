"""What the readers of parameter blocks assume, against the layouts in the installed torch's own GPU
code.

A new torch that changes one of these kernels fails here, not with a wrong time.
"""

import importlib.util
from pathlib import Path

import pytest

from phantora_ns.kernels.binary import fatbin, names
from phantora_ns.kernels.estimators import memory

TORCH = importlib.util.find_spec("torch")
pytestmark = pytest.mark.skipif(TORCH is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def kernels():
    """(demangled name, info) of every kernel of libtorch_cuda.so whose base name a reader knows."""
    library = Path(TORCH.submodule_search_locations[0]) / "lib" / "libtorch_cuda.so"
    wanted = [*memory.READERS, *(prefix for prefix, _ in memory.PREFIXES)]
    found = [
        info
        for info in fatbin.survey([library], 90).kernels.values()
        if any(w in info.name for w in wanted)
    ]
    return [(names.parse(info.name), info) for info in found]


def layouts(kernels, base, *parts):
    found = [
        (name, info.params)
        for name, info in kernels
        if name.base.startswith(base) and all(p in name.text for p in parts)
    ]
    assert found, base
    return found


def test_every_reader_has_a_kernel(kernels):
    bases = {name.base for name, _ in kernels}
    assert set(memory.READERS) - {"_scatter_gather_elementwise_kernel"} <= bases
    for prefix, _ in memory.PREFIXES:
        assert any(base.startswith(prefix) for base in bases)


@pytest.mark.parametrize(
    "base", ["vectorized_elementwise_kernel", "unrolled_elementwise_kernel", "elementwise_kernel"]
)
def test_elementwise_kernels_take_the_count_first(kernels, base):
    assert {params[0] for name, params in layouts(kernels, base) if name.base == base} == {(0, 4)}


def test_casting_copies_end_with_their_sizes(kernels):
    found = layouts(
        kernels, "unrolled_elementwise_kernel", "direct_copy_kernel_cuda", "LoadWithCast<1>"
    )
    assert {params[-2:] for _, params in found} == {((28, 8), (36, 8))}


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_tensor_lists_are_as_large_as_their_parts(kernels, depth):
    for metadata, fused in (
        (f"::TensorListMetadata<{depth}>", 0),
        (f"::FusedOptimizerTensorListMetadata<{depth}>", 1),
    ):
        sizes = {lists.places(depth, bool(fused))[-1] for lists in memory.TENSOR_LISTS}
        found = [
            params
            for name, params in layouts(kernels, "multi_tensor_apply_kernel")
            if metadata in name.arguments[0]
        ]
        assert {params[0] for params in found} <= {(0, size) for size in sizes}


def test_concatenation_metadata_holds_the_sizes_where_they_are_read(kernels):
    for name, params in layouts(kernels, "CatArrayBatchedCopy"):
        batch, index_bytes = name.integer(3), names.type_bytes(name.arguments[1])
        assert params[0] == (0, 8) and params[1][0] == 8, name
        assert params[1][1] >= batch * (8 + 3 * index_bytes), name


@pytest.mark.parametrize(
    ("base", "offset", "size"),
    [
        ("vectorized_layer_norm_kernel", 0, 4),
        ("layer_norm_grad_input_kernel_vectorized", 48, 4),
        ("GammaBetaBackwardCUDAKernelTemplate", 0, 8),
        ("cunn_SoftMaxForwardReg", 16, 8),
        ("cunn_SoftMaxForwardSmem", 16, 8),
        ("cunn_SoftMaxBackward", 24, 8),
        ("softmax_warp_backward", 24, 4),
        ("split_with_sizes_copy_out_contiguous_no_cast_kernel", 40, 8),
        ("distribution_elementwise_grid_stride_kernel", 0, 8),
        ("nll_loss_forward_reduce_cuda_kernel_2d", 48, 8),
        ("nll_loss_backward_reduce_cuda_kernel_2d", 44, 4),
    ],
)
def test_sizes_are_where_they_are_read(kernels, base, offset, size):
    for name, params in layouts(kernels, base):
        assert (offset, size) in params, name.text


def test_dropout_takes_its_count_after_three_tensors(kernels):
    for name, params in layouts(kernels, "fused_dropout_kernel"):
        wide = names.type_bytes(name.arguments[2]) == 8
        assert params[3] == ((3 * 416, 8) if wide else (3 * 216, 4)), name.text


def test_reductions_take_one_structure(kernels):
    assert all(len(params) == 1 for _, params in layouts(kernels, "reduce_kernel"))
