"""Host times that runs with --host-time auto measured here, kept for later runs.

Why it exists: the first run of a job measures, so two first runs would differ. What it has measured
is kept and charged in the next, which measures nothing and repeats to the byte (docs/host-time.md).
Rule: a job is always charged what its own first run measured. Nothing is replaced, and what other
jobs add it does not see. To begin anew, delete the file.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.host_samples import Measured
from phantora_ns.kernels.database.host_table import Seldom

_WAIT_S = 30.0
_VERSION = 6
_SCHEMA = f"""
DROP TABLE IF EXISTS call_sites;
DROP TABLE IF EXISTS measured_jobs;
DROP TABLE IF EXISTS seldom;
CREATE TABLE measured_jobs (job TEXT PRIMARY KEY, date TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE call_sites (job TEXT NOT NULL, key INTEGER NOT NULL, ns INTEGER NOT NULL,
    PRIMARY KEY (job, key)) WITHOUT ROWID;
CREATE TABLE seldom (job TEXT NOT NULL, key INTEGER NOT NULL, ns INTEGER NOT NULL,
    first INTEGER NOT NULL, every INTEGER NOT NULL, ranks INTEGER NOT NULL,
    PRIMARY KEY (job, key)) WITHOUT ROWID;
PRAGMA user_version = {_VERSION};
"""
"""Older versions kept what other rules had measured: their jobs measure anew."""


@dataclass(frozen=True)
class Learned:
    """What is known of a job. `measured`: a run of it was measured. Times in ns, by key."""

    measured: bool = False
    sites: dict[int, float] = field(default_factory=dict)
    seldom: dict[int, Seldom] = field(default_factory=dict)


def path() -> Path:
    """The user's file, whether it exists or not."""
    return databases.user_folder().parent / "host-times.sqlite"


def job_of(argv: Sequence[str], cwd: str, shape: tuple[int, int], torch: str) -> str:
    """What identifies a job: its command, the folder it starts in (`train.py` is another job
    elsewhere), the cluster's nodes and GPUs per node, and its torch."""
    text = json.dumps([list(argv), cwd, *shape, torch])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _open(file: Path) -> Iterator[sqlite3.Connection]:
    file.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(file, timeout=_WAIT_S, isolation_level=None)
    try:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
            yield connection
    finally:
        connection.close()


def read(file: Path, job: str) -> Learned:
    """What an earlier run of the job measured. Raises OSError, sqlite3.Error."""
    if not file.is_file():
        return Learned()
    with _open(file) as kept:
        if not _is_known(kept, job):
            return Learned()
        sites = kept.execute("SELECT key, ns FROM call_sites WHERE job = ?", (job,))
        rows = kept.execute("SELECT key, ns, first, every, ranks FROM seldom WHERE job = ?", (job,))
        return Learned(True, dict(sites), {key: Seldom(*rest) for key, *rest in rows})


def _is_known(kept: sqlite3.Connection, job: str) -> bool:
    return kept.execute("SELECT 1 FROM measured_jobs WHERE job = ?", (job,)).fetchone() is not None


def keep(file: Path, job: str, measured: Measured) -> None:
    """Adds what a run of the job measured. If another run of it was measured meanwhile, that one
    counts. Raises OSError, sqlite3.Error."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with _open(file) as kept:
        if _is_known(kept, job):
            return
        _remove(kept, job)
        kept.execute("INSERT INTO measured_jobs VALUES (?, ?)", (job, date))
        sites = [(job, key, ns) for key, ns in sorted(measured.sites.items())]
        kept.executemany("INSERT INTO call_sites VALUES (?, ?, ?)", sites)
        rows = [(job, key, *seldom) for key, seldom in sorted(measured.seldom.items())]
        kept.executemany("INSERT INTO seldom VALUES (?, ?, ?, ?, ?, ?)", rows)


def forget(file: Path, job: str) -> None:
    """The next run of the job measures again. Raises OSError, sqlite3.Error."""
    with _open(file) as kept:
        _remove(kept, job)


def _remove(kept: sqlite3.Connection, job: str) -> None:
    for table in ("measured_jobs", "call_sites", "seldom"):
        kept.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
