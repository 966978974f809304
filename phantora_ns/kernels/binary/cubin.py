"""What a compiled CUDA kernel says about itself: the `.nv.info` attributes of a cubin.

Why it exists: a launch passes raw parameter bytes. Only the GPU code says which of them are
pointers, and how many registers and how much shared memory the kernel uses. Reading it must not need
a CUDA tool.

A cubin is an ELF64 file. Section `.nv.info.<kernel>` holds the attributes of one kernel. Section
`.nv.info` holds those keyed by symbol index. The size of `.nv.shared.<kernel>` is the kernel's static
shared memory. An attribute starts with u8 format and u8 number. Format 4 continues with a u16 length
and that many bytes, formats 1 to 3 with a u16 value. The numbers are those of NVIDIA's cubin format
as `cuobjdump -elf` (CUDA 13.0) names them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

FORMAT_SIZED = 4
MAX_THREADS = 0x05  # EIATTR_MAX_THREADS: __launch_bounds__, three u32
REQUIRED_THREADS = 0x10  # EIATTR_REQNTID: three u32
MIN_STACK_SIZE = 0x12  # EIATTR_MIN_STACK_SIZE: u32 symbol, u32 bytes per thread
# EIATTR_KPARAM_INFO: u32 index, u16 ordinal, u16 offset, u32 with the size from bit 18.
KPARAM_INFO = 0x17
# EIATTR_KPARAM_INFO_V2, of kernels with more than 4 KiB of parameters: u32 index, u16 ordinal,
# u16 offset, u32 with the size in its low half. The other half has flags (0x0500 in code for sm_100).
KPARAM_INFO_V2 = 0x45
PARAM_BYTES = 0x19  # EIATTR_CBANK_PARAM_SIZE: value is the size of all parameters
REGISTERS = 0x2F  # EIATTR_REGCOUNT: u32 symbol, u32 registers per thread
KPARAM_SIZE_SHIFT = 18
KPARAM_V2_SIZE = 0xFFFF
THREADS_LIMIT = 1024  # threads per block without __launch_bounds__, every architecture since sm_20

# As much as the kernel info file holds, and far more than a GPU has.
_MOST_THREADS_OR_REGISTERS = 0xFFFF
_MOST_SHARED_BYTES = 0xFFFFFFFF

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL_BYTES = 24
_SHT_SYMTAB = 2
_INFO = ".nv.info."
_SHARED = ".nv.shared."


class CubinError(Exception):
    """The bytes are not a cubin that we can read."""


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What a launch needs to know of one kernel. Sizes in bytes; `params` as (offset, size) in the
    order of declaration."""

    name: str
    params: tuple[tuple[int, int], ...]
    param_bytes: int
    max_threads: int
    registers: int
    static_shared_bytes: int
    stack_bytes: int


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("ascii")


def _sections(data: bytes) -> list[tuple[str, int, int, int, int]]:
    """(name, type, offset, size, link) of every section."""
    if data[:5] != b"\x7fELF\x02":
        raise CubinError("not an ELF64 file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    if entry_bytes != _SECTION.size:  # with 0 one section would be read 65,535 times
        raise CubinError(f"sections of {entry_bytes} bytes each")
    raw = [_SECTION.unpack_from(data, table + i * entry_bytes) for i in range(count)]
    names = raw[names_index][4]
    return [(_text(data, names + s[0]), s[1], s[4], s[5], s[6]) for s in raw]


def _attributes(data: bytes, at: int, end: int):
    """Yields (number, short value or None, offset of the sized value, its length)."""
    while at < end:
        form, number, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == FORMAT_SIZED:
            yield number, None, at, value
            at += value
        else:
            yield number, value, 0, 0


def read_kernels(data: bytes) -> list[KernelInfo]:
    """Every kernel of a cubin, in file order. Raises CubinError when the bytes are not one. O(size
    of the tables)."""
    try:
        return _read_kernels(data)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise CubinError(f"damaged cubin: {error}") from error


def _read_kernels(data: bytes) -> list[KernelInfo]:
    sections = _sections(data)
    shared = {
        name[len(_SHARED) :]: size for name, _, _, size, _ in sections if name.startswith(_SHARED)
    }
    symbols = next(
        (
            (offset, sections[link][2])
            for _, kind, offset, _, link in sections
            if kind == _SHT_SYMTAB
        ),
        None,
    )

    def symbol_name(index: int) -> str:
        if symbols is None:
            raise CubinError("attributes refer to symbols, but there is no symbol table")
        table, strings = symbols
        (name,) = struct.unpack_from("<I", data, table + index * _SYMBOL_BYTES)
        return _text(data, strings + name)

    registers: dict[str, int] = {}
    stacks: dict[str, int] = {}
    own: list[tuple[str, list, int, int]] = []
    for name, _, offset, size, _ in sections:
        if name == ".nv.info":
            for number, _, at, _ in _attributes(data, offset, offset + size):
                if number in (REGISTERS, MIN_STACK_SIZE):
                    symbol, value = struct.unpack_from("<II", data, at)
                    (registers if number == REGISTERS else stacks)[symbol_name(symbol)] = value
        elif name.startswith(_INFO):
            own.append((name[len(_INFO) :], *_own_attributes(data, offset, offset + size)))
    kernels = [
        KernelInfo(
            name,
            tuple(params),
            param_bytes,
            threads,
            registers.get(name, 0),
            shared.get(name, 0),
            stacks.get(name, 0),
        )
        for name, params, param_bytes, threads in own
    ]
    for kernel in kernels:
        if (
            max(kernel.max_threads, kernel.registers) > _MOST_THREADS_OR_REGISTERS
            or kernel.static_shared_bytes > _MOST_SHARED_BYTES
        ):
            raise CubinError(f"damaged cubin: more than a GPU has, of {kernel.name}")
    return kernels


def _own_attributes(data: bytes, at: int, end: int) -> tuple[list[tuple[int, int]], int, int]:
    params = []
    param_bytes = 0
    threads = THREADS_LIMIT
    for number, value, where, _ in _attributes(data, at, end):
        if number == KPARAM_INFO:
            _, ordinal, offset, bits = struct.unpack_from("<IHHI", data, where)
            params.append((ordinal, offset, bits >> KPARAM_SIZE_SHIFT))
        elif number == KPARAM_INFO_V2:
            _, ordinal, offset, size = struct.unpack_from("<IHHI", data, where)
            params.append((ordinal, offset, size & KPARAM_V2_SIZE))
        elif number == PARAM_BYTES:
            param_bytes = value or 0
        elif number in (MAX_THREADS, REQUIRED_THREADS):
            x, y, z = struct.unpack_from("<III", data, where)
            threads = x * y * z
    params.sort()
    return [(offset, size) for _, offset, size in params], param_bytes, threads
