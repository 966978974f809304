"""Why it exists: a job hands us cubins that nobody has checked. The reader in C is compared with the
one in Python, and neither may read or write beyond what it was given, whatever the bytes say."""

import random
import struct
import subprocess
from pathlib import Path

import pytest

from phantora_ns.kernels.binary import fatbin
from phantora_ns.kernels.binary.cubin import CubinError, read_kernels

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGBITS, SYMTAB, STRTAB, NOBITS = 1, 2, 3, 8
WORDS = [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 64, 2**64 - 1]


def elf(sections) -> bytes:
    """An ELF64 file of (name, type, contents or size, link)."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in sections) + b".names\0"
    sections = [("", 0, b"", 0), *sections, (".names", STRTAB, names, 0)]
    body, table = b"", b""
    for name, kind, contents, link in sections:
        size = contents if kind == NOBITS else len(contents)
        at = names.index(b"\0" + name.encode() + b"\0") + 1 if name else 0
        table += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(body), size, link, 0, 1, 0)
        body += b"" if kind == NOBITS else contents
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(b"\x7fELF\2\1\1", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64),
        *(len(sections), len(sections) - 1),
    )
    return header + body + table


def sized(number: int, value: bytes) -> bytes:
    return struct.pack("<BBH", 4, number, len(value)) + value


def info(*params) -> bytes:
    """`.nv.info.KERNEL` of parameters (offset, size)."""
    found = [
        sized(0x17, struct.pack("<IHHI", 0, i, offset, size << 18))
        for i, (offset, size) in enumerate(params)
    ]
    return b"".join(
        [*found, struct.pack("<BBH", 3, 0x19, 64), sized(5, struct.pack("<3I", 8, 4, 2))]
    )


def cubin(second=None) -> bytes:
    """A cubin with one kernel `k`. `second`: another section with its parameters."""
    more = [] if second is None else [(".nv.info.k", PROGBITS, second, 0)]
    return elf(
        [
            (".text.k", PROGBITS, bytes(16), 0),
            (".nv.info.k", PROGBITS, info((0, 8), (8, 4), (16, 8)), 0),
            *more,
            (".nv.shared.k", NOBITS, 48, 0),
            (".nv.info", PROGBITS, sized(0x2F, struct.pack("<II", 1, 40)), 0),
            (
                ".symtab",
                SYMTAB,
                bytes(24) + struct.pack("<IBBHQQ", 1, 0, 0, 0, 0, 0),
                6 + len(more),
            ),
            (".strtab", STRTAB, b"\0k\0", 0),
        ]
    )


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """What the C reader says of each image, one line each."""
    program = tmp_path_factory.mktemp("modules") / "modules"
    flags = ["-std=gnu11", "-O1", "-g", "-w", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=undefined", "-no-pie", "-Wl,-z,lazy"]
    # what only the exported functions use
    flags += ["-Wl,--unresolved-symbols=ignore-all"]
    sources = [HERE / "modules_main.c", ROOT / "libintercept/base/environment.c"]
    command = ["cc", *flags, f"-I{ROOT / 'libintercept'}", *sources, "-o", program]
    subprocess.run(command, check=True)

    def ask(images) -> list[str]:
        sent = b"".join(struct.pack("<I", len(image)) + image for image in images)
        done = subprocess.run(
            [program], input=sent, capture_output=True, env={"ASAN_OPTIONS": "detect_leaks=0"}
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        return done.stdout.decode(errors="replace").splitlines()

    return ask


def damaged(sound: bytes, count: int):
    """Copies of `sound` with one word, byte or length changed."""
    source = random.Random(3)
    for at in range(0, len(sound) - 8, 2):
        word = struct.pack("<Q", source.choice(WORDS))[: source.choice([2, 4, 8])]
        yield sound[:at] + word + sound[at + len(word) :]
    for _ in range(count):
        at = source.randrange(len(sound))
        yield sound[:at] + bytes([source.randrange(256)]) + sound[at + 1 :]
        yield sound[:at]


def test_c_and_python_read_the_same(read):
    (kernel,) = read_kernels(cubin())
    assert kernel.params == ((0, 8), (8, 4), (16, 8))
    assert (kernel.max_threads, kernel.registers, kernel.static_shared_bytes) == (64, 40, 48)
    assert read([cubin()]) == [" k:64:40:48:0+8,8+4,16+8,"]


def test_two_sections_of_one_kernel_are_as_good_as_the_first(read):
    once = [" k:64:40:48:0+8,8+4,16+8,"]
    assert read([cubin(info()), cubin(info(*[(8 * i, 8) for i in range(9)]))]) == 2 * once


def test_no_damage_reaches_beyond_the_image(read):
    images = list(damaged(cubin(info()), 500))
    assert len(read(images)) == len(images)


def fat_library(*code: bytes) -> bytes:
    entries = b"".join(
        struct.pack("<HHIQIIHHIIIQQQ", 2, 0, 64, len(one), 0, 0, 0, 0, 90, 0, 0, 0, 0, 0) + one
        for one in code
    )
    section = struct.pack("<IHHQ", fatbin.FATBIN_MAGIC, 1, 16, len(entries)) + entries
    return elf([(".nv_fatbin", PROGBITS, section, 0)])


def kernels_of(path: Path, data: bytes) -> int:
    path.write_bytes(data)
    return len(fatbin.survey([path], 90).kernels)


def test_an_entry_without_a_size_does_not_stop_the_reader(tmp_path):
    library = fat_library(cubin(), cubin())
    assert kernels_of(tmp_path / "sound", library) == 1
    entry = 64 + fatbin._FATBIN_HEADER.size
    with pytest.raises(fatbin.FatbinError, match="entry"):
        kernels_of(tmp_path / "entry", library[: entry + 4] + bytes(12) + library[entry + 16 :])
    with pytest.raises(fatbin.FatbinError, match="fat binary"):
        kernels_of(tmp_path / "whole", library[:70] + bytes(10) + library[80:])


def test_a_damaged_library_is_one_error(tmp_path):
    sound = fat_library(cubin())
    for data in damaged(sound, 200):
        try:
            kernels_of(tmp_path / "library", data)
        except fatbin.FatbinError:
            pass


def test_a_damaged_cubin_is_one_error():
    for data in damaged(cubin(info()), 200):
        try:
            read_kernels(data)
        except CubinError:
            pass
