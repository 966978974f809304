"""Kernel signatures: what decides the time of a kernel or library call, and its 64-bit key.

Why it exists: ranks (C), the hub and the database must agree on one key for one launch. The key is
FNV-1a 64 over the canonical msgpack bytes of `[kind, fields]` (docs/wire-protocol.md,
"Signatures"); canonical means that every integer has its shortest form, floats are 64-bit, strings
are UTF-8 `str`, and byte strings are `bin`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from phantora_ns.protocol import MemoryKind, MemoryOp, SignatureKind

FNV_OFFSET = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF

KERNEL_FIELDS = ("name", "gx", "gy", "gz", "bx", "by", "bz", "smem", "cx", "cy", "cz", "identity")
GEMM_FIELDS = (
    "api",
    "transa",
    "transb",
    "m",
    "n",
    "k",
    "batch",
    "atype",
    "btype",
    "ctype",
    "dtype",
    "compute",
    "epilogue",
    "lda",
    "ldb",
    "ldc",
)
MEMORY_FIELDS = ("op", "bytes", "src", "dst")
CALL_FIELDS = ("name", "numbers")


class SignatureError(ValueError):
    """Bytes or fields that are not a signature; str() says what is wrong."""


class Kernel(NamedTuple):
    """A kernel launch as the estimators see it: `smem` is dynamic shared memory in bytes;
    `parameters` the parameter bytes with addresses zeroed, empty when unknown, in the place of the
    signature's identity."""

    name: str
    gx: int
    gy: int
    gz: int
    bx: int
    by: int
    bz: int
    smem: int
    cx: int
    cy: int
    cz: int
    parameters: bytes

    @property
    def blocks(self) -> int:
        return self.gx * self.gy * self.gz

    @property
    def block_threads(self) -> int:
        return self.bx * self.by * self.bz


class Gemm(NamedTuple):
    """Fields of a matrix multiplication, column-major as cuBLAS sees it; types are cudaDataType."""

    api: int
    transa: int
    transb: int
    m: int
    n: int
    k: int
    batch: int
    atype: int
    btype: int
    ctype: int
    dtype: int
    compute: int
    epilogue: int
    lda: int
    ldb: int
    ldc: int


class Memory(NamedTuple):
    """Fields of a copy (op 0) or set (op 1); places: 0 pageable host, 1 pinned host, 2 device, 3
    peer device."""

    op: int
    bytes: int
    src: int
    dst: int


def fnv1a64(data: bytes) -> int:
    """FNV-1a, 64 bit (Fowler, Noll, Vo; draft-eastlake-fnv). O(bytes).

    >>> hex(fnv1a64(b"a"))
    '0xaf63dc4c8601ec8c'
    """
    digest = FNV_OFFSET
    for byte in data:
        digest = ((digest ^ byte) * FNV_PRIME) & _MASK
    return digest


def encode(kind: int, fields: list | tuple) -> bytes:
    """The canonical bytes of a signature. Raises SignatureError when a field has no msgpack
    form."""
    if not isinstance(fields, (list, tuple)):
        raise SignatureError("the fields are no list")
    return pack([kind, list(fields)])


def pack(value: Any) -> bytes:
    """The canonical msgpack bytes of any value. Raises SignatureError when it has none."""
    try:
        return msgpack.packb(value, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise SignatureError(f"no canonical form: {error}") from error


def unpack(data: bytes) -> Any:
    """The value of msgpack bytes. Raises SignatureError."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise SignatureError(f"not msgpack: {error}") from error


def decode(data: bytes) -> tuple[int, list]:
    """(kind, fields) of canonical bytes. Raises SignatureError."""
    value = unpack(data)
    if (
        not isinstance(value, list)
        or len(value) != 2
        or type(value[0]) is not int
        or not isinstance(value[1], list)
    ):
        raise SignatureError("not an array [kind, fields]")
    return value[0], value[1]


def split(fields: list) -> tuple[str | None, bytes]:
    """(name, rest) of a signature's fields: their first when it is a text (a kernel's or function's
    name), and the canonical bytes of the others; (None, bytes of all) when it is none. Names are
    long and shared by many signatures."""
    return (
        (fields[0], pack(fields[1:]))
        if fields and isinstance(fields[0], str)
        else (None, pack(fields))
    )


def join(name: str | None, rest: bytes) -> list:
    """The inverse of `split`. Raises SignatureError when `rest` is no list."""
    others = unpack(rest)
    if not isinstance(others, list):
        raise SignatureError("not an array of fields")
    return others if name is None else [name, *others]


def key_of(data: bytes) -> int:
    """The key of canonical bytes: FNV-1a 64, never 0 (0 marks an empty slot of the kernel
    table)."""
    return fnv1a64(data) or 1


def key(kind: int, fields: list | tuple) -> int:
    """The key of a signature. Raises SignatureError when a field has no msgpack form."""
    return key_of(encode(kind, fields))


def launch_fields(fields: list | tuple) -> list:
    """A kernel's fields without the identity: what all its launches of equal dimensions have in
    common.

    The identity becomes nil, which no rank ever sends, so that a launch never meets a signature
    with an empty one.
    """
    return [*fields[:11], None]


def parse_kernel(fields: Any, parameters: bytes | None = None) -> Kernel:
    """Checks the fields of kind 0 and joins them with the launch's parameter bytes. Raises
    SignatureError.

    The identity is left out: it tells launches apart, and says nothing about sizes.
    """
    if not isinstance(fields, (list, tuple)) or len(fields) != len(KERNEL_FIELDS):
        raise SignatureError(f"a kernel has {len(KERNEL_FIELDS)} fields")
    name, *numbers, _ = fields
    if not isinstance(name, str) or not all(type(n) is int and n >= 0 for n in numbers):
        raise SignatureError("a kernel's fields are a name, then numbers")
    return Kernel(name, *numbers, parameters if isinstance(parameters, bytes) else b"")


def parse_numbers(kind: type[NamedTuple], fields: Any) -> Any:
    """Checks the fields of a signature of numbers only (Gemm, Memory) and names them. Raises
    SignatureError."""
    if not isinstance(fields, (list, tuple)) or len(fields) != len(kind._fields):
        raise SignatureError(f"{kind.__name__.lower()} has {len(kind._fields)} fields")
    if not all(type(n) is int for n in fields):
        raise SignatureError(f"the fields of {kind.__name__.lower()} are integers")
    return kind(*fields)


def describe(kind: int, fields: Any) -> str:
    """One line for people; any input is described as far as it makes sense."""
    try:
        if kind == SignatureKind.KERNEL:
            k = parse_kernel(fields)
            cluster = f" cluster {k.cx}x{k.cy}x{k.cz}" if k.cx else ""
            identity = fields[11].hex() if isinstance(fields[11], bytes) else ""
            sizes = f"({k.gx},{k.gy},{k.gz}), ({k.bx},{k.by},{k.bz}), {k.smem}"
            return f"{k.name} <<<{sizes}>>>{cluster} {identity}".rstrip()
        if kind == SignatureKind.GEMM:
            g = parse_numbers(Gemm, fields)
            names = "NTC"
            trans = "".join(names[t] if 0 <= t < 3 else "?" for t in (g.transa, g.transb))
            return (
                f"gemm {trans} {g.m}x{g.n}x{g.k} batch {g.batch} types {g.atype},{g.btype},{g.ctype},{g.dtype} "
                f"compute {g.compute} epilogue {g.epilogue}"
            )
        if kind == SignatureKind.MEMORY:
            m = parse_numbers(Memory, fields)
            kinds = MemoryKind.LABELS
            place = [kinds[p] if 0 <= p < len(kinds) else "?" for p in (m.src, m.dst)]
            return (
                f"copy {m.bytes} bytes {place[0]} -> {place[1]}"
                if m.op == MemoryOp.COPY
                else f"set {m.bytes} bytes"
            )
    except SignatureError:
        pass
    name = (
        SignatureKind.LABELS[kind]
        if isinstance(kind, int) and 0 <= kind < len(SignatureKind.LABELS)
        else f"kind {kind!r}"
    )
    return f"{name} {fields!r}"
