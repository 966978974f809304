"""Why it exists: shared libraries with GPU code of a few kernels, packed in each way that compilers pack it, and what
phantora-ns makes of one: the kernel info file."""

import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import lz4.block
import zstandard

from phantora_ns.kernels.binary import fatbin
from phantora_ns.kernels.binary.cubin import (
    KPARAM_INFO,
    KPARAM_INFO_V2,
    KPARAM_SIZE_SHIFT,
    MAX_THREADS,
    MIN_STACK_SIZE,
    PARAM_BYTES,
    REGISTERS,
)

ARCHITECTURE = 90
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS, _SYMBOLS = 8, 2


class Section(NamedTuple):
    """Of an ELF file. `size`: of a section without content."""

    name: str
    content: bytes = b""
    kind: int = 1
    link: int = 0
    size: int = 0


def elf(sections: Sequence[Section]) -> bytes:
    """A file of these sections, after the empty one and the one with the names; numbers of sections begin with 2."""
    names = b"\0.names\0"
    body, table = bytearray(64), [_SECTION.pack(*[0] * 10), b""]
    for section in sections:
        body += bytes(-len(body) % 8)
        size = section.size or len(section.content)
        table.append(
            _SECTION.pack(len(names), section.kind, 0, 0, len(body), size, section.link, 0, 8, 0)
        )
        names += section.name.encode() + b"\0"
        body += section.content
    table[1] = _SECTION.pack(1, 3, 0, 0, len(body), len(names), 0, 0, 1, 0)
    body += names + bytes(-len(names) % 8)
    body[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", body, 0x28, len(body))
    struct.pack_into("<HHH", body, 0x3A, _SECTION.size, len(table), 1)
    return bytes(body) + b"".join(table)


def _sized(number: int, content: bytes) -> bytes:
    return struct.pack("<BBH", 4, number, len(content)) + content


def cubin(names: Sequence[str]) -> bytes:
    """The code of kernels of three parameters each."""
    strings = b"\0"
    symbols = bytes(24)
    common, own = b"", []
    for number, name in enumerate(names, 1):
        symbols += struct.pack("<I", len(strings)) + bytes(20)
        strings += name.encode() + b"\0"
        common += _sized(REGISTERS, struct.pack("<II", number, 32))
        common += _sized(MIN_STACK_SIZE, struct.pack("<II", number, 16))
        info = struct.pack("<BBH", 3, PARAM_BYTES, 20)
        info += _sized(KPARAM_INFO, struct.pack("<IHHI", 0, 0, 0, 8 << KPARAM_SIZE_SHIFT))
        info += _sized(KPARAM_INFO, struct.pack("<IHHI", 0, 1, 8, 4 << KPARAM_SIZE_SHIFT))
        info += _sized(KPARAM_INFO_V2, struct.pack("<IHHI", 0, 2, 16, 4 | 0x0500 << 16))
        info += _sized(MAX_THREADS, struct.pack("<III", 128, 2, 1))
        own += [Section(f".nv.info.{name}", info)]
        own += [Section(f".nv.shared.{name}", kind=_NO_BITS, size=4096)]
    first = [Section(".strtab", strings, 3), Section(".symtab", symbols, _SYMBOLS, 2)]
    return elf([*first, Section(".nv.info", common), *own])


def _entry(code: bytes, flags: int) -> bytes:
    packed = code
    if flags & fatbin.FLAG_ZSTD:
        packed = zstandard.ZstdCompressor().compress(code)
    if flags & fatbin.FLAG_LZ4:
        packed = lz4.block.compress(code, store_size=False)
    stored = packed + bytes(-len(packed) % 8)
    numbers = (fatbin.ENTRY_ELF, 0x101, 64, len(stored), len(packed), 0, 0, 0, ARCHITECTURE)
    return struct.pack("<HHIQIIHHIIIQQQ", *numbers, 0, 0, flags, 0, len(code)) + stored


def library(*entries: bytes) -> bytes:
    """A library with one fat binary of each entry, which the linker pads."""
    binaries = b"".join(
        struct.pack("<IHHQ", fatbin.FATBIN_MAGIC, 1, 16, len(entry)) + entry + bytes(8)
        for entry in entries
    )
    return elf([Section(".text", b"\xc3"), Section(".nv_fatbin", binaries)])


def libraries() -> list[bytes]:
    """Plain, packed with zstd and with LZ4, all three, and code for this architecture alone."""
    plain = _entry(cubin(["_Z3addPfS_i", "_Z4copyPvS_m"]), 0)
    zstd = _entry(cubin(["_Z3mulPfS_i"]), fatbin.FLAG_ZSTD)
    lz4 = _entry(cubin(["_Z3divPfS_i"]), fatbin.FLAG_LZ4)
    own = _entry(cubin(["_Z5wgmmav"]), fatbin.FLAG_ZSTD | fatbin.FLAG_ARCH_SPECIFIC)
    return [library(plain), library(zstd), library(plain, zstd + own, lz4)]


def use_library(path: Path) -> None:
    """The kernel info file of it, which must be one."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.bin"
        found = fatbin.write_kernel_info([path], ARCHITECTURE, out)
        assert fatbin.read_kernel_info(out) == found.kernels
