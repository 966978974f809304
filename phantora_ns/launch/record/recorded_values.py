"""The values of --values replay: the option, the file that leaders make, and the file of the ranks.

Why it exists: only a GPU can know some of the values that a job reads (docs/values.md). A leader
that records values (PHANTORA_LEAD_RECORD=values) appends them to RUN_DIR/values.rec. `keep` merges
them with those of other ranks into one file, sorted so that ranks can look values up in the mapped
file (libintercept/simulated/values/replay.c, as RUN_DIR/values.tbl). Both layouts are in
docs/wire-protocol.md. Rule: a file is written whole or not at all.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from phantora_ns.kernels.database.databases import user_path
from phantora_ns.kernels.signature import fnv1a64
from phantora_ns.launch.errors import LaunchError, UsageError
from phantora_ns.protocol import (
    VALUE_RECORD,
    VALUE_RECORD_FILE,
    VALUE_TABLE_ENTRY,
    VALUE_TABLE_HEADER,
    VALUE_TABLE_MAGIC,
    VALUE_TABLE_VERSION,
    ValueRecord,
    ValueTableEntry,
    ValueTableHeader,
)
from phantora_ns.whole_file import replacing

ZEROS, BALANCED, REPLAY = "zeros", "balanced", "replay"
POLICIES = (ZEROS, BALANCED, REPLAY)


@dataclass(frozen=True)
class ValuesOption:
    """The option, checked. `file`: the values to replay; None with the other policies."""

    policy: str = BALANCED
    file: Path | None = None


class Value(NamedTuple):
    """A value that a GPU computed. `replay_key`: the operation that read it, in words. `occurrence`:
    how often this key was read before in the process."""

    replay_key: str
    rank: int
    occurrence: int
    dtype: int  # c10::ScalarType
    data: bytes


def default_file(gpu: str, argv: Sequence[str], cwd: str) -> Path:
    """The default file of a job's values: one for each command line and folder."""
    job = hashlib.sha256(
        json.dumps([list(argv), cwd]).encode("utf-8", "surrogateescape")
    ).hexdigest()
    return Path(user_path(gpu)).parent.parent / "values" / gpu / f"{job[:16]}.values"


def check(text: str, gpu: str, argv: Sequence[str], cwd: str) -> ValuesOption:
    """Reads --values: a policy, or replay:FILE. Raises UsageError, also when nothing was
    recorded."""
    policy, colon, name = text.partition(":")
    if policy not in POLICIES or (colon and policy != REPLAY):
        raise UsageError(
            f"--values {text} is not one of {', '.join(POLICIES)}, or {REPLAY}:FILE; on the command line; see "
            "docs/values.md"
        )
    if policy != REPLAY:
        return ValuesOption(policy)
    if colon and not name:
        raise UsageError(
            f"--values {text} names no file; on the command line; give {REPLAY}:FILE, or {REPLAY} alone"
        )
    path = Path(os.path.abspath(name)) if name else default_file(gpu, argv, cwd)
    if not path.is_file():
        missing, output = (
            (f"there is no file {path}", f" -o {name}")
            if name
            else ("no values of this command are recorded", "")
        )
        raise UsageError(
            f"--values {text}: {missing}; on the command line; record them on a machine with a GPU: phantora-ns "
            f"profile --record values{output} COMMAND"
        )
    try:
        with open(path, "rb") as file:
            _header(file.read(VALUE_TABLE_HEADER.size), path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--values {text}: {error}; on the command line; name a file made by phantora-ns profile --record "
            "values"
        ) from error
    return ValuesOption(REPLAY, path)


def read_recorded(data: bytes, rank: int) -> Iterator[Value]:
    """The values in a leader's records, in order. A last one that is cut short, because the leader was
    killed, is left out."""
    at = 0
    while at + VALUE_RECORD.size <= len(data):
        size, occurrence, length, dtype = ValueRecord.unpack(data, at)
        at += VALUE_RECORD.size
        if at + length + size > len(data):
            return
        yield Value(
            data[at : at + length].decode(),
            rank,
            occurrence,
            dtype,
            data[at + length : at + length + size],
        )
        at += length + size


def write(path: Path, values: Sequence[Value], about: Mapping[str, Any]) -> None:
    """Writes a file of values. `about` describes the job; it is JSON. Raises OSError."""
    meta = json.dumps(dict(about), sort_keys=True).encode()
    rows = sorted(
        (fnv1a64(value.replay_key.encode()), value.rank, value.occurrence, value)
        for value in values
    )
    offset = VALUE_TABLE_HEADER.size + VALUE_TABLE_ENTRY.size * len(rows)
    index, blobs = bytearray(), bytearray()
    for key, rank, occurrence, value in rows:
        replay_key = value.replay_key.encode()
        index += VALUE_TABLE_ENTRY.pack(
            key,
            offset + len(blobs),
            rank,
            occurrence,
            len(value.data),
            len(replay_key),
            value.dtype,
        )
        blobs += replay_key + value.data
    path.parent.mkdir(parents=True, exist_ok=True)
    header = ValueTableHeader(
        VALUE_TABLE_MAGIC, VALUE_TABLE_VERSION, len(rows), offset + len(blobs), len(meta)
    )
    with replacing(path) as scratch:
        scratch.write_bytes(header.pack() + index + blobs + meta)


def read(path: Path) -> tuple[dict[str, Any], list[Value]]:
    """(about, values) of a file. Raises OSError, and ValueError for a file of another kind."""
    data = path.read_bytes()
    entries, meta_at, meta_bytes = _header(data, path)
    values = []
    try:
        for row in range(entries):
            _, offset, rank, occurrence, size, length, dtype = ValueTableEntry.unpack(
                data, VALUE_TABLE_HEADER.size + row * VALUE_TABLE_ENTRY.size
            )
            if offset + length + size > len(data):
                raise ValueError("cut short")
            replay_key = data[offset : offset + length].decode()
            values.append(
                Value(
                    replay_key,
                    rank,
                    occurrence,
                    dtype,
                    data[offset + length : offset + length + size],
                )
            )
        return json.loads(data[meta_at : meta_at + meta_bytes]), values
    except (struct.error, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _header(data: bytes, path: Path) -> tuple[int, int, int]:
    header = ValueTableHeader.unpack(data) if len(data) >= VALUE_TABLE_HEADER.size else None
    if header is None or header.magic != VALUE_TABLE_MAGIC:
        raise ValueError(f"{path} holds no recorded values")
    if header.version != VALUE_TABLE_VERSION:
        raise ValueError(
            f"{path} is of version {header.version}, and this phantora-ns reads version "
            f"{VALUE_TABLE_VERSION}"
        )
    return header.entries, header.meta_offset, header.meta_bytes


def describe(argv: Sequence[str], cwd: str) -> dict[str, Any]:
    """What a file of values says about its job."""
    return {
        "command": list(argv),
        "cwd": cwd,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def keep(run_dir: Path, into: Path, rank: int, about: Mapping[str, Any]) -> int:
    """Replaces this rank's values in `into` by those that the leader of a run recorded; returns how
    many there are.

    If there are none, the file stays as it is. Raises LaunchError.
    """
    try:
        recorded = run_dir / VALUE_RECORD_FILE
        fresh = list(read_recorded(recorded.read_bytes(), rank)) if recorded.is_file() else []
        if fresh:
            others = (
                [value for value in read(into)[1] if value.rank != rank] if into.exists() else []
            )
            write(into, [*others, *fresh], about)
        return len(fresh)
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"the recorded values are not kept: {error}; on this machine; choose another file with -o"
        ) from error
