"""Why it exists: a share of the peak is as good as its count. What is counted is held against loops over
the definition, and what cannot be counted must be said to be so."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.kernels import flop
from phantora_ns.kernels.flop import NOTHING, UNCOUNTED, work_of
from phantora_ns.protocol import Precision, SignatureKind

FLASH = (
    "_ZN13pytorch_flash{}I23Flash_fwd_kernel_traitsILi64ELi128ELi128ELi4ELb0ELb0EN7cutlass10bfloat16_tE"
    "19Flash_kernel_traitsILi64ELi128ELi128ELi4ES3_EELb0ELb1ELb0ELb0ELb1ELb1ELb0ELb0EEEv"
    "NS_16Flash_fwd_paramsE"
)
BHSD = [[2, 384, 8, 64], [2, 512, 4, 64], [2, 512, 4, 64]]
GROUPED = (
    "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalEEEvNT_6ParamsE",
    "aten::_grouped_mm",
)


def product(m=3, n=5, k=7, batch=2, kind=14, compute=68):
    return [0, 0, 0, m, n, k, batch, kind, kind, kind, kind, compute, 1, m, k, m]


def kernel(name, *, operator=None, shapes=(), input_bytes=0):
    context = [operator, input_bytes, 0, shapes] if operator else None
    fields = [name, 8, 2, 8, 128, 1, 1, 0, 0, 0, 0, b""]
    return work_of(SignatureKind.KERNEL, fields, context)


@pytest.mark.parametrize(
    "kind, compute, real, precision",
    [
        (14, 68, 1, "bf16"),
        (2, 68, 1, "fp16"),
        (0, 68, 1, "fp32"),
        (0, 77, 1, "tf32"),
        (1, 70, 1, "fp64_tensor"),
        (28, 68, 1, "fp8"),
        (3, 72, 1, "int8"),
        (4, 68, 4, "fp32"),  # complex
    ],
)
def test_products(kind, compute, real, precision):
    multiplied = sum(2 * real for _ in range(3 * 5 * 7 * 2))
    found = work_of(SignatureKind.GEMM, product(kind=kind, compute=compute))
    assert found[:2] == (multiplied, Precision.LABELS.index(precision))


def test_a_product_of_a_type_without_a_name_is_uncounted():
    assert work_of(SignatureKind.GEMM, product(kind=33)) == UNCOUNTED  # fp4
    assert work_of(SignatureKind.GEMM, product(m=1 << 40, n=1 << 40)) == UNCOUNTED
    assert work_of(SignatureKind.GEMM, product(k=0)) == NOTHING


@pytest.mark.parametrize(
    "kind, names", [(10, (704, 703, 705)), (12, (710, 709, 711)), (11, (716, 715, 717))]
)
def test_convolutions(kind, names):
    """A multiply-add for each number of an output, each of its group's channels and each place of the
    filter, in all three directions, strided ones too."""
    image, weight, out = (2, 6, 9, 9), (4, 3, 3, 3), (2, 4, 4, 4)
    dims = (image, weight, out)
    tensors = [[name, ["t", 9, list(d)]] for name, d in zip(names, dims, strict=True)]
    found = work_of(SignatureKind.CUDNN, [[[kind, tensors]]])
    assert found[:2] == (2 * math.prod(out) * math.prod(weight[1:]), Precision.BF16)


@pytest.mark.parametrize("name", ["16flash_fwd_kernel", "24flash_fwd_splitkv_kernel"])
def test_flash_attention(name):
    found = kernel(FLASH.format(name), operator="aten::_flash_attention_forward", shapes=BHSD)
    assert found[:2] == (2 * 2 * (2 * 8) * 384 * 512 * 64, Precision.BF16)


@pytest.mark.parametrize("causal", [True, False])
def test_a_causal_mask_leaves_out_half(causal):
    """As the third argument of the kernel's template says (traits, is_dropout, is_causal, ...)."""
    name = FLASH.format("16flash_fwd_kernel").replace("ELb0ELb1ELb0", f"ELb0ELb{causal:d}ELb0", 1)
    found = kernel(name, operator="aten::_flash_attention_forward", shapes=BHSD)
    assert found == (2 * 2 * (2 * 8) * 384 * 512 * 64, Precision.BF16, causal)


def test_attention_of_packed_sequences_is_uncounted():
    name, operator = FLASH.format("16flash_fwd_kernel"), "aten::_flash_attention_forward"
    assert kernel(name, operator=operator, shapes=[[768, 8, 64]] * 3 + [[3], [3]]) == UNCOUNTED
    assert kernel(name) == UNCOUNTED  # nobody knows the operator


def test_memory_efficient_attention():
    shapes, operator = [[2, 384, 8, 64]] * 3, "aten::_efficient_attention_forward"
    forward = kernel("fmha_cutlassF_f32_aligned_64x64_rf_sm80", operator=operator, shapes=shapes)
    assert forward[:2] == (4 * 16 * 384 * 384 * 64, Precision.TF32)
    shapes, operator = [[2, 384, 8, 64]] * 4, "aten::_efficient_attention_backward"
    backward = kernel("fmha_cutlassB_f16_aligned_64x64_k64_sm80", operator=operator, shapes=shapes)
    assert backward[:2] == (10 * 16 * 384 * 384 * 64, Precision.FP16)
    name = "fmha_cutlassB_f16_aligned_64x64_k64_sm80"
    assert kernel(name, operator=operator, shapes=[*shapes, [3]]) == UNCOUNTED


@pytest.mark.parametrize(
    "left, right, flop",
    [
        ([1000, 64], [7, 64, 32], 2 * 1000 * 64 * 32),
        ([7, 100, 64], [64, 300], 2 * 100 * 64 * 300),
        ([100, 1000], [1000, 32], 2 * 100 * 1000 * 32),
        ([7, 100, 64], [7, 64, 32], 2 * 7 * 100 * 64 * 32),
    ],
)
def test_grouped_products_count_what_all_groups_have_together(left, right, flop):
    """However unequal they are: their sizes are on the device."""
    name, operator = GROUPED
    input_bytes = 2 * (math.prod(left) + math.prod(right))
    found = kernel(name, operator=operator, shapes=[left, right, [7]], input_bytes=input_bytes)
    assert found[:2] == (flop, Precision.BF16)
    helper = "_ZN2at4cuda6detail25prepare_grouped_gemm_dataIvEEvPT_"
    assert kernel(helper, operator=operator, shapes=[left, right, [7]]) == NOTHING


@pytest.mark.parametrize(
    "name, found",
    [
        ("triton_poi_fused_add_0", NOTHING),
        ("triton_red_fused_norm_1", NOTHING),
        ("triton_tem_fused_mm_2", UNCOUNTED),
        ("_my_own_kernel", UNCOUNTED),  # of Triton: it may multiply
        ("nvjet_tst_128x64_64x8", UNCOUNTED),
        ("_ZN2at6native27unrolled_elementwise_kernelIvEEvv", NOTHING),
        ("_ZN2at6native31conv_depthwise2d_forward_kernelIfEEvv", UNCOUNTED),
        ("_ZN7cutlass13device_kernelINS_4gemm6kernelEEEvv", UNCOUNTED),
        (FLASH.format("32flash_fwd_splitkv_combine_kernel"), NOTHING),
        (FLASH.format("27flash_bwd_convert_dq_kernel"), NOTHING),
        (FLASH.format("24flash_bwd_dot_do_o_kernel"), NOTHING),
    ],
)
def test_a_kernel_that_may_multiply_is_never_nothing(name, found):
    assert kernel(name) == found


def test_other_calls():
    assert work_of(SignatureKind.CALL, ["cufftXtExec", [4, 4, 1, 64]]) == NOTHING
    assert work_of(SignatureKind.CALL, ["cusolverDnSpotrf", [0, 8, 8, 0, 1]]) == UNCOUNTED
    assert work_of(SignatureKind.MEMORY, [0, 4096, 2, 2]) == NOTHING


ANY = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=16),
    max_leaves=40,
)


@given(st.integers(0, 6), ANY, ANY)
def test_whatever_comes_is_counted_or_said_to_be_uncounted(kind, fields, context):
    found = work_of(kind, fields, context)
    assert 0 <= found.flop < flop.LARGEST and 0 <= found.precision < len(Precision.LABELS)
    assert isinstance(flop.named(kind, fields), str)
