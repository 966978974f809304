"""Fat binaries of a shared library, and the kernel info file that the C interceptor maps.

Why it exists: the interceptor must tell scalars from pointers in each launch and answer
`cudaFuncGetAttributes`, within nanoseconds and without a dependency. So Python reads `.nv_fatbin`
once per installation and writes a file that C can search by mangled name without parsing it.
`python -m phantora_ns.kernels.binary.fatbin LIBRARY...` prints the content of a library.

The kernel info file, version 1, is little-endian, and every table is 8-byte aligned
(docs/kernel-times.md has the same layout):

    header, 72 bytes
        u64 magic 0x50484e534b494e46 ("PHNSKINF"), u32 version, u32 architecture (90 = sm_90),
        u32 kernels, u32 slots (a power of two, at most half full), u64 file bytes,
        u64 offset of each: slots, records, params, names;
        u32 params, u32 CRC-32 of everything after the header
    slots
        u32 each: record index + 1, 0 when empty;
        linear probing from fnv1a64(name) & (slots - 1)
    records, 40 bytes
        u64 fnv1a64(name), u32 name (offset in names), u32 name bytes without the NUL,
        u32 first param, u32 static shared bytes, u32 stack bytes per thread,
        u16 param count, u16 param bytes, u16 max threads, u16 registers, u32 reserved
    params
        {u16 offset, u16 size} each
    names
        NUL-terminated
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType

import numpy
import zstandard

from phantora_ns.home import cache_folder
from phantora_ns.kernels.binary.cubin import CubinError, KernelInfo, read_kernels
from phantora_ns.kernels.signature import FNV_OFFSET, FNV_PRIME
from phantora_ns.protocol import (
    KERNEL_INFO,
    KERNEL_INFO_HEADER,
    KERNEL_INFO_MAGIC,
    KERNEL_INFO_VERSION,
    KERNEL_PARAM,
    KernelInfoHeader,
)
from phantora_ns.protocol import KernelInfo as KernelInfoRecord

FATBIN_MAGIC = 0xBA55ED50
ENTRY_ELF = 2
FLAG_ZSTD = 0x8000
FLAG_LZ4 = 0x2000
FLAG_ARCH_SPECIFIC = 0x100000  # sm_90a and the like: runs on exactly this architecture

_FATBIN_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_U16_MAX = 0xFFFF
MAX_CODE_BYTES = 1 << 30
HASH_BLOCK = 1024  # names hashed at once; limits the padded table to a few megabytes


class FatbinError(Exception):
    """A library, fat binary or kernel info file that cannot be read; str() says which file and
    why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of GPU code in a fat binary. Offset and stored bytes describe the (compressed)
    payload."""

    kind: int
    architecture: int
    flags: int
    offset: int
    stored_bytes: int
    code_bytes: int


@dataclass
class Survey:
    """The kernels found in a set of libraries, and what could not be used. `unreadable`: entries of
    our architecture in a form that we cannot unpack; `without_code`: fat binaries with nothing (or
    only PTX) for it; `conflicts`: names with two different layouts."""

    kernels: dict[str, KernelInfo] = field(default_factory=dict)
    fat_binaries: int = 0
    without_code: int = 0
    unreadable: int = 0
    conflicts: int = 0


def _fatbin_section(data: mmap.mmap, path: Path) -> tuple[int, int]:
    if data[:5] != b"\x7fELF\x02":
        raise FatbinError(f"{path}: not a 64-bit ELF library")
    try:
        (table,) = struct.unpack_from("<Q", data, 0x28)
        entry_bytes, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
        raw = [_SECTION.unpack_from(data, table + i * entry_bytes) for i in range(count)]
        names = raw[names_index][4]
        for section in raw:
            at = names + section[0]
            if data[at : at + 11] == b".nv_fatbin\0":
                if section[4] + section[5] > len(data):
                    raise FatbinError(f"{path}: .nv_fatbin reaches past the end of the file")
                return section[4], section[5]
    except (struct.error, IndexError, OverflowError) as error:
        raise FatbinError(f"{path}: damaged ELF section table: {error}") from error
    return 0, 0


def fat_binaries(data: mmap.mmap, path: Path) -> Iterator[list[Entry]]:
    """The entries of each fat binary in the library's `.nv_fatbin`; none when the section is
    missing."""
    at, size = _fatbin_section(data, path)
    end = at + size
    while at + _FATBIN_HEADER.size <= end:
        magic, _, header_bytes, body_bytes = _FATBIN_HEADER.unpack_from(data, at)
        if magic != FATBIN_MAGIC:
            at += 8  # the linker pads fat binaries to 8 bytes
            continue
        entry_at, body_end = at + header_bytes, at + header_bytes + body_bytes
        if body_end > end or body_end < at + _FATBIN_HEADER.size:
            raise FatbinError(f"{path}: a fat binary at {at:#x} reaches past the end of .nv_fatbin")
        entries = []
        while entry_at + _ENTRY.size <= body_end:
            kind, _, header, padded, packed, _, _, _, arch, _, _, flags, _, unpacked = (
                _ENTRY.unpack_from(data, entry_at)
            )
            stored = packed if flags & (FLAG_ZSTD | FLAG_LZ4) else padded
            entries.append(Entry(kind, arch, flags, entry_at + header, stored, unpacked or padded))
            if header < _ENTRY.size:
                raise FatbinError(f"{path}: a damaged entry of a fat binary at {entry_at:#x}")
            entry_at += header + padded
        yield entries
        at = body_end


def choose_entries(entries: Iterable[Entry], architecture: int) -> list[Entry]:
    """The code that the driver would load on `architecture` (90 = sm_90), general code before
    architecture-specific code.

    A cubin runs on its own minor version and on later ones of the same major version. So the highest
    version that is not above ours wins (CUDA C++ Programming Guide, "Binary Compatibility").
    Architecture-specific code runs only on its own version.
    """
    elf = [e for e in entries if e.kind == ENTRY_ELF]
    specific = [e for e in elf if e.flags & FLAG_ARCH_SPECIFIC and e.architecture == architecture]
    general = [
        e
        for e in elf
        if not e.flags & FLAG_ARCH_SPECIFIC
        and e.architecture // 10 == architecture // 10
        and e.architecture <= architecture
    ]
    best = max((e.architecture for e in general), default=0)
    return [e for e in general if e.architecture == best] + specific


class Unpacker:
    """Unpacks the code of an entry. CUDA 13's compiler packs with zstd, CUDA 12's with LZ4."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()

    def __call__(self, code: bytes, entry: Entry) -> bytes:
        """Raises CubinError when the code is damaged, FatbinError when lz4 is missing."""
        if entry.code_bytes > MAX_CODE_BYTES:
            raise CubinError(f"damaged: {entry.code_bytes} bytes of code")
        if entry.flags & FLAG_ZSTD:
            try:
                # a frame that says its size is unpacked whole, whatever max_output_size is
                if zstandard.frame_content_size(code) > entry.code_bytes:
                    raise CubinError("damaged: more code than the fat binary says")
                return self._zstd.decompress(code, max_output_size=entry.code_bytes)
            except zstandard.ZstdError as error:
                raise CubinError(f"damaged: {error}") from None
        if entry.flags & FLAG_LZ4:
            try:
                return self._lz4.decompress(code, uncompressed_size=entry.code_bytes)
            except self._lz4.LZ4BlockError as error:
                raise CubinError(f"damaged: {error}") from None
        return code

    @cached_property
    def _lz4(self) -> ModuleType:
        # imported here, because no torch for CUDA 13 needs it
        try:
            import lz4.block
        except ImportError:
            raise FatbinError(
                "the GPU code is packed with LZ4: install the package lz4 (pip install lz4)"
            ) from None
        return lz4.block


def survey(libraries: Iterable[Path | str], architecture: int) -> Survey:
    """Reads every kernel for `architecture` in the libraries. Raises FatbinError (damaged file) or
    OSError (unreadable).

    Time: about one CPU second per 400 MB of unpacked code, nearly all in zstd; LZ4 is faster.
    """
    found = Survey()
    unpack = Unpacker()
    for library in map(Path, libraries):
        if not library.stat().st_size:
            raise FatbinError(f"{library}: is empty")
        with (
            open(library, "rb") as file,
            contextlib.closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data,
        ):
            for entries in fat_binaries(data, library):
                found.fat_binaries += 1
                chosen = choose_entries(entries, architecture)
                found.without_code += not chosen
                for entry in chosen:
                    _read_entry(data, entry, unpack, found)
    return found


def _read_entry(data: mmap.mmap, entry: Entry, unpack: Unpacker, found: Survey) -> None:
    code = data[entry.offset : entry.offset + entry.stored_bytes]
    try:
        kernels = read_kernels(unpack(code, entry))
    except CubinError:
        found.unreadable += 1
        return
    for kernel in kernels:
        known = found.kernels.get(kernel.name)
        found.conflicts += known is not None and known.params != kernel.params
        found.kernels[kernel.name] = kernel


def fnv1a64_many(names: list[bytes]) -> numpy.ndarray:
    """FNV-1a 64 of every name, as uint64. Makes one pass per byte position over a block of names of
    similar length."""
    order = sorted(range(len(names)), key=lambda i: -len(names[i]))
    result = numpy.empty(len(names), numpy.uint64)
    for start in range(0, len(order), HASH_BLOCK):
        block = order[start : start + HASH_BLOCK]
        longest = len(names[block[0]])
        padded = b"".join(names[i].ljust(longest, b"\0") for i in block)
        columns = numpy.ascontiguousarray(
            numpy.frombuffer(padded, numpy.uint8).reshape(len(block), longest).T
        )
        lengths = numpy.array([len(names[i]) for i in block])
        hashes = numpy.full(len(block), FNV_OFFSET, numpy.uint64)
        for position in range(longest):
            live = int(numpy.count_nonzero(lengths > position))  # the longer names come first
            head = hashes[:live]
            head ^= columns[position, :live]
            head *= numpy.uint64(FNV_PRIME)
        result[block] = hashes
    return result


def pack_kernel_info(kernels: Iterable[KernelInfo], architecture: int) -> bytes:
    """The kernel info file's bytes (layout above). Raises ValueError when a number does not fit its
    field."""
    kernels = list(kernels)
    names = [k.name.encode("ascii") for k in kernels]
    hashes = [int(h) for h in fnv1a64_many(names)]
    slot_count = 16
    while slot_count < 2 * len(kernels):
        slot_count *= 2
    slots = [0] * slot_count
    records, params, text = bytearray(), bytearray(), bytearray()
    first = 0
    for index, (kernel, name, digest) in enumerate(zip(kernels, names, hashes, strict=True)):
        if (
            max(
                kernel.param_bytes,
                *(o for o, _ in kernel.params),
                *(s for _, s in kernel.params),
                0,
            )
            > _U16_MAX
        ):
            raise ValueError(f"parameters of {kernel.name} do not fit 64 KiB")
        records += KernelInfoRecord(
            digest,
            len(text),
            len(name),
            first,
            kernel.static_shared_bytes,
            kernel.stack_bytes,
            len(kernel.params),
            kernel.param_bytes,
            kernel.max_threads,
            kernel.registers,
        ).pack()
        for offset, size in kernel.params:
            params += KERNEL_PARAM.pack(offset, size)
        first += len(kernel.params)
        text += name + b"\0"
        slot = digest & (slot_count - 1)
        while slots[slot]:
            slot = (slot + 1) & (slot_count - 1)
        slots[slot] = index + 1
    text += b"\0"  # the file's last byte is a NUL, even without kernels
    tables, offsets, at = (
        [struct.pack(f"<{slot_count}I", *slots), records, params, text],
        [],
        KERNEL_INFO_HEADER.size,
    )
    body = bytearray()
    for table in tables:
        offsets.append(at)
        body += table + bytes(-len(table) % 8)
        at = KERNEL_INFO_HEADER.size + len(body)
    header = KernelInfoHeader(
        KERNEL_INFO_MAGIC,
        KERNEL_INFO_VERSION,
        architecture,
        len(kernels),
        slot_count,
        at,
        *offsets,
        first,
        zlib.crc32(body),
    ).pack()
    return header + body


def is_kernel_info(path: Path, architecture: int) -> bool:
    """Whether the file is a complete, undamaged kernel info file of this version and
    architecture."""
    try:
        data = path.read_bytes()
        header = KernelInfoHeader.unpack(data)
    except (OSError, struct.error):
        return False
    return (
        (header.magic, header.version) == (KERNEL_INFO_MAGIC, KERNEL_INFO_VERSION)
        and (header.architecture, header.file_bytes) == (architecture, len(data))
        and zlib.crc32(memoryview(data)[KERNEL_INFO_HEADER.size :]) == header.checksum
    )


def read_kernel_info(path: Path | str) -> dict[str, KernelInfo]:
    """All kernels of a kernel info file. Raises FatbinError when it is damaged or of another
    version."""
    path = Path(path)
    try:
        data = path.read_bytes()
        header = KernelInfoHeader.unpack(data)
    except struct.error as error:
        raise FatbinError(f"{path}: shorter than a kernel info header") from error
    if not is_kernel_info(path, header.architecture):
        raise FatbinError(
            f"{path}: damaged, or not a kernel info file of version {KERNEL_INFO_VERSION}"
        )
    kernels = {}
    for index in range(header.kernels):
        record = KernelInfoRecord.unpack(data, header.records_at + index * KERNEL_INFO.size)
        name_at = header.names_at + record.name
        name = data[name_at : name_at + record.name_bytes].decode("ascii")
        first = header.params_at + record.first_param * KERNEL_PARAM.size
        layout = tuple(
            KERNEL_PARAM.unpack_from(data, first + i * KERNEL_PARAM.size)
            for i in range(record.param_count)
        )
        kernels[name] = KernelInfo(
            name,
            layout,
            record.param_bytes,
            record.max_threads,
            record.registers,
            record.static_shared_bytes,
            record.stack_bytes,
        )
    return kernels


def write_kernel_info(
    library_paths: Iterable[Path | str], arch: int, out_path: Path | str
) -> Survey:
    """Writes the kernel info file of the libraries for `arch` (90 = sm_90), replacing `out_path`
    atomically.

    Raises FatbinError (damaged library, or all of its code is packed in an unknown way), OSError
    (unreadable library, unwritable folder, full disk).
    """
    libraries = [Path(path) for path in library_paths]
    found = survey(libraries, arch)
    if found.unreadable and not found.kernels:
        names = ", ".join(path.name for path in libraries)
        raise FatbinError(
            f"{names}: no code for sm_{arch} can be read: it is damaged, or packed in an unknown way"
        )
    data = pack_kernel_info(found.kernels.values(), arch)
    out = Path(out_path)
    handle, temporary = tempfile.mkstemp(prefix=out.name + ".", dir=out.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, out)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return found


READER = "zstd, lz4"
"""What this reader understands: a file that an older one made may lack kernels."""
TORCH_LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_nvshmem.so")


def ensure_kernel_info(torch_lib_dir: Path | str, arch: int) -> Path:
    """The kernel info file of an installed torch for `arch` (90 = sm_90): built on first use
    (seconds), cached afterwards.

    Cached per library path, size, modification time and architecture; a damaged cache file is
    rebuilt. Raises FatbinError when the folder holds no libtorch_cuda.so or a damaged one, OSError
    when the cache folder cannot be written.
    """
    folder = Path(torch_lib_dir)
    libraries = [folder / name for name in TORCH_LIBRARIES if (folder / name).exists()]
    if not libraries or libraries[0].name != TORCH_LIBRARIES[0]:
        raise FatbinError(
            f"{folder}: no {TORCH_LIBRARIES[0]}; install a CUDA build of torch (pip install torch)"
        )
    identity = [str(KERNEL_INFO_VERSION), str(arch), READER]
    for library in libraries:
        status = library.stat()
        identity += [str(library.resolve()), str(status.st_size), str(status.st_mtime_ns)]
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:24]
    path = cache_folder() / f"kernels-sm{arch}-{digest}.bin"
    if not is_kernel_info(path, arch):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_kernel_info(libraries, arch, path)
    return path


def main(arguments: list[str]) -> int:
    """`python -m phantora_ns.kernels.binary.fatbin [--arch 90] LIBRARY...`: a summary per library; exit
    status 1 on a bad one."""
    arch = 90
    if arguments[:1] == ["--arch"] and len(arguments) > 1 and arguments[1].isdigit():
        arch, arguments = int(arguments[1]), arguments[2:]
    if not arguments:
        print(
            "usage: python -m phantora_ns.kernels.binary.fatbin [--arch 90] LIBRARY...",
            file=sys.stderr,
        )
        return 2
    for library in arguments:
        try:
            found = survey([library], arch)
        except (FatbinError, OSError) as error:
            print(error, file=sys.stderr)
            return 1
        kernels = found.kernels.values()
        print(
            f"{library}: sm_{arch}: {len(kernels)} kernels in {found.fat_binaries} fat binaries "
            f"({found.without_code} without code for it, {found.unreadable} unreadable entries, "
            f"{found.conflicts} names with two layouts)"
        )
        if kernels:
            print(
                f"  parameters {sum(len(k.params) for k in kernels)}, at most "
                f"{max(k.param_bytes for k in kernels)} bytes; "
                f"registers at most {max(k.registers for k in kernels)}; "
                f"static shared memory at most {max(k.static_shared_bytes for k in kernels)} bytes"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
