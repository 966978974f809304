"""Reads a process's log of its work, RUN_DIR/trace/NAME.log.

Why it exists: libintercept/trace/trace_log.c writes records, whose layouts are in protocol/.
trace/collect.py interprets them. A log may end anywhere, since processes are killed; the records
before the end are complete.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from phantora_ns.protocol import (
    LOG_CHUNK_BYTES,
    LOG_HEADER,
    LOG_SIGNATURE,
    LOG_TEXT,
    LOG_VERSION,
    LOG_WORK,
    TERM,
    LogCall,
    LogComm,
    LogMemory,
    LogOperator,
    LogRecord,
    LogSignature,
    LogStart,
    LogStep,
    LogText,
    LogThread,
    LogWork,
    Moment,
)


class Signature(NamedTuple):
    """What was launched: msgpack of [kind, fields] as in docs/wire-protocol.md, and what is known
    of a kernel's code."""

    number: int
    registers: int
    static_shared: int
    packed: bytes


class Work(NamedTuple):
    """A piece of GPU work, and the terms of its stream's time expression, (vertex, lag, work,
    contention). The expression ends with this work."""

    logged: LogWork
    terms: tuple[tuple[int, int, int, int], ...]


class Log:
    """One log. Raises OSError, or ValueError when the file is not a log or has another version."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < LOG_CHUNK_BYTES:
                raise ValueError(f"{path}: no log of a process's work")
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        first = next(self._records(), None)
        start = LogStart.unpack(self._map, first[2]) if first else None
        if first is None or first[0] != LogRecord.START or start.version != LOG_VERSION:
            raise ValueError(f"{path}: no log of version {LOG_VERSION} of a process's work")
        self.start = start
        self.read_to = 0
        """The byte behind the last record that `records` has yielded."""

    def close(self) -> None:
        """Closes the file."""
        self._map.close()

    def steps(self) -> dict[int, tuple[Moment, int]]:
        """step -> (when it begins, the number of the thread that marked it). Step 0 begins with the
        process. O(records)."""
        found = {}
        for kind, thread, at, _ in self._records():
            if kind == LogRecord.STEP:
                step = LogStep.unpack(self._map, at)
                found[step.number] = (step.begin, thread)
        return found

    def records(self, since: int = 0) -> Iterator[tuple[int, int, object]]:
        """(kind, number of the thread, record) in the order of the log, from the record at byte
        `since` on. A text is (number, text), a thread (tid, name)."""
        data = self._map
        term_bytes = TERM.size
        for kind, thread, at, end in self._records(since):
            self.read_to = end
            if kind == LogRecord.CALL:
                yield kind, thread, LogCall.unpack(data, at)
            elif kind == LogRecord.OPERATOR:
                yield kind, thread, LogOperator.unpack(data, at)
            elif kind == LogRecord.WORK:
                terms = tuple(
                    TERM.unpack_from(data, t) for t in range(at + LOG_WORK.size, end, term_bytes)
                )
                yield kind, thread, Work(LogWork.unpack(data, at), terms)
            elif kind == LogRecord.COMM:
                yield kind, thread, LogComm.unpack(data, at)
            elif kind == LogRecord.MEMORY:
                yield kind, thread, LogMemory.unpack(data, at)
            elif kind == LogRecord.TEXT:
                number, length = LogText.unpack(data, at)
                text = data[at + LOG_TEXT.size : at + LOG_TEXT.size + length]
                yield kind, thread, (number, text.decode("utf-8", "replace"))
            elif kind == LogRecord.SIGNATURE:
                number, length, registers, shared = LogSignature.unpack(data, at)
                packed = data[at + LOG_SIGNATURE.size : at + LOG_SIGNATURE.size + length]
                yield kind, thread, Signature(number, registers, shared, packed)
            elif kind == LogRecord.THREAD:
                tid, name = LogThread.unpack(data, at)
                yield kind, thread, (tid, name.split(b"\0")[0].decode("utf-8", "replace"))

    def _records(self, since: int = 0) -> Iterator[tuple[int, int, int, int]]:
        """(kind, thread, begin of its structure, end) of each record from byte `since` on."""
        data, size, chunk = self._map, len(self._map), LOG_CHUNK_BYTES
        unpack, header = LOG_HEADER.unpack_from, LOG_HEADER.size
        at = since
        while at + header <= size:
            kind, thread, length = unpack(data, at)
            if kind == 0:
                at = (at // chunk + 1) * chunk
                continue
            if length < header or at % chunk + length > chunk:
                raise ValueError(f"a damaged record at byte {at}")
            yield kind, thread, at + header, at + length
            at += length
