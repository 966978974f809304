"""The kernel info file against the installed torch: the names it registers, the sizes its own code
states, and the C reader."""

import importlib.util
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.kernels.binary import cubin, fatbin
from phantora_ns.kernels.binary.cubin import CubinError, KernelInfo, read_kernels
from phantora_ns.kernels.signature import fnv1a64
from phantora_ns.protocol import KERNEL_INFO_HEADER
from tests.fuzz.libraries import cubin as cubin_of
from tests.fuzz.libraries import libraries

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TORCH = importlib.util.find_spec("torch")
needs_torch = pytest.mark.skipif(TORCH is None, reason="torch is not installed")


def torch_lib() -> Path:
    return Path(TORCH.submodule_search_locations[0]) / "lib"


@pytest.fixture(scope="module")
def info_file(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    old = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    try:
        yield fatbin.ensure_kernel_info(torch_lib(), 90)
    finally:
        os.environ.pop("XDG_CACHE_HOME") if old is None else os.environ.update(XDG_CACHE_HOME=old)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    program = tmp_path_factory.mktemp("reader") / "kernelinfo"
    subprocess.run(
        [
            "cc",
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-g",
            "-fsanitize=address,undefined",
            f"-I{ROOT / 'libintercept'}",
            HERE / "kernelinfo_main.c",
            ROOT / "libintercept/work/kernel_info.c",
            ROOT / "libintercept/base/environment.c",
            "-o",
            program,
            "-lpthread",
        ],
        check=True,
    )
    return program


def ask(reader: Path, info_file: Path | None, names: list[str]) -> tuple[list[str], str]:
    environment = {k: v for k, v in os.environ.items() if k != "PHANTORA_KERNEL_INFO"}
    if info_file is not None:
        environment["PHANTORA_KERNEL_INFO"] = str(info_file)
    done = subprocess.run(
        [reader],
        input="\n".join(names),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr


def line_of(kernel: KernelInfo) -> str:
    numbers = [
        kernel.param_bytes,
        kernel.max_threads,
        kernel.registers,
        kernel.static_shared_bytes,
        kernel.stack_bytes,
    ]
    return " ".join([*map(str, numbers), *(f"{offset}:{size}" for offset, size in kernel.params)])


@needs_torch
def test_parameters_fill_the_block_that_the_code_states(info_file):
    kernels = fatbin.read_kernel_info(info_file)
    assert len(kernels) > 10_000
    for kernel in kernels.values():
        ends = [offset + size for offset, size in kernel.params]
        assert (ends[-1] if ends else 0) == kernel.param_bytes, kernel
        assert all(
            end <= offset for end, (offset, _) in zip(ends, kernel.params[1:], strict=False)
        ), kernel
        assert 0 < kernel.registers <= 255 and 0 < kernel.max_threads <= 1024, kernel


@needs_torch
def test_known_kernels_have_their_declared_parameters(info_file):
    """`vectorized_elementwise_kernel<vec, FillFunctor<float>, array<char*, 1>>(int N, func_t f,
    array_t data)`."""
    kernels = fatbin.read_kernel_info(info_file)
    fills = [
        k
        for name, k in kernels.items()
        if "vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfE" in name
    ]
    assert fills and all(
        k.params == ((0, 4), (4, 4), (8, 8)) and k.max_threads == 128 for k in fills
    )


@needs_torch
def test_every_registered_kernel_is_found(info_file, tmp_path):
    library = tmp_path / "names.so"
    names = tmp_path / "names"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", HERE / "registered_names.c", "-o", library, "-ldl"],
        check=True,
    )
    environment = os.environ | {"LD_PRELOAD": str(library), "REGISTERED_NAMES": str(names)}
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import ctypes, sys; ctypes.CDLL(sys.argv[1])",
            torch_lib() / "libtorch_cuda.so",
        ],
        env=environment,
        check=True,
    )
    registered = set(names.read_text().split())
    kernels = fatbin.read_kernel_info(info_file)
    assert len(registered) > 10_000
    assert registered - kernels.keys() == set()


@needs_torch
def test_c_and_python_agree_on_every_kernel(info_file, reader):
    kernels = fatbin.read_kernel_info(info_file)
    names = list(kernels)
    random.Random(1).shuffle(names)
    strangers = [name + "x" for name in names[:500]]
    answers, warnings = ask(reader, info_file, names + strangers)
    assert answers == [line_of(kernels[name]) for name in names] + ["unknown"] * len(strangers)
    assert warnings == ""


def test_c_without_a_file_knows_nothing(reader, tmp_path):
    assert ask(reader, None, ["a"]) == (["unknown"], "")
    answers, warning = ask(reader, tmp_path / "missing", ["a"])
    assert answers == ["unknown"] and "No such file" in warning


def test_c_survives_any_damage(reader, tmp_path):
    """Single damaged bytes everywhere, and cut files: the address sanitizer finds any read outside
    the map."""
    kernels = [KernelInfo(f"kernel{i}", ((0, 8), (8, 4)), 12, 128, 32, 0, 0) for i in range(3)]
    sound = fatbin.pack_kernel_info(kernels, 90)
    path = tmp_path / "info"
    source = random.Random(2)
    damaged = [sound[:length] for length in source.sample(range(len(sound)), 8)]
    for at in [
        *range(0, KERNEL_INFO_HEADER.size, 3),
        *source.sample(range(KERNEL_INFO_HEADER.size, len(sound)), 12),
    ]:
        data = bytearray(sound)
        data[at] ^= 0xFF
        damaged.append(bytes(data))
    for data in damaged:
        path.write_bytes(data)
        answers, _ = ask(reader, path, [k.name for k in kernels])
        assert len(answers) == 3


def test_python_notices_any_damage(tmp_path):
    sound = fatbin.pack_kernel_info([KernelInfo("kernel", ((0, 8), (8, 4)), 12, 128, 32, 0, 0)], 90)
    path = tmp_path / "info"
    path.write_bytes(sound)
    assert fatbin.is_kernel_info(path, 90)
    assert not fatbin.is_kernel_info(path, 80)
    tables = range(KERNEL_INFO_HEADER.size, len(sound))
    for data in [
        sound[:-1],
        b"",
        *(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in tables),
    ]:
        path.write_bytes(data)
        assert not fatbin.is_kernel_info(path, 90)
        with pytest.raises(fatbin.FatbinError):
            fatbin.read_kernel_info(path)


@needs_torch
def test_cache_is_used_and_a_damaged_one_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = tmp_path / "lib"
    library.mkdir()
    (library / "libtorch_cuda.so").symlink_to(Path(sys.executable).resolve())
    first = fatbin.ensure_kernel_info(library, 90)
    written = first.stat().st_mtime_ns, first.stat().st_ino
    assert fatbin.ensure_kernel_info(library, 90) == first
    assert (first.stat().st_mtime_ns, first.stat().st_ino) == written
    first.write_bytes(first.read_bytes()[:-1] + b"\x01")
    assert fatbin.ensure_kernel_info(library, 90) == first
    assert fatbin.is_kernel_info(first, 90)
    assert fatbin.ensure_kernel_info(library, 80) != first
    assert sorted(p.name for p in first.parent.iterdir() if p.suffix != ".bin") == []


def test_missing_and_foreign_libraries_are_one_clear_error(tmp_path):
    with pytest.raises(fatbin.FatbinError, match="no libtorch_cuda.so"):
        fatbin.ensure_kernel_info(tmp_path, 90)
    text = tmp_path / "libtorch_cuda.so"
    text.write_text("not a library, but long enough")
    with pytest.raises(fatbin.FatbinError, match="not a 64-bit ELF"):
        fatbin.ensure_kernel_info(tmp_path, 90)


def entry(kind: int, architecture: int, flags: int = 0) -> fatbin.Entry:
    return fatbin.Entry(kind, architecture, flags, 0, 0, 0)


@pytest.mark.parametrize("packing", ["none", "zstd", "lz4"])
def test_code_is_unpacked_as_its_flags_say(packing):
    """CUDA 12's compiler packs with LZ4 (torch 2.9 and 2.10), CUDA 13's with zstd."""
    code = random.Random(1).randbytes(1000) + bytes(5000)
    if packing == "lz4":
        block = pytest.importorskip("lz4.block")
        flags, packed = fatbin.FLAG_LZ4, block.compress(code, store_size=False)
    elif packing == "zstd":
        flags, packed = fatbin.FLAG_ZSTD, zstandard.ZstdCompressor().compress(code)
    else:
        flags, packed = 0, code
    of = fatbin.Entry(fatbin.ENTRY_ELF, 90, flags, 0, len(packed), len(code))
    unpack = fatbin.Unpacker()
    assert unpack(packed, of) == code
    if packing != "none":
        with pytest.raises(CubinError):
            unpack(packed[: len(packed) // 2], of)


def test_code_that_needs_lz4_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    of = fatbin.Entry(fatbin.ENTRY_ELF, 90, fatbin.FLAG_LZ4, 0, 4, 4)
    with pytest.raises(fatbin.FatbinError, match="pip install lz4"):
        fatbin.Unpacker()(b"1234", of)


def test_choice_of_code_follows_binary_compatibility():
    code = [entry(2, a) for a in (75, 80, 86, 90, 100)] + [
        entry(2, 90, fatbin.FLAG_ARCH_SPECIFIC),
        entry(1, 90),
    ]
    assert [(e.architecture, e.flags) for e in fatbin.choose_entries(code, 90)] == [
        (90, 0),
        (90, fatbin.FLAG_ARCH_SPECIFIC),
    ]
    assert [e.architecture for e in fatbin.choose_entries(code, 89)] == [86]
    assert [e.architecture for e in fatbin.choose_entries(code, 80)] == [80]
    assert fatbin.choose_entries([entry(1, 90), entry(2, 86)], 90) == []
    assert fatbin.choose_entries([entry(2, 90)], 80) == []


@given(st.lists(st.binary(max_size=40), max_size=50))
def test_vectorised_hash_is_the_plain_one(names):
    assert [int(h) for h in fatbin.fnv1a64_many(names)] == [fnv1a64(name) for name in names]


name_text = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
kernel_infos = st.builds(
    KernelInfo,
    name=name_text,
    params=st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)), max_size=5).map(tuple),
    param_bytes=st.integers(0, 65535),
    max_threads=st.integers(1, 1024),
    registers=st.integers(0, 255),
    static_shared_bytes=st.integers(0, 1 << 20),
    stack_bytes=st.integers(0, 1 << 20),
)


@given(st.lists(kernel_infos, max_size=20, unique_by=lambda k: k.name))
def test_kernel_info_round_trip(tmp_path_factory, kernels):
    path = tmp_path_factory.getbasetemp() / "round_trip.bin"
    path.write_bytes(fatbin.pack_kernel_info(kernels, 90))
    assert list(fatbin.read_kernel_info(path).values()) == kernels


@given(st.binary(max_size=200))
def test_cubin_reader_fails_in_one_way(data):
    with pytest.raises(CubinError):
        read_kernels(data)
    with pytest.raises(CubinError):
        read_kernels(b"\x7fELF\x02" + data[:50] + struct.pack("<Q", 1 << 40))


@needs_torch
def test_summary_from_the_command_line(capsys):
    assert fatbin.main([]) == 2
    assert fatbin.main(["/nonexistent"]) == 1
    assert fatbin.main(["--arch", "80", str(torch_lib() / "libtorch_cuda_linalg.so")]) == 0
    assert "sm_80: " in capsys.readouterr().out


@pytest.mark.parametrize("flags", [0, 0x0500])
def test_the_flags_beside_a_parameter_s_size_are_no_part_of_it(flags):
    """Of 23,852 kernels of torch 2.15 for sm_100, 300 have a parameter of 8 bytes with 0x0500 above it."""
    size = 8 | flags << 16
    entry = struct.pack("<BBHIHHI", 4, cubin.KPARAM_INFO_V2, 12, 0, 3, 24208, size)
    assert cubin._own_attributes(entry, 0, len(entry))[0] == [(24208, 8)]


def test_a_file_of_four_bytes_is_no_library(tmp_path):
    path = tmp_path / "short.so"
    path.write_bytes(b"\x7fELF")
    with pytest.raises(fatbin.FatbinError, match="short.so: not a 64-bit ELF library"):
        fatbin.survey([path], 90)


@pytest.mark.parametrize("said", [1 << 16, 1 << 44])
def test_no_more_is_unpacked_than_the_fat_binary_says(said):
    """zstandard makes room for what the frame says, which may be more than the machine has."""
    packed = zstandard.ZstdCompressor().compress(bytes(1 << 16))
    # RFC 8878, 3.1.1.1: magic, a descriptor with a size of 8 bytes and a window, the window, the size
    packed = packed[:4] + b"\xc0\x58" + struct.pack("<Q", said) + packed[7:]
    assert zstandard.frame_content_size(packed) == said
    of = fatbin.Entry(fatbin.ENTRY_ELF, 90, fatbin.FLAG_ZSTD, 0, len(packed), 1 << 12)
    with pytest.raises(CubinError, match="more code than the fat binary says"):
        fatbin.Unpacker()(packed, of)


@pytest.mark.parametrize(
    "number, value", [(cubin.MAX_THREADS, 1 << 31), (cubin.REGISTERS, 1 << 31)]
)
def test_code_that_no_gpu_could_run_is_damaged(tmp_path, number, value):
    """Such a number did not fit into the kernel info file, which ended in another exception."""
    good = cubin_of(["k"])
    begin = good.index(struct.pack("<BB", cubin.FORMAT_SIZED, number)) + 4
    at = begin + (4 if number == cubin.REGISTERS else 0)
    with pytest.raises(CubinError, match="more than a GPU has, of k"):
        read_kernels(good[:at] + struct.pack("<I", value) + good[at + 4 :])


def test_sections_of_no_size_are_not_read_again_and_again():
    data = bytearray(cubin_of(["k"]))
    struct.pack_into("<HH", data, 0x3A, 0, 0xFFFF)
    with pytest.raises(CubinError, match="sections of 0 bytes"):
        read_kernels(bytes(data))


def test_a_library_without_readable_code_is_named(tmp_path):
    path = tmp_path / "packed.so"
    good = libraries()[1]
    path.write_bytes(good.replace(zstandard.MAGIC_NUMBER.to_bytes(4, "little"), b"zstd"))
    with pytest.raises(fatbin.FatbinError, match="^packed.so: no code for sm_90 can be read"):
        fatbin.write_kernel_info([path], 90, tmp_path / "out")
