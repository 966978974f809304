"""The file that a run's measurements go into while the job runs.

Why it exists: a leader measures for minutes on a GPU that may be needed elsewhere, and whatever
ends the job must not cost what has been measured. So samples are committed at least every COMMIT_S
while they come in (`flush` in the caller's idle moments does the same), to a write-ahead log that
survives the death of this process; a reader may look on. Closing it leaves one plain file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from phantora_ns.kernels import signature
from phantora_ns.kernels.database import schema
from phantora_ns.kernels.database.durations import Accumulator
from phantora_ns.kernels.database.records import (
    Host,
    Run,
    Sample,
    new_uid,
    pack,
    pack_context,
    run_fields,
)
from phantora_ns.kernels.database.schema import DatabaseError, reported
from phantora_ns.kernels.database.writer import Writer

COMMIT_S = 1.0
COMMIT_SAMPLES = 500
"""A commit costs some milliseconds, mostly sorting what was kept; with fewer durations than this it
waits for COMMIT_S."""


class _Entry:
    """One signature of the recording: its number in the file once it is there, and its durations so
    far."""

    __slots__ = ("context", "data", "durations", "first", "number")

    def __init__(self, data: bytes):
        self.data = data
        self.number: int | None = None
        self.context: bytes | None = None
        self.first = True
        self.durations = Accumulator(signature.key_of(data))


class Recording:
    """A new database with one run in it, growing.

    `meta`: `gpu` (the model's name, such as "h200"), any of schema.RUN_FIELDS, and `uid` where the
    run has a name of its own (else a random one). Raises DatabaseError when the file exists or
    cannot be written, or for a field that no run has. Not for several threads at once. `clock`
    gives seconds.
    """

    def __init__(
        self, path: Path | str, meta: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ):
        self.path = Path(path)
        meta = dict(meta)
        gpu, uid = meta.pop("gpu", None), meta.pop("uid", None) or new_uid()
        if not isinstance(gpu, str) or not isinstance(uid, str):
            raise DatabaseError(f"{path}: a recording needs the name of the GPU model")
        self._fields = run_fields(meta)
        self._connection = schema.make(self.path, gpu, wal=True)
        self._writer = Writer(self._connection)
        self._entries: dict[bytes, _Entry] = {}
        self._changed: dict[bytes, _Entry] = {}
        self._fresh: list[_Entry] = []
        self._host: Host | None = None
        self._described = False
        self._clock, self._due, self._waiting = clock, 0.0, 0
        self.uid, self.durations = uid, 0
        with reported(self.path, "written"):
            self._run = self._writer.run(Run(uid, self._fields))

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def signatures(self) -> int:
        """How many signatures have been measured so far."""
        return len(self._entries)

    def add(
        self,
        kind: int,
        fields: list | tuple,
        context: list | tuple | None,
        durations_ns: Iterable[int],
        first: bool = False,
    ) -> int:
        """Takes measured durations of a signature, all or none; returns how many.

        `context`: LOOKUP's (docs/wire-protocol.md). `first`: the leader stopped for each of these
        launches, so that nothing ran before them; they stand only until a launch in the job's own
        flow has been measured. Raises ValueError (SignatureError for what is no signature) for
        input that cannot be kept, and DatabaseError, which is one too, when the file cannot be
        written.
        """
        data, packed = pack(kind, fields), pack_context(context)
        entry = self._entries.get(data) or _Entry(data)
        if first and not entry.first:
            return 0
        if entry.first and not first:
            fresh = Accumulator(signature.key_of(data))
            added = fresh.extend(durations_ns)
            if added:
                entry.durations, entry.first = fresh, False
        else:
            added = entry.durations.extend(durations_ns)
        if not added:
            return 0
        if entry.context is None:
            entry.context = packed
        self._entries[data] = self._changed[data] = entry
        self.durations += added
        self._wait(added)
        self.flush()
        return added

    def host(self, message: Any) -> None:
        """Takes the map of a HOST message, in the place of an earlier one. Raises DatabaseError for
        what is none."""
        self._host = Host.of_message(message)
        self._wait(COMMIT_SAMPLES)
        self.flush()

    def describe(self, fields: Mapping[str, Any]) -> None:
        """Fills in fields of the run (schema.RUN_FIELDS) that were not known at its start. Raises
        DatabaseError."""
        self._fields = run_fields({**self._fields, **fields})
        self._described = True
        self._wait(COMMIT_SAMPLES)
        self.flush()

    def flush(self, now: bool = False) -> None:
        """Commits what waits if it is due: COMMIT_S old, or COMMIT_SAMPLES durations; with `now`,
        in any case.

        Raises DatabaseError (a full disk); nothing is lost then, and the next call tries again.
        """
        if not self._waiting or not (
            now or self._waiting >= COMMIT_SAMPLES or self._clock() >= self._due
        ):
            return
        with reported(self.path, "written"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._put()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk has ended it already
                    self._connection.execute("ROLLBACK")
                # numbers that the transaction gave out are void with it
                self._writer = Writer(self._connection)
                for entry in self._fresh:
                    entry.number = None
                raise
            finally:
                self._fresh.clear()
        self._changed.clear()
        self._host, self._described, self._waiting = None, False, 0

    def close(self) -> None:
        """Commits, and leaves one plain file where no reader prevents that. Raises DatabaseError;
        closed it is in any case."""
        try:
            self.flush(now=True)
            # A reader keeps the file in WAL mode: nothing is missing then, and databases.merge
            # writes every file anew.
            with reported(self.path, "written"), suppress(sqlite3.OperationalError):
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._connection.close()

    def _wait(self, durations: int) -> None:
        if not self._waiting:
            self._due = self._clock() + COMMIT_S
        self._waiting += durations

    def _put(self) -> None:
        for entry in self._changed.values():
            if entry.number is None:
                entry.number = self._writer.signature(entry.data)
                self._fresh.append(entry)
            self._writer.sample(
                entry.number,
                self._run,
                Sample(entry.context, entry.first, entry.durations.statistics()),
            )
        if self._host is not None:
            self._writer.host(self._run, self._host)
        if self._described:
            self._writer.describe(self._run, self._fields)
