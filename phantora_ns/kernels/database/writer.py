"""Writes runs into the tables of a kernel-time database.

Why it exists: a recording adds to its file while the job runs, and a merge makes a whole file at
once, and both write the same rows. With one release of SQLite, `save` makes the same bytes from the
same content, so that the file that ships can be built again and compared.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from phantora_ns.kernels import signature
from phantora_ns.kernels.database import schema
from phantora_ns.kernels.database.durations import Statistics
from phantora_ns.kernels.database.records import Host, Run, Sample
from phantora_ns.kernels.database.schema import RUN_FIELDS, reported, signed
from phantora_ns.protocol import SignatureKind

_SAMPLE_COLUMNS = ("signature", "run", "context", "first", *Statistics.__slots__)
_PUT_SAMPLE = (
    f"INSERT INTO samples ({', '.join(_SAMPLE_COLUMNS)}) VALUES ({', '.join('?' * len(_SAMPLE_COLUMNS))}) "
    "ON CONFLICT (signature, run) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _SAMPLE_COLUMNS[2:])
)


_SCRATCH = ".new"


class Writer:
    """Writes rows to one open connection. Transactions are the caller's. Raises sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection
        self._texts: dict[str, int] = {}
        self._contexts: dict[bytes, int] = {}

    def text(self, text: str) -> int:
        """The number of a text; each text is stored once."""
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = self._number("texts", "text", text)
        return found

    def context(self, context: bytes | None) -> int | None:
        """The number of a context; each context is stored once."""
        if context is None:
            return None
        found = self._contexts.get(context)
        if found is None:
            found = self._contexts[context] = self._number("contexts", "body", context)
        return found

    def _number(self, table: str, column: str, value: str | bytes) -> int:
        there = self._connection.execute(
            f"SELECT id FROM {table} WHERE {column} = ?", (value,)
        ).fetchone()
        return (
            there[0]
            if there
            else self._connection.execute(
                f"INSERT INTO {table} ({column}) VALUES (?)", (value,)
            ).lastrowid
        )

    def signature(self, data: bytes) -> int:
        """The number of a new signature, given by its canonical bytes."""
        kind, fields = signature.decode(data)
        name, rest = signature.split(fields)
        launch = None
        if kind == SignatureKind.KERNEL and len(fields) == len(signature.KERNEL_FIELDS):
            launch = signed(signature.key(kind, signature.launch_fields(fields)))
        row = (
            signed(signature.key_of(data)),
            launch,
            kind,
            None if name is None else self.text(name),
            rest,
        )
        return self._connection.execute(
            "INSERT INTO signatures (key, launch, kind, name, rest) VALUES (?, ?, ?, ?, ?)", row
        ).lastrowid

    def run(self, run: Run) -> int:
        """The number of a new run. Its host times and samples are written separately."""
        marks = ", ".join("?" * (1 + len(RUN_FIELDS)))
        return self._connection.execute(
            f"INSERT INTO runs (uid, {', '.join(RUN_FIELDS)}) VALUES ({marks})",
            (run.uid, *(run.fields[name] for name in RUN_FIELDS)),
        ).lastrowid

    def describe(self, run: int, fields: dict[str, str]) -> None:
        """Replaces a run's fields; `fields` has all of RUN_FIELDS."""
        self._connection.execute(
            f"UPDATE runs SET {', '.join(f'{name} = ?' for name in RUN_FIELDS)} WHERE id = ?",
            (*(fields[name] for name in RUN_FIELDS), run),
        )

    def sample(self, number: int, run: int, sample: Sample) -> None:
        """Replaces what `run` measured of signature `number`."""
        s = sample.statistics
        self._connection.execute(
            _PUT_SAMPLE,
            (
                number,
                run,
                self.context(sample.context),
                int(sample.first),
                *(getattr(s, name) for name in Statistics.__slots__),
            ),
        )

    def host(self, run: int, host: Host) -> None:
        """Replaces the host times of a run."""
        connection = self._connection
        for table in ("host_numbers", "host_calls", "host_sites"):
            connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
        connection.execute("UPDATE runs SET host_score = ? WHERE id = ?", (host.score, run))
        connection.executemany(
            "INSERT INTO host_numbers VALUES (?, ?, ?, ?, ?)",
            [(run, name, *time) for name, time in sorted(host.numbers.items())],
        )
        connection.executemany(
            "INSERT INTO host_calls VALUES (?, ?, ?, ?, ?)",
            [(run, name, *time) for name, time in sorted(host.calls.items())],
        )
        connection.executemany(
            "INSERT INTO host_sites VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (run, signed(site.key), site.depth, self.text(site.text), *site[3:])
                for site in sorted(host.sites.values(), key=lambda site: signed(site.key))
            ],
        )


def sweep(path: Path) -> None:
    """Deletes what `save` left of the database in `path` when its process was killed. Only for who keeps others from
    saving it meanwhile. Raises OSError."""
    name = re.compile(re.escape(f".{path.name}.") + r"\d+" + re.escape(_SCRATCH) + "(-journal)?")
    for beside in path.parent.iterdir():
        if name.fullmatch(beside.name):
            beside.unlink(missing_ok=True)


def save(path: Path, gpu: str, runs: list[Run]) -> None:
    """Replaces the database in `path`. A process that reads the old file goes on reading that.

    `runs` are in the order of their uid (records.union). A failure leaves `path` as it was. Raises
    DatabaseError.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}{_SCRATCH}")
    try:
        scratch.unlink(missing_ok=True)
        connection = schema.make(scratch, gpu, wal=False)
        try:
            with reported(path, "written"):
                connection.execute("BEGIN")
                _fill(Writer(connection), runs)
                connection.execute("COMMIT")
                connection.execute("VACUUM")
        finally:
            connection.close()
        with reported(path, "written"):
            with open(scratch, "rb") as written:
                os.fsync(written.fileno())
            os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _fill(writer: Writer, runs: list[Run]) -> None:
    """Numbers rows in the order of their content, so that equal content makes equal files."""
    for text in sorted(_texts(runs)):
        writer.text(text)
    for context in sorted(
        {s.context for run in runs for s in run.samples.values() if s.context is not None}
    ):
        writer.context(context)
    identities = [(run, writer.run(run)) for run in runs]
    for run, identity in identities:
        writer.host(identity, run.host)
    holders: dict[bytes, list[tuple[Run, int]]] = {}
    for run, identity in identities:
        for data in run.samples:
            holders.setdefault(data, []).append((run, identity))
    for data in sorted(holders):
        number = writer.signature(data)
        for run, identity in holders[data]:
            writer.sample(number, identity, run.samples[data])


def _texts(runs: Iterable[Run]) -> set[str]:
    sites = {site.text for run in runs for site in run.host.sites.values()}
    names = (
        signature.split(signature.decode(data)[1])[0]
        for data in {data for run in runs for data in run.samples}
    )
    return sites | {name for name in names if name is not None}
