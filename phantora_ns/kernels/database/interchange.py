"""Kernel-time databases as text: JSON lines that can be read back exactly, and a table for a
spreadsheet.

Why it exists: what ships must be readable and comparable without SQLite or this project. Format:
docs/kernels-database.md.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from phantora_ns.kernels import signature
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.durations import Statistics
from phantora_ns.kernels.database.records import (
    Host,
    Run,
    Sample,
    from_json,
    pack,
    pack_context,
    run_fields,
)
from phantora_ns.kernels.database.schema import SCHEMA_VERSION, DatabaseError
from phantora_ns.kernels.families import family

FORMAT = "phantora-ns kernel times"
COLUMNS = (
    "run",
    "configuration",
    "kind",
    "family",
    "operator",
    "signature",
    "first",
    *Statistics.__slots__,
)


def export_lines(database: Database) -> Iterator[str]:
    """The whole content as JSON lines, the same for the same content: one about the file, then for
    each run one about it and one for each signature that it measured. Raises DatabaseError."""
    yield json.dumps({"format": FORMAT, "version": SCHEMA_VERSION, "gpu": database.gpu}) + "\n"
    for run in database.runs():
        yield from run.lines()


def export_table(database: Database, out: TextIO) -> None:
    """Every sample as a row of CSV, signatures in readable form: for people; it cannot be read
    back. Raises DatabaseError."""
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for run in database.runs():
        for data in sorted(run.samples):
            sample, (kind, fields) = run.samples[data], signature.decode(data)
            context = None if sample.context is None else signature.unpack(sample.context)
            table.writerow(
                [
                    run.uid,
                    run.configuration,
                    kind,
                    family(kind, fields, context),
                    operator(context),
                    signature.describe(kind, fields),
                    int(sample.first),
                    *(getattr(sample.statistics, name) for name in Statistics.__slots__),
                ]
            )


def operator(context: Any) -> str:
    """The framework operator of a context, empty when there is none."""
    return context[0] if context and isinstance(context[0], str) else ""


def read_lines(lines: Iterable[str], name: Path | str) -> tuple[str, list[Run]]:
    """(GPU model, runs in order of their uid) of exported JSON lines. Raises DatabaseError with
    `name` and the line."""
    gpu, runs = None, {}
    where, run = f"{name}: line 1", None
    try:
        for number, line in enumerate(lines, 1):
            where = f"{name}: line {number}"
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError("not a map")
            if gpu is None:
                gpu = _head(value)
            elif "run" in value:
                run = _run(value)
                if run.uid in runs:
                    raise ValueError(f"run {run.uid!r} is there twice")
                runs[run.uid] = run
            elif run is None:
                raise ValueError("a signature before any run")
            else:
                data, sample = _sample(value)
                if data in run.samples:
                    raise ValueError("a signature is there twice in a run")
                run.samples[data] = sample
    except (
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:  # JSON's, SignatureError and DatabaseError are ValueErrors
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DatabaseError(
            f"{where}: {what}; give a file made by `phantora-ns kernels export`"
        ) from error
    if gpu is None:
        raise DatabaseError(f"{name}: is empty; give a file made by `phantora-ns kernels export`")
    return gpu, [runs[uid] for uid in sorted(runs)]


def _head(value: dict) -> str:
    if value.get("format") != FORMAT:
        raise ValueError("no export of kernel times")
    if value.get("version") != SCHEMA_VERSION:
        raise ValueError(f"version {value.get('version')!r}, this release reads {SCHEMA_VERSION}")
    if not isinstance(value.get("gpu"), str) or not value["gpu"]:
        raise ValueError("does not say which GPU its times are of")
    return value["gpu"]


def _run(value: dict) -> Run:
    uid, host = value.pop("run"), value.pop("host", {})
    if not isinstance(uid, str) or not uid:
        raise ValueError(f"{uid!r} is no name of a run")
    return Run(uid, run_fields(value), Host.of_message(host))


def _sample(value: dict) -> tuple[bytes, Sample]:
    data = pack(value.pop("kind"), from_json(value.pop("fields")))
    context, first = pack_context(from_json(value.pop("context"))), value.pop("first")
    if type(first) is not bool:
        raise ValueError(f"first: {first!r} is neither true nor false")
    for name in ("squares", "median"):
        if type(value.get(name)) is int:  # other writers of JSON leave out ".0"
            value[name] = float(value[name])
    found = Statistics(**value)
    found.check()
    return data, Sample(context, first, found)
