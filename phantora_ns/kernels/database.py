"""Measured kernel times: one SQLite file per GPU model, with where each number came from.

Why it exists: a measurement beats any model, and must be traceable to the GPU, driver, libraries and run that it was taken
on. Schema version 1: `meta` (key, value), `runs` (id, description, date), `samples` (signature's canonical bytes, key, launch
key, run, count, mean, M2, median, minimum, maximum). Moments merge exactly (Chan, Golub, LeVeque 1979); a median of several
runs is their medians' average weighted by count.
"""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from . import signature

SCHEMA_VERSION = 1
APPLICATION_ID = 0x50484B54  # "PHKT", so that `file` and we can tell our files from any other SQLite database
META = ("gpu", "driver", "cuda", "torch", "date", "clocks", "provenance")
VARIANT_TOLERANCE = 0.10     # launches that differ only in identity count as one when no median is further from theirs

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (id INTEGER PRIMARY KEY, description TEXT NOT NULL UNIQUE, date TEXT NOT NULL);
CREATE TABLE samples (
    signature BLOB NOT NULL, key INTEGER NOT NULL, launch INTEGER, run INTEGER NOT NULL REFERENCES runs(id),
    count INTEGER NOT NULL CHECK (count > 0), mean REAL NOT NULL, m2 REAL NOT NULL, median REAL NOT NULL,
    minimum INTEGER NOT NULL, maximum INTEGER NOT NULL, PRIMARY KEY (signature, run)) WITHOUT ROWID;
CREATE INDEX samples_launch ON samples (launch) WHERE launch IS NOT NULL;
"""


class DatabaseError(ValueError):
    """A file that is no kernel-time database of ours, or cannot be used; str() says which and what to do."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Durations of one signature in nanoseconds; variance is the sample variance (0 for a single one)."""

    count: int
    mean: float
    median: float
    minimum: int
    maximum: int
    variance: float

    @classmethod
    def of(cls, durations: Iterable[int]) -> Statistics:
        """Statistics of measured durations. Raises ValueError when there are none or one is not positive."""
        values = list(durations)
        if not values or min(values) <= 0:
            raise ValueError("durations must be positive, and at least one")
        variance = statistics.variance(values) if len(values) > 1 else 0.0
        return cls(len(values), statistics.fmean(values), statistics.median(values), min(values), max(values), variance)


def _signed(key: int) -> int:
    """SQLite's integers are signed 64-bit."""
    return key - (1 << 64) if key >= 1 << 63 else key


def _combine(rows: list[tuple[int, float, float, float, int, int]]) -> Statistics | None:
    """Statistics of (count, mean, m2, median, minimum, maximum) rows taken together, None when there are none."""
    if not rows:
        return None
    count, mean, m2 = 0, 0.0, 0.0
    for n, row_mean, row_m2, *_ in rows:
        delta = row_mean - mean
        m2 += row_m2 + delta * delta * count * n / (count + n)
        mean += delta * n / (count + n)
        count += n
    median = sum(row[3] * row[0] for row in rows) / count
    variance = m2 / (count - 1) if count > 1 else 0.0
    return Statistics(count, mean, median, min(r[4] for r in rows), max(r[5] for r in rows), variance)


class Database:
    """One open kernel-time database. Read-only unless made by `create` or opened for writing."""

    def __init__(self, path: Path, connection: sqlite3.Connection, meta: Mapping[str, str]):
        self.path, self._connection, self.meta = path, connection, dict(meta)

    @classmethod
    def create(cls, path: Path | str, **meta: str) -> Database:
        """A new, empty file. `meta` gives every field of META. Raises DatabaseError when it exists or cannot be written."""
        path = Path(path)
        missing = [key for key in META if not meta.get(key)]
        if missing or len(meta) != len(META):
            raise DatabaseError(f"{path}: a database needs exactly {', '.join(META)}; missing {', '.join(missing) or 'none'}")
        try:
            with open(path, "xb"):
                pass
            connection = sqlite3.connect(path, isolation_level=None)
            connection.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
                                     f"PRAGMA journal_mode = WAL; BEGIN; {_SCHEMA} COMMIT;")
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        except FileExistsError as error:
            raise DatabaseError(f"{path}: exists already; open it, or choose another name") from error
        except (OSError, sqlite3.Error) as error:
            raise DatabaseError(f"{path}: cannot be written: {error}") from error
        return cls(path, connection, meta)

    @classmethod
    def open(cls, path: Path | str, *, gpu: str | None = None, write: bool = False) -> Database:
        """Opens a file, read-only by default: then it may lie in a read-only folder or be in use by a writer.

        `gpu`: the model that it must be of. Raises DatabaseError when it is missing, damaged, foreign, of another version or
        of another GPU.
        """
        path = Path(path)
        if not path.is_file():
            raise DatabaseError(f"{path}: there is no such file; name a kernel-time database, or none to use the models alone")
        try:
            connection = cls._connect(path, write)
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID:
                raise DatabaseError(f"{path}: is no kernel-time database")
            if version != SCHEMA_VERSION:
                raise DatabaseError(f"{path}: has schema version {version}, this release reads {SCHEMA_VERSION}; record it anew")
            meta = dict(connection.execute("SELECT key, value FROM meta"))
            connection.execute("SELECT count(*) FROM runs, (SELECT 1 FROM samples LIMIT 1)").fetchone()
        except sqlite3.Error as error:
            raise DatabaseError(f"{path}: is no kernel-time database, or damaged: {error}") from error
        if gpu is not None and meta.get("gpu") != gpu:
            raise DatabaseError(f"{path}: holds times of {meta.get('gpu')!r}, not of {gpu!r}; choose the simulated GPU's file")
        return cls(path, connection, meta)

    @staticmethod
    def _connect(path: Path, write: bool) -> sqlite3.Connection:
        """A file left in WAL mode cannot be opened `mode=ro` in a folder without write permission; then nobody writes to it
        either, and `immutable` is true."""
        uri = f"file:{quote(str(path.absolute()))}?mode={'rw' if write else 'ro'}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            connection.close()
            if write or path.with_name(path.name + "-wal").exists():
                raise
            connection = sqlite3.connect(uri + "&immutable=1", uri=True, isolation_level=None, check_same_thread=False)
        return connection

    def close(self) -> None:
        """Closes the file; the object is of no use afterwards."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def insert(self, run: str, date: str, samples: Iterable[tuple[int, list | tuple, Statistics]]) -> int:
        """Adds the statistics of a run's signatures ((kind, fields, statistics) each), all or none, and returns how many.

        A signature that the run has already is merged with what is there. Raises DatabaseError (full disk, read-only) and
        SignatureError.
        """
        rows = []
        for kind, fields, found in samples:
            data = signature.encode(kind, fields)
            launch = _signed(signature.key(kind, signature.launch_fields(fields))) if kind == signature.KERNEL else None
            m2 = found.variance * (found.count - 1)
            rows.append((data, _signed(signature.key_of(data)), launch, found.count, found.mean, m2, found.median, found.minimum,
                         found.maximum))
        return self._write(run, date, rows)

    def merge(self, other: Database) -> int:
        """Adds every run of another database that this one lacks; returns the number of signatures added.

        Runs are told apart by their description, so that merging twice changes nothing. Raises DatabaseError, also when the
        other is of another GPU.
        """
        if other.meta.get("gpu") != self.meta.get("gpu"):
            raise DatabaseError(f"{other.path}: holds times of {other.meta.get('gpu')!r}, "
                                f"{self.path} of {self.meta.get('gpu')!r}")
        have = {row[0] for row in self._query("SELECT description FROM runs")}
        added = 0
        for identity, description, date in other._query("SELECT id, description, date FROM runs ORDER BY id"):
            if description not in have:
                rows = other._query("SELECT signature, key, launch, count, mean, m2, median, minimum, maximum FROM samples"
                                    " WHERE run = ?", identity)
                added += self._write(description, date, rows)
        return added

    def _write(self, run: str, date: str, rows: list[tuple]) -> int:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute("INSERT OR IGNORE INTO runs (description, date) VALUES (?, ?)", (run, date))
                (identity,) = connection.execute("SELECT id FROM runs WHERE description = ?", (run,)).fetchone()
                for data, key, launch, *numbers in rows:
                    there = connection.execute("SELECT count, mean, m2, median, minimum, maximum FROM samples WHERE signature = ?"
                                               " AND run = ?", (data, identity)).fetchone()
                    if there:
                        both = _combine([there, tuple(numbers)])
                        m2 = both.variance * (both.count - 1)
                        numbers = [both.count, both.mean, m2, both.median, both.minimum, both.maximum]
                    connection.execute("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                                       (data, key, launch, identity, *numbers))
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise DatabaseError(f"{self.path}: cannot be written: {error}") from error
        return len(rows)

    def _query(self, sql: str, *values: Any) -> list[tuple]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise DatabaseError(f"{self.path}: damaged: {error}") from error

    def statistics(self, data: bytes) -> Statistics | None:
        """All runs' statistics of a signature's canonical bytes, None when it was never measured. Raises DatabaseError."""
        return _combine(self._query("SELECT count, mean, m2, median, minimum, maximum FROM samples WHERE signature = ?", data))

    def exact(self, data: bytes) -> float | None:
        """The median duration of a signature's canonical bytes in ns, None when it was never measured. O(log n)."""
        found = self.statistics(data)
        return found.median if found else None

    def variants(self, fields: list | tuple, tolerance: float = VARIANT_TOLERANCE) -> float | None:
        """The median over recorded launches that differ from `fields` in identity only, in ns; None when there are none, or
        when one of their medians is further than `tolerance` (a share) from it. O(log n + variants)."""
        if len(fields) < 12:
            return None
        launch = _signed(signature.key(signature.KERNEL, signature.launch_fields(fields)))
        rows = self._query("SELECT signature, median FROM samples WHERE launch = ?", launch)
        common = list(fields[:11])
        medians = [median for data, median in rows if signature.decode(data)[1][:11] == common]
        if not medians:
            return None
        middle = statistics.median(medians)
        return middle if all(abs(m - middle) <= tolerance * middle for m in medians) else None

    def signatures(self) -> Iterator[tuple[int, list, Statistics]]:
        """(kind, fields, statistics) of everything measured, in order of the signatures' bytes."""
        for (data,) in self._query("SELECT DISTINCT signature FROM samples ORDER BY signature"):
            kind, fields = signature.decode(data)
            found = self.statistics(data)
            if found is not None:
                yield kind, fields, found

    def runs(self) -> list[tuple[str, str]]:
        """(description, date) of every run, in order of insertion."""
        return self._query("SELECT description, date FROM runs ORDER BY id")
