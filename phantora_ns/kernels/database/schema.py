"""The file of a kernel-time database: tables, versions, and the errors of SQLite.

Why it exists: a file may be missing, foreign, older, cut short, locked, or in a folder that cannot
be written, and each of these must give one clear line. Rule: no sqlite3.Error leaves this package.

Schema 2. Texts (kernel names, call sites) and contexts are kept once, because mangled names are
most of the bytes.

- `meta`: `gpu`, the model that the times are of (a file of phantora_ns/data/gpus).
- `runs`: one leader in one run of a job, with where it ran (RUN_FIELDS).
- `signatures`: `name` and `rest` are the fields: a text first field, and msgpack of the others (of
  all when `name` is null).
- `samples`: what a run measured of a signature (durations.Statistics). `first` is 1 if all measured
  launches were ones for which the leader stopped the GPU, so that nothing ran before them.
- `host_numbers`, `host_calls`, `host_sites`: the host times of the run in ns (docs/leading.md,
  HOST); `host_sites` are its call sites.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

SCHEMA_VERSION = 2
APPLICATION_ID = 0x50484B54  # "PHKT": tells our files from other SQLite databases
BUSY_S = 10.0  # how long we wait for another process that has locked the file
PAGE_BYTES = 4096  # fixed, so that the same content is the same file on any machine

RUN_FIELDS = (
    "configuration",
    "rank",
    "command",
    "date",
    "device",
    "driver",
    "cuda",
    "torch",
    "clocks",
    "host_cpu",
    "cudnn",
    "cublas",
)
"""What describes a run. Each is a text, empty when unknown: the name of the job's configuration, the
rank that led, the job's command line, the date (ISO 8601), NVIDIA's name of the GPU, versions,
clocks, the host's processor, and versions of cuDNN and cuBLAS."""
LATER_FIELDS = ("cudnn", "cublas")
"""Those that files had not from the beginning: a file without the columns does not know them."""

TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE contexts (id INTEGER PRIMARY KEY, body BLOB NOT NULL UNIQUE);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, host_score REAL,
    {", ".join(f"{name} TEXT NOT NULL DEFAULT ''" for name in RUN_FIELDS)});
CREATE TABLE signatures (
    id INTEGER PRIMARY KEY, key INTEGER NOT NULL, launch INTEGER, kind INTEGER NOT NULL,
    name INTEGER REFERENCES texts(id), rest BLOB NOT NULL);
CREATE INDEX signatures_key ON signatures (key);
CREATE INDEX signatures_launch ON signatures (launch) WHERE launch IS NOT NULL;
CREATE TABLE samples (
    signature INTEGER NOT NULL REFERENCES signatures(id), run INTEGER NOT NULL REFERENCES runs(id),
    context INTEGER REFERENCES contexts(id), first INTEGER NOT NULL CHECK (first IN (0, 1)),
    count INTEGER NOT NULL CHECK (count > 0), total INTEGER NOT NULL, squares REAL NOT NULL, median REAL NOT NULL,
    middle INTEGER NOT NULL, low INTEGER NOT NULL, high INTEGER NOT NULL,
    minimum INTEGER NOT NULL, maximum INTEGER NOT NULL,
    PRIMARY KEY (signature, run)) WITHOUT ROWID;
CREATE TABLE host_numbers (
    run INTEGER NOT NULL REFERENCES runs(id), what TEXT NOT NULL, count INTEGER NOT NULL, mean_ns REAL NOT NULL,
    median_ns REAL NOT NULL, PRIMARY KEY (run, what)) WITHOUT ROWID;
CREATE TABLE host_calls (
    run INTEGER NOT NULL REFERENCES runs(id), class TEXT NOT NULL, count INTEGER NOT NULL, mean_ns REAL NOT NULL,
    median_ns REAL NOT NULL, PRIMARY KEY (run, class)) WITHOUT ROWID;
CREATE TABLE host_sites (
    run INTEGER NOT NULL REFERENCES runs(id), key INTEGER NOT NULL, depth INTEGER NOT NULL, text INTEGER NOT NULL
    REFERENCES texts(id), count INTEGER NOT NULL, mean_ns REAL NOT NULL, median_ns REAL NOT NULL,
    PRIMARY KEY (run, key)) WITHOUT ROWID;
"""
MAX_COUNT = (1 << 53) - 1
"""Of host times: exact as a float."""
LONGEST_HOST_NS = 1 << 60
_WHOLE, _TEXT, _BYTES = (f"typeof({{}}) = '{name}'" for name in ("integer", "text", "blob"))
_OPTIONAL = "({0} IS NULL OR typeof({0}) = 'integer')"
_HOST_COUNT = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 1 AND {MAX_COUNT}"
_HOST_NS = f"typeof({{0}}) = 'real' AND {{0}} BETWEEN 0 AND {LONGEST_HOST_NS}"
_HOST_TIME = {"run": _WHOLE, "count": _HOST_COUNT, "mean_ns": _HOST_NS, "median_ns": _HOST_NS}
_CELLS = {
    "meta": {"key": _TEXT, "value": _TEXT},
    "texts": {"id": _WHOLE, "text": _TEXT},
    "contexts": {"id": _WHOLE, "body": _BYTES},
    "runs": {
        "id": _WHOLE,
        "uid": _TEXT,
        "host_score": "({0} IS NULL OR typeof({0}) = 'real' AND {0} > 0 AND {0} < 9e999)",
        **dict.fromkeys(RUN_FIELDS, _TEXT),
    },
    "signatures": {
        "id": _WHOLE,
        "key": _WHOLE,
        "launch": _OPTIONAL,
        "kind": f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {(1 << 31) - 1}",
        "name": _OPTIONAL,
        "rest": _BYTES,
    },
    "samples": {
        "signature": _WHOLE,
        "run": _WHOLE,
        "context": _OPTIONAL,
        "first": "{} IN (0, 1)",
        **dict.fromkeys(("squares", "median"), "typeof({}) = 'real'"),
        **dict.fromkeys(("count", "total", "middle", "low", "high", "minimum", "maximum"), _WHOLE),
    },
    "host_numbers": {"what": _TEXT, **_HOST_TIME},
    "host_calls": {"class": _TEXT, **_HOST_TIME},
    "host_sites": {
        "key": _WHOLE,
        "depth": "typeof({0}) = 'integer' AND {0} BETWEEN 0 AND 255",
        "text": _WHOLE,
        **_HOST_TIME,
    },
}
"""What each cell of a sound file holds, as a condition of SQL. SQLite takes any value in any column,
and sums a text as 0. So every cell is checked when a file is opened, and readers rely on it."""
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNREADABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
_NO_FOLDER = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_PRIMARY = 0xFF  # SQLite's extended codes hold the primary one in their low byte


class DatabaseError(ValueError):
    """A file that is no kernel-time database, or cannot be used. str() says which, and what to
    do."""


def signed(key: int) -> int:
    """A 64-bit key as SQLite keeps it: its integers are signed."""
    return key - (1 << 64) if key >= 1 << 63 else key


def unsigned(key: int) -> int:
    """The inverse of `signed`."""
    return key + (1 << 64) if key < 0 else key


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY


@contextmanager
def reported(path: Path, doing: str) -> Iterator[None]:
    """Turns SQLite's and the system's errors into a DatabaseError about `path`; `doing`: "read" or
    "written"."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite's own message names what is damaged
        raise DatabaseError(
            f"{path}: is no kernel-time database, or damaged: a name that is not UTF-8"
        ) from error
    except sqlite3.Error as error:
        code, said = _code(error), " ".join(str(error).split())
        if code in _BUSY:
            raise DatabaseError(
                f"{path}: is locked by another process; wait until that has finished, then try again"
            ) from error
        if code == sqlite3.SQLITE_FULL:
            raise DatabaseError(
                f"{path}: cannot be {doing}: the disk is full; make room, then try again"
            ) from error
        if doing == "read" and code in _UNREADABLE:
            raise DatabaseError(
                f"{path}: cannot be read: {said}; look at the disk and at ulimit -n, then try again"
            ) from error
        if doing == "read":
            raise DatabaseError(
                f"{path}: is no kernel-time database, or damaged: {said}"
            ) from error
        raise DatabaseError(f"{path}: cannot be {doing}: {said}") from error
    except OSError as error:
        raise DatabaseError(f"{path}: cannot be {doing}: {error.strerror or error}") from error


def make(path: Path, gpu: str, *, wal: bool) -> sqlite3.Connection:
    """A new file with empty tables, open for writing. `wal`: it may be read while it is written.

    Raises DatabaseError when it exists or cannot be written.
    """
    if not gpu:
        raise DatabaseError(f"{path}: a database needs the GPU model that its times are of")
    try:
        with open(path, "xb"):
            pass
    except FileExistsError as error:
        raise DatabaseError(f"{path}: exists already; choose another name, or remove it") from error
    except OSError as error:
        raise DatabaseError(f"{path}: cannot be written: {error.strerror}") from error
    with reported(path, "written"):
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=BUSY_S
        )
        try:
            connection.executescript(
                f"PRAGMA page_size = {PAGE_BYTES}; PRAGMA application_id = {APPLICATION_ID};"
                f"PRAGMA user_version = {SCHEMA_VERSION};"
                f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}; PRAGMA synchronous = NORMAL;"
                f"BEGIN; {TABLES} COMMIT;"
            )
            connection.execute("INSERT INTO meta VALUES ('gpu', ?)", (gpu,))
        except BaseException:
            connection.close()
            raise
    return connection


def open_to_read(path: Path) -> tuple[sqlite3.Connection, str]:
    """(connection, GPU model) of an existing file. Raises DatabaseError when it is missing,
    damaged, foreign or of another version."""
    if not path.is_file():
        raise DatabaseError(
            f"{path}: there is no such file; name a kernel-time database, or none to use the models alone"
        )
    with reported(path, "read"):
        connection = _connect(path)
        try:
            return connection, _checked(path, connection)
        except BaseException:
            connection.close()
            raise


def _checked(path: Path, connection: sqlite3.Connection) -> str:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise DatabaseError(f"{path}: is no kernel-time database")
    if version != SCHEMA_VERSION:
        raise DatabaseError(
            f"{path}: has schema version {version}, this release reads {SCHEMA_VERSION}; record it anew"
        )
    for table, cells in _CELLS.items():
        there = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
        sound = " AND ".join(
            f"({condition.format(name)})"
            for name, condition in cells.items()
            if name in there or name not in LATER_FIELDS
        )
        # A condition on NULL is NULL, which is not sound either.
        query = f"SELECT 1 FROM {table} WHERE ({sound}) IS NOT TRUE LIMIT 1"
        if connection.execute(query).fetchone():
            raise DatabaseError(f"{path}: is damaged: a row of {table} holds what none can hold")
    found = connection.execute("SELECT value FROM meta WHERE key = 'gpu'").fetchone()
    if found is None or not isinstance(found[0], str) or not found[0]:
        raise DatabaseError(f"{path}: does not say which GPU its times are of; record it anew")
    return found[0]


def _connect(path: Path) -> sqlite3.Connection:
    """Read-only. A file left in WAL mode cannot be opened `mode=ro` in a folder without write
    permission; then nobody writes to it either, and `immutable` is true unless a writer has left
    part of it in its log."""
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    options = {"uri": True, "isolation_level": None, "check_same_thread": False, "timeout": BUSY_S}
    connection = sqlite3.connect(uri, **options)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if _code(error) not in _NO_FOLDER:
            raise
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size:
            raise DatabaseError(
                f"{path}: its writer has not finished, and the folder cannot be written; copy it and {log.name} "
                "to a folder of your own"
            ) from error
        connection = sqlite3.connect(uri + "&immutable=1", **options)
    return connection
