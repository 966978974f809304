"""Reads a process's log of its work, RUN_DIR/trace/<page>.log.

Why it exists: libintercept/trace/trace_log.c writes records of fixed structures, which this file mirrors;
what they mean is for trace_writer.py. A log may end anywhere, since processes are killed: a record
that is there is whole.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHUNK = 1 << 20
VERSION = 1
START, THREAD, TEXT, SIGNATURE, CALL, WORK, COMM, OPERATOR, STEP = range(1, 10)
FUNCTION, BACKWARD, USER = range(3)
_HEAD = struct.Struct("<HHI")
_START = struct.Struct("<Iiiiii")
_THREAD = struct.Struct("<iI16s")
_TEXT = struct.Struct("<II")
_SIGNATURE = struct.Struct("<IIII")
_CALL = struct.Struct("<IIQQqQq")
_WORK = struct.Struct("<IIIHHQQQ")
_COMM = struct.Struct("<IIIIQQIIIIIIQQQ")
_STEP = struct.Struct("<QQq")
_ENTRY = struct.Struct("<Qqqq")


class Moment(NamedTuple):
    """Of the host clock: `offset` ns after a node."""

    node: int
    offset: int


class Start(NamedTuple):
    """The process; -1 for what its environment does not say."""

    rank: int
    world_size: int
    node: int
    pid: int


class Signature(NamedTuple):
    """What was launched: msgpack of [kind, fields] as in docs/wire-protocol.md, and what is known
    of a kernel's code."""

    number: int
    registers: int
    static_shared: int
    packed: bytes


class Call(NamedTuple):
    """A host call, or an operator: then `correlation` is its kind. `external`: the operator's id,
    or that of the one around."""

    name: int
    correlation: int
    external: int
    begin: Moment
    end: Moment


class Work(NamedTuple):
    """GPU work. `entries` is its stream's head once it is done, (node, lag, work, drag), its own
    `duration` and `drag` in it."""

    signature: int
    correlation: int
    stream: int
    device: int
    source: int
    external: int
    duration: int
    drag: int
    entries: tuple[tuple[int, int, int, int], ...]


class Comm(NamedTuple):
    """A launch of communication; from `kind` on, its first operation (docs/wire-protocol.md,
    OPS)."""

    description: int
    correlation: int
    stream: int
    device: int
    external: int
    node: int
    kind: int
    dtype: int
    rank: int
    size: int
    count: int
    reserved: int
    send_bytes: int
    recv_bytes: int
    comm: int


class Log:
    """One log. Raises OSError, or ValueError when the file is none or of another version."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < CHUNK:
                raise ValueError(f"{path}: no log of a process's work")
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        first = next(self._records(), None)
        if (
            first is None
            or first[0] != START
            or _START.unpack_from(self._map, first[2])[0] != VERSION
        ):
            raise ValueError(f"{path}: no log of version {VERSION} of a process's work")
        self.start = Start(*_START.unpack_from(self._map, first[2])[1:5])

    def close(self) -> None:
        """Lets go of the file."""
        self._map.close()

    def steps(self) -> dict[int, tuple[Moment, int]]:
        """Where each step begins, and the number of the thread that says so; step 0 begins with the
        process. O(records)."""
        found = {}
        for kind, thread, at, _ in self._records():
            if kind == STEP:
                number, node, offset = _STEP.unpack_from(self._map, at)
                found[number] = (Moment(node, offset), thread)
        return found

    def records(self) -> Iterator[tuple[int, int, object]]:
        """(kind, number of the thread, record) in the order in which they were logged. A text is
        (number, text), a thread (tid, name)."""
        data = self._map
        entry_bytes = _ENTRY.size
        for kind, thread, at, end in self._records():
            if kind in (CALL, OPERATOR):
                name, correlation, external, node, offset, end_node, end_offset = _CALL.unpack_from(
                    data, at
                )
                yield (
                    kind,
                    thread,
                    Call(
                        name,
                        correlation,
                        external,
                        Moment(node, offset),
                        Moment(end_node, end_offset),
                    ),
                )
            elif kind == WORK:
                entries = tuple(
                    _ENTRY.unpack_from(data, e) for e in range(at + _WORK.size, end, entry_bytes)
                )
                yield kind, thread, Work(*_WORK.unpack_from(data, at), entries)
            elif kind == COMM:
                yield kind, thread, Comm(*_COMM.unpack_from(data, at))
            elif kind == TEXT:
                number, length = _TEXT.unpack_from(data, at)
                text = data[at + _TEXT.size : at + _TEXT.size + length]
                yield kind, thread, (number, text.decode("utf-8", "replace"))
            elif kind == SIGNATURE:
                number, length, registers, shared = _SIGNATURE.unpack_from(data, at)
                packed = data[at + _SIGNATURE.size : at + _SIGNATURE.size + length]
                yield kind, thread, Signature(number, registers, shared, packed)
            elif kind == THREAD:
                tid, _, name = _THREAD.unpack_from(data, at)
                yield kind, thread, (tid, name.split(b"\0")[0].decode("utf-8", "replace"))

    def _records(self) -> Iterator[tuple[int, int, int, int]]:
        """(kind, thread, where its structure begins, where it ends)."""
        data, size = self._map, len(self._map)
        unpack = _HEAD.unpack_from
        at = 0
        while at + _HEAD.size <= size:
            kind, thread, length = unpack(data, at)
            if kind == 0:
                at = (at // CHUNK + 1) * CHUNK
                continue
            if length < _HEAD.size or at % CHUNK + length > CHUNK:
                raise ValueError(f"a damaged record at byte {at}")
            yield kind, thread, at + _HEAD.size, at + length
            at += length
