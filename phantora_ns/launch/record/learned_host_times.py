"""Host times that runs with --host-time auto measured here, kept for later runs.

Why it exists: a job's code that no database knows is measured while the job runs, so two runs would
differ. What the first has measured is kept and charged in the next, which then measures nothing and
repeats to the byte (docs/host-time.md). Rule: a job is always charged what was kept when it was
measured. Nothing is replaced, and what other jobs add later it does not see. So a job that repeats
goes on to repeat when other jobs have run. To begin anew, delete the file.
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
_SCHEMA = """
CREATE TABLE IF NOT EXISTS call_sites (number INTEGER PRIMARY KEY, torch TEXT NOT NULL,
    key INTEGER NOT NULL, ns INTEGER NOT NULL, UNIQUE (torch, key));
CREATE TABLE IF NOT EXISTS measured_jobs (job TEXT PRIMARY KEY, date TEXT NOT NULL,
    last_call_site INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seldom (job TEXT NOT NULL, key INTEGER NOT NULL, ns INTEGER NOT NULL,
    first INTEGER NOT NULL, every INTEGER NOT NULL, PRIMARY KEY (job, key)) WITHOUT ROWID;
"""
_LAST = "SELECT last_call_site FROM measured_jobs WHERE job = ?"
_ALL = 2**62


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
    connection = sqlite3.connect(file, timeout=_WAIT_S)
    try:
        with connection:
            connection.executescript(_SCHEMA)
            yield connection
    finally:
        connection.close()


def read(file: Path, job: str, torch: str) -> Learned:
    """What earlier runs measured. Raises OSError, sqlite3.Error."""
    if not file.is_file():
        return Learned()
    with _open(file) as kept:
        measured = kept.execute(_LAST, (job,)).fetchone()
        (last,) = measured or (_ALL,)
        sites = kept.execute(
            "SELECT key, ns FROM call_sites WHERE torch = ? AND number <= ?", (torch, last)
        )
        if measured is None:
            return Learned(sites=dict(sites))
        rows = kept.execute("SELECT key, ns, first, every FROM seldom WHERE job = ?", (job,))
        return Learned(True, dict(sites), {key: Seldom(*rest) for key, *rest in rows})


def keep(file: Path, job: str, torch: str, measured: Measured) -> None:
    """Adds what is not known yet. If another run of the job was measured meanwhile, that one counts.
    Raises OSError, sqlite3.Error."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with _open(file) as kept:
        kept.execute("BEGIN IMMEDIATE")
        if kept.execute(_LAST, (job,)).fetchone():
            return
        sites = sorted((torch, key, ns) for key, ns in measured.sites.items())
        kept.executemany(
            "INSERT OR IGNORE INTO call_sites (torch, key, ns) VALUES (?, ?, ?)", sites
        )
        kept.execute(
            "INSERT INTO measured_jobs SELECT ?, ?, COALESCE(MAX(number), 0) FROM call_sites",
            (job, date),
        )
        kept.execute("DELETE FROM seldom WHERE job = ?", (job,))
        rows = [(job, key, *seldom) for key, seldom in sorted(measured.seldom.items())]
        kept.executemany("INSERT INTO seldom VALUES (?, ?, ?, ?, ?)", rows)


def forget(file: Path, job: str) -> None:
    """The next run of the job measures again what is not known by then. Raises OSError,
    sqlite3.Error."""
    with _open(file) as kept:
        kept.execute("DELETE FROM measured_jobs WHERE job = ?", (job,))
