"""Kernel names: demangling against binutils, and the parts that the estimators read."""

import importlib.util
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.kernels.binary import fatbin, names

MANGLED = (
    "_ZN2at6native29vectorized_elementwise_kernelILi8E"
    "NS0_15CUDAFunctor_addIN3c108BFloat16EEESt5arrayIPcLm3EEEEviT0_T1_"
)


def test_a_mangled_name_is_taken_apart():
    found = names.parse(MANGLED)
    assert found.base == "vectorized_elementwise_kernel"
    assert found.arguments == (
        "8",
        "at::native::CUDAFunctor_add<c10::BFloat16>",
        "std::array<char*, 3ul>",
    )
    assert found.integer(0) == 8 and found.integer(1) is None and found.integer(9) is None


def test_plain_and_anonymous_names():
    assert names.parse("nvjet_sm90_tst_256x128").base == "nvjet_sm90_tst_256x128"
    assert names.parse("(anonymous namespace)::f(int)").base == "f"
    assert names.parse(
        "void at::(anonymous namespace)::g<float, (at::Mode)1>(float*)"
    ).arguments == ("float", "(at::Mode)1")


def test_without_a_demangler_the_base_is_still_found(monkeypatch):
    monkeypatch.setattr(names, "_demangler", lambda: None)
    names.parse.cache_clear()
    try:
        assert names.parse(MANGLED).base == "vectorized_elementwise_kernel"
    finally:
        names.parse.cache_clear()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("float", 4),
        ("c10::BFloat16 const&", 2),
        ("char*", 8),
        ("bool", 1),
        ("X", None),
        ("at::native::OpaqueType<16u>", 16),
    ],
)
def test_type_sizes(text, size):
    assert names.type_bytes(text) == size


@given(st.text(max_size=80) | st.text("<>(){}[],:_ZNabc019-", max_size=80).map(lambda t: "_Z" + t))
def test_no_name_breaks_the_parser(text):
    found = names.parse(text)
    assert isinstance(found.base, str)
    names.lambda_arguments(text)
    names.template_arguments(text, "f")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.skipif(shutil.which("c++filt") is None, reason="needs binutils")
def test_demangling_agrees_with_binutils():
    library = (
        Path(importlib.util.find_spec("torch").submodule_search_locations[0])
        / "lib"
        / "libtorch_cuda_linalg.so"
    )
    mangled = random.Random(3).sample(sorted(fatbin.survey([library], 90).kernels), 200)
    filtered = subprocess.run(
        ["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True
    ).stdout
    same = sum(names.demangle(name) == text for name, text in zip(mangled, filtered.splitlines()))
    assert same >= 190  # the two differ in how they print a few lambdas and casts
