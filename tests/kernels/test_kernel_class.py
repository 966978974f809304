"""Why it exists: the report sums GPU time by class, and the band's errors are by class; a class that
most kernels miss would make both meaningless."""

from collections import Counter

import pytest

from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.databases import shipped_path
from phantora_ns.kernels.families import CLASSES, kernel_class
from phantora_ns.protocol import KernelClass, SignatureKind


def kernel(name):
    return [name, 1, 1, 1, 128, 1, 1, 0, 0, 0, 0, b""]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, int, int>(int)", "elementwise"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_TNT", "gemm"),
        (
            "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<int> >(int)",
            "gemm",
        ),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "attention"),
        # with its keys split, what adds the parts up, and the helpers of its backward pass
        ("void pytorch_flash::flash_fwd_splitkv_kernel<Traits<128, 64>, true>(int)", "attention"),
        ("void pytorch_flash::flash_fwd_splitkv_combine_kernel<int, 4>(int)", "attention"),
        ("void pytorch_flash::flash_bwd_dot_do_o_kernel<true, int>(int)", "attention"),
        ("void pytorch_flash::flash_bwd_convert_dq_kernel<int, true>(int)", "attention"),
        (
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int> > >(int)",
            "attention",
        ),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("triton_red_fused_add_sum_3", "triton"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<int, int>(int)",
            "optimizer",
        ),
        ("void at::native::embedding_backward_feature_kernel<float, float, long>(long)", "layout"),
        ("void at::native::batch_norm_transform_input_kernel<float>(int)", "reduction"),
        ("somebody_elses_kernel", "other"),
        ("", "other"),
    ],
)
def test_a_kernels_class_by_its_name(name, expected):
    assert KernelClass.LABELS[kernel_class(SignatureKind.KERNEL, kernel(name))] == expected


def test_classes_are_disjoint_and_any_input_has_one():
    begins = [begin for found in CLASSES.values() for begin in found]
    assert len(begins) == len(set(begins))
    for kind, fields in ((0, []), (0, [None] * 12), (1, []), (2, [7]), (3, []), (9, None)):
        assert kernel_class(kind, fields) in range(len(KernelClass.LABELS))


def test_of_the_shipped_times_nearly_all_have_a_class():
    """By GPU time, in what 46 configurations of training and the sweeps launch."""
    times = Counter()
    with Database.open(shipped_path("h200")) as database:
        for seen in database.observations():
            times[kernel_class(seen.kind, seen.fields, seen.context)] += seen.median_ns * seen.count
    assert set(times) == set(range(len(KernelClass.LABELS)))
    assert times[KernelClass.OTHER] < 0.01 * times.total()
    assert times[KernelClass.GEMM] == max(times.values())
