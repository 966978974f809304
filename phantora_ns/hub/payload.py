"""What a communicator operation does to values: the final content of each member's receive buffer.

Why it exists: small tensors carry real values through collectives (object collectives, size
exchanges, norms), so the hub computes what NCCL would. Reductions go in rank order. 16-bit floats are
added in fp32 and rounded once to nearest even. NCCL's own order depends on its ring, so the last bit
may differ from a real run, but never between two simulated runs. 8-bit floats and reductions defined
by the caller are refused. The answer is then empty ("no values"), never a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phantora_ns.protocol import Collective, DataType, Reduction

_NUMPY_TYPES = {
    DataType.INT8: np.int8,
    DataType.UINT8: np.uint8,
    DataType.INT32: np.int32,
    DataType.UINT32: np.uint32,
    DataType.INT64: np.int64,
    DataType.UINT64: np.uint64,
    DataType.FP16: np.float16,
    DataType.FP32: np.float32,
    DataType.FP64: np.float64,
    DataType.BF16: np.uint16,
}
_COMBINE = {
    Reduction.SUM: np.add,
    Reduction.PROD: np.multiply,
    Reduction.MAX: np.maximum,
    Reduction.MIN: np.minimum,
    Reduction.AVG: np.add,
}


def _decode(data: bytes, dtype: int) -> np.ndarray:
    values = np.frombuffer(data, _NUMPY_TYPES[dtype])
    if dtype == DataType.BF16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _encode(values: np.ndarray, dtype: int) -> bytes:
    if dtype != DataType.BF16:
        return values.astype(_NUMPY_TYPES[dtype]).tobytes()
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (
        (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    ).astype(np.uint16)
    quiet_nan = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(values), quiet_nan, rounded).tobytes()


def reduce_bytes(parts: list[bytes], dtype: int, redop: int) -> bytes:
    """The reduction of equally long buffers, in list order. Empty when the type, the operation or a
    ragged length is refused."""
    if (
        dtype not in _NUMPY_TYPES
        or redop not in _COMBINE
        or len(parts[0]) % np.dtype(_NUMPY_TYPES[dtype]).itemsize
    ):
        return b""
    with np.errstate(all="ignore"):
        arrays = [_decode(part, dtype) for part in parts]
        total = arrays[0]
        for array in arrays[1:]:
            total = _COMBINE[redop](total, array)
        if redop == Reduction.AVG:
            if total.dtype.kind == "f":
                total = total / total.dtype.type(len(parts))
            else:  # integer division in C, and so in NCCL, rounds toward zero
                quotient = total // len(parts)
                total = (
                    quotient + ((total < 0) & (quotient * len(parts) != total))
                    if total.dtype.kind == "i"
                    else quotient
                )
        return _encode(total, dtype)


class Exchange:
    """The values of one transfer: what each rank sent, how many results are still wanted, and which
    FETCHes wait.

    `complete`: every member has issued its part. `expired`: the values were dropped before all
    results had been fetched. `unknown`: the ranks whose part was not computed. `absent()`: the
    clients that have not issued their part. `what`: the operation, for a person.
    """

    __slots__ = (
        "kind",
        "count_bytes",
        "dtype",
        "redop",
        "root",
        "size",
        "payloads",
        "wanted",
        "waiters",
        "complete",
        "expired",
        "unknown",
        "absent",
        "what",
        "_reduced",
    )

    def __init__(
        self, kind: int, count_bytes: int, dtype: int, redop: int, root: int, size: int
    ) -> None:
        self.kind = kind
        self.count_bytes = count_bytes
        self.dtype = dtype
        self.redop = redop
        self.root = root
        self.size = size
        self.payloads: dict[int, bytes] = {}
        self.wanted = 0
        self.waiters: list[Any] = []  # communicators.Waiter
        self.complete = False
        self.expired = False
        self.unknown: set[int] = set()
        self.absent: Callable[[], list[int]] = list
        self.what = ""
        self._reduced: bytes | None = None

    def held_bytes(self) -> int:
        """The memory that its values take."""
        return sum(map(len, self.payloads.values()))

    def drop(self) -> None:
        """Drops the values."""
        self.payloads = {}
        self._reduced = None

    def send_bytes(self) -> int:
        """The length of a member's send buffer."""
        whole = self.kind in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL, Collective.SCATTER)
        return self.count_bytes * (self.size if whole else 1)

    def result(self, rank: int) -> bytes:
        """The receive buffer of `rank`. Empty when the operation gives it none, or when no value was
        sent."""
        kind, count = self.kind, self.count_bytes
        if kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE):
            if kind == Collective.REDUCE and rank != self.root:
                return b""
            total = self._reduce()
            return (
                total[rank * count : (rank + 1) * count]
                if kind == Collective.REDUCE_SCATTER
                else total
            )
        if kind in (Collective.SEND, Collective.RECV, Collective.BROADCAST, Collective.SCATTER):
            data = (
                next(iter(self.payloads.values()), b"")
                if kind in (Collective.SEND, Collective.RECV)
                else self.payloads.get(self.root, b"")
            )
            return data[rank * count : (rank + 1) * count] if kind == Collective.SCATTER else data
        if kind == Collective.GATHER and rank != self.root or not self.payloads:
            return b""
        if kind == Collective.ALL_TO_ALL:
            return b"".join(
                self._part(source)[rank * count : (rank + 1) * count] for source in range(self.size)
            )
        return b"".join(self._part(source) for source in range(self.size))

    def result_unknown(self) -> bool:
        """Whether a result differs from that of real GPUs: a part of it was not computed, or it
        cannot be computed."""
        if self.expired:
            return True
        if (
            self.kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)
            and self.payloads
            and not self._reduce()
        ):
            return True
        return (
            self.root in self.unknown
            if self.kind in (Collective.BROADCAST, Collective.SCATTER)
            else bool(self.unknown)
        )

    def _part(self, rank: int) -> bytes:
        part = self.payloads.get(rank)
        return bytes(self.send_bytes()) if part is None else part

    def _reduce(self) -> bytes:
        if self._reduced is None:
            self._reduced = b""
            if self.payloads:
                self._reduced = reduce_bytes(
                    [self._part(rank) for rank in range(self.size)], self.dtype, self.redop
                )
        return self._reduced
