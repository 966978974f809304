"""Reads a kernel-time database: one SQLite file of measured times, for one GPU model.

Why it exists: a measurement beats any model, and must be traceable to the GPU, driver, libraries
and run that it comes from. schema.py has the tables, records.py and durations.py what is in them.
recording.py writes while a job runs, and databases.py finds and merges files.
"""

from __future__ import annotations

import sqlite3
import statistics as averages
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from phantora_ns.kernels import signature
from phantora_ns.kernels.binary import names
from phantora_ns.kernels.database import schema
from phantora_ns.kernels.database.durations import Statistics, combine, weighted_median
from phantora_ns.kernels.database.records import CallSite, Host, HostTime, Observation, Run, Sample
from phantora_ns.kernels.database.schema import (
    LATER_FIELDS,
    RUN_FIELDS,
    DatabaseError,
    reported,
    signed,
    unsigned,
)
from phantora_ns.kernels.library_versions import LibraryVersions
from phantora_ns.kernels.signature import SignatureError
from phantora_ns.protocol import SignatureKind

__all__ = ["Database", "DatabaseError", "Entry", "HostNumbers", "Statistics", "VARIANT_TOLERANCE"]

Scale = Callable[[str], float]
"""What to multiply a run's times with, by its uid."""
VARIANT_TOLERANCE = 0.10
"""Launches that differ only in identity count as one if all their medians are this close (a share)."""


def unscaled(_uid: str) -> float:
    """Times as they were recorded."""
    return 1.0


_NUMBERS = ", ".join(Statistics.__slots__)
_NUMBER_OF = (
    "(SELECT s.id FROM signatures s LEFT JOIN texts t ON t.id = s.name "
    "WHERE s.key = ? AND s.kind = ? AND s.rest = ? AND t.text IS ?)"
)
"""A signature's number; `_found_by` gives the values."""
_Row = TypeVar("_Row", tuple[Statistics, bool], tuple[str, Statistics, bool])
"""What a run measured of a signature, perhaps with the run's uid. True: the leader stopped the GPU for
each launch."""


class Entry(NamedTuple):
    """A signature and what all runs measured of it. `context` is that of the run with most
    durations."""

    kind: int
    fields: list
    context: list | None
    statistics: Statistics


class HostNumbers(NamedTuple):
    """`score`: the CPU score, ns of a fixed workload; None when no run measured it. `times`: by name
    (`latency`, `gap`)."""

    score: float | None
    times: dict[str, HostTime]


class Database:
    """One kernel-time database, open for reading. A reader sees what a recording has committed so
    far.

    Every method raises DatabaseError when the file turns out to be damaged, or is locked for longer
    than schema.BUSY_S.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, gpu: str):
        self.path, self._connection, self.gpu = path, connection, gpu
        self._names: set[str] = set()
        self._lasting: dict[str, str] | None = None
        self._libraries: set[LibraryVersions] | None = None

    @classmethod
    def open(cls, path: Path | str, *, gpu: str | None = None) -> Database:
        """Opens a file, which may lie in a folder that cannot be written or be in use by a
        recording.

        `gpu`: the model that it must be of. Raises DatabaseError when it is missing, damaged,
        foreign, of another version or of another GPU.
        """
        path = Path(path)
        connection, found = schema.open_to_read(path)
        if gpu is not None and found != gpu:
            connection.close()
            raise DatabaseError(
                f"{path}: holds times of {found!r}, not of {gpu!r}; choose the simulated GPU's file"
            )
        return cls(path, connection, found)

    def close(self) -> None:
        """Closes the file. The object cannot be used afterwards."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- look-up

    def statistics(self, data: bytes) -> Statistics | None:
        """All runs' statistics of a signature's canonical bytes, None when it was never measured.
        O(log n + runs)."""
        return combine([found for _, found, _ in self._counting(self._rows_of(data))])

    def exact(self, data: bytes, scale: Scale = unscaled) -> float | None:
        """The median duration of a signature's canonical bytes in ns, each run's median times
        `scale` of the run (durations.combine). None when it was never measured. O(log n + runs)."""
        return self._median(self._rows_of(data), scale)

    def variants(
        self,
        fields: list | tuple,
        alike: Callable[[list | None], bool] = lambda context: True,
        tolerance: float = VARIANT_TOLERANCE,
        scale: Scale = unscaled,
    ) -> float | None:
        """The median over recorded launches that differ from `fields` in identity only, in ns; None
        when there are none, or when one of their medians is further than `tolerance` (a share) from
        it. Launches recorded in a context that is not `alike` do not count. Each run's medians are
        times `scale` of the run. O(log n + variants)."""
        medians = [
            self._median(group, scale) for group in self._equal_launches(fields, alike).values()
        ]
        if not medians:
            return None
        middle = averages.median(medians)
        return middle if all(abs(m - middle) <= tolerance * middle for m in medians) else None

    def means_of_runs(self, fields: list | tuple) -> list[float]:
        """Of each run that has recorded launches which differ from `fields` in identity only: the mean
        of their medians in ns. O(log n + launches)."""
        runs: dict[str, list[float]] = {}
        for group in self._equal_launches(fields).values():
            for uid, found, _ in self._counting(group):
                runs.setdefault(uid, []).append(found.median)
        return [averages.fmean(medians) for medians in runs.values()]

    def _equal_launches(
        self,
        fields: list | tuple,
        alike: Callable[[list | None], bool] = lambda context: True,
    ) -> dict[int, list[tuple[str, Statistics, bool]]]:
        """What each run has measured of launches that differ from `fields` in identity only, in a context
        that is `alike`: by the signature's number."""
        groups: dict[int, list[tuple[str, Statistics, bool]]] = {}
        if len(fields) != len(signature.KERNEL_FIELDS):
            return groups
        launch = signed(signature.key(SignatureKind.KERNEL, signature.launch_fields(fields)))
        rows = self._query(
            f"SELECT s.id, t.text, s.rest, c.body, r.uid, {_NUMBERS}, first FROM signatures s "
            "JOIN texts t ON t.id = s.name JOIN samples ON signature = s.id "
            "JOIN runs r ON r.id = run LEFT JOIN contexts c ON c.id = context WHERE s.launch = ?",
            launch,
        )
        for identity, name, rest, body, uid, *numbers in rows:
            if self._fields(name, rest)[:11] == list(fields[:11]) and alike(
                None if body is None else self._context(body)
            ):
                groups.setdefault(identity, []).append((uid, *self._row(numbers)))
        return groups

    def recorded_name(self, name: str) -> str | None:
        """The name under which the kernel `name` was recorded with another release of PyTorch; None
        when it was not, was recorded under its own, or when two names fit. O(1) after the first
        call."""
        if self._lasting is None:
            found = self._query(
                "SELECT DISTINCT t.text FROM signatures s JOIN texts t ON t.id = s.name "
                "WHERE s.kind = ? ORDER BY t.text",
                int(SignatureKind.KERNEL),
            )
            self._names = {text for (text,) in found}
            fitting: dict[str, list[str]] = {}
            for text in self._names:
                fitting.setdefault(names.lasting(text), []).append(text)
            self._lasting = {name: texts[0] for name, texts in fitting.items() if len(texts) == 1}
        return None if name in self._names else self._lasting.get(names.lasting(name))

    # ---- everything

    def signatures(self) -> Iterator[Entry]:
        """Everything measured, in order of the signatures' canonical bytes."""
        contexts = dict(self._query("SELECT id, body FROM contexts"))
        rows: dict[int, list[tuple[Statistics, bool]]] = {}
        best: dict[int, tuple[int, bytes]] = {}
        for number, context, *numbers in self._query(
            f"SELECT signature, context, {_NUMBERS}, first FROM samples"
        ):
            row = self._row(numbers)
            rows.setdefault(number, []).append(row)
            if context in contexts:
                best[number] = max(best.get(number, (0, b"")), (row[0].count, contexts[context]))
        for number, data in sorted(self._signatures().items(), key=lambda item: item[1]):
            found = combine([found for found, _ in self._counting(rows.get(number, []))])
            if found is not None:
                kind, fields = signature.decode(data)
                yield Entry(
                    kind, fields, self._context(best[number][1] if number in best else None), found
                )

    def observations(self) -> Iterator[Observation]:
        """What each run measured of each signature, in order of runs' uids and signatures' bytes.
        As in look-ups, launches for which the leader stopped the GPU count only for signatures of
        which no run has others."""
        signatures = {
            number: (data, *signature.decode(data)) for number, data in self._signatures().items()
        }
        contexts = {
            number: self._context(body)
            for number, body in self._query("SELECT id, body FROM contexts")
        }
        rows = self._query(
            "SELECT r.uid, r.configuration, s.signature, s.context, s.median, s.count FROM samples s "
            "JOIN runs r ON r.id = s.run WHERE s.first = 0 OR NOT EXISTS "
            "(SELECT 1 FROM samples o WHERE o.signature = s.signature AND o.first = 0)"
        )
        with self._complete():
            found = [
                (
                    uid,
                    signatures[number],
                    configuration,
                    None if context is None else contexts[context],
                    median,
                    count,
                )
                for uid, configuration, number, context, median, count in rows
            ]
        found.sort(key=lambda row: (row[0], row[1][0]))
        for uid, (_, kind, fields), configuration, context, median, count in found:
            if not (isinstance(median, float) and median > 0 and type(count) is int):
                raise DatabaseError(f"{self.path}: is damaged: statistics contradict each other")
            yield Observation(configuration, kind, fields, context, median, count, uid)

    def runs(self) -> list[Run]:
        """All that the file holds, runs in order of their uid."""
        found: dict[int, Run] = {}
        columns = ", ".join(self._run_columns())
        for number, uid, score, *fields in self._query(
            f"SELECT id, uid, host_score, {columns} FROM runs ORDER BY uid"
        ):
            found[number] = Run(uid, dict(zip(RUN_FIELDS, fields)), Host(score=score))
        names = dict(self._query("SELECT id, text FROM texts"))
        contexts = dict(self._query("SELECT id, body FROM contexts"))
        for body in contexts.values():
            self._context(body)
        signatures = self._signatures()
        with self._complete():
            for number, run, context, first, *numbers in self._query(
                f"SELECT signature, run, context, first, {_NUMBERS} FROM samples"
            ):
                body = None if context is None else contexts[context]
                found[run].samples[signatures[number]] = Sample(
                    body, bool(first), self._statistics(numbers)
                )
            for run, name, *time in self._query(
                "SELECT run, what, count, mean_ns, median_ns FROM host_numbers"
            ):
                found[run].host.numbers[name] = HostTime(*time)
            for run, name, *time in self._query(
                "SELECT run, class, count, mean_ns, median_ns FROM host_calls"
            ):
                found[run].host.calls[name] = HostTime(*time)
            for run, key, depth, text, *time in self._query(
                "SELECT run, key, depth, text, count, mean_ns, median_ns FROM host_sites"
            ):
                found[run].host.sites[unsigned(key)] = CallSite(
                    unsigned(key), depth, names[text], *time
                )
        return list(found.values())

    def _run_columns(self) -> list[str]:
        """RUN_FIELDS as columns; an older file lacks some, which are empty."""
        there = {name for _, name, *_ in self._query("PRAGMA table_info(runs)")}
        return [name if name in there or name not in LATER_FIELDS else "''" for name in RUN_FIELDS]

    def libraries(self, data: bytes | None = None) -> set[LibraryVersions]:
        """The library versions of the runs that measured a signature, given by its canonical bytes;
        None: of all runs, as they were when this was first asked. O(log n + runs)."""
        columns = ", ".join(self._run_columns())
        if data is None:
            if self._libraries is not None:
                return self._libraries
            found = self._query(
                f"SELECT DISTINCT {columns} FROM runs WHERE id IN (SELECT run FROM samples)"
            )
        else:
            found = self._query(
                f"SELECT DISTINCT {columns} FROM runs WHERE id IN "
                f"(SELECT run FROM samples WHERE signature = {_NUMBER_OF})",
                *_found_by(data),
            )
        versions = {LibraryVersions.of(dict(zip(RUN_FIELDS, fields))) for fields in found}
        if data is None:
            self._libraries = versions
        return versions

    def run_uids(self) -> set[str]:
        """The uids of all runs."""
        return {uid for (uid,) in self._query("SELECT uid FROM runs")}

    def summary(self) -> dict[str, int]:
        """`runs`, `signatures`, `durations` (how many were measured) and `total_ns` (their sum)."""
        ((runs, signatures),) = self._query(
            "SELECT (SELECT count(*) FROM runs), (SELECT count(DISTINCT signature) FROM samples)"
        )
        ((durations, total),) = self._query("SELECT total(count), total(total) FROM samples")
        return {
            "runs": runs,
            "signatures": signatures,
            "durations": int(durations),
            "total_ns": int(total),
        }

    # ---- what hosts paid

    def host_calls(self) -> dict[str, HostTime]:
        """What a call of each class costs the host: the mean over all runs, weighted by count."""
        return self._host_times("class", "host_calls")

    def host_numbers(self) -> HostNumbers:
        """The CPU score (the mean over the runs) and the named times (`latency`, `gap`; weighted by
        count)."""
        ((score,),) = self._query("SELECT avg(host_score) FROM runs")
        return HostNumbers(score, self._host_times("what", "host_numbers"))

    def call_sites(self) -> list[CallSite]:
        """Host time before each call site, of the run where it took least; in order of (depth, key).

        Between the same operators, one job's Python does more than another's (DTensor, FSDP), and
        earlier call sites do not always show it. The least of them is the framework's own time.

        A key is a hash of its text and of those before it. If two texts have one key, the first in
        alphabetical order names it. What a run has seen only once is mostly paid only once (loading
        a kernel). It is listed if no run has seen it more often, with count 1 however many runs have
        seen it.
        """
        rows = self._query(
            "SELECT key, depth, min(text), CASE max(count) WHEN 1 THEN 1 ELSE sum(count) END, min(mean_ns), "
            "min(median_ns) FROM (SELECT key, depth, t.text, count, mean_ns, median_ns FROM "
            "host_sites h JOIN texts t ON t.id = h.text JOIN runs r ON r.id = h.run WHERE count > 1 OR NOT EXISTS "
            "(SELECT 1 FROM host_sites o WHERE o.key = h.key AND o.count > 1) ORDER BY r.uid) "
            "GROUP BY key, depth"
        )
        return sorted(
            (CallSite(unsigned(key), *others) for key, *others in rows),
            key=lambda site: (site.depth, site.key),
        )

    def _host_times(self, name: str, table: str) -> dict[str, HostTime]:
        rows = self._query(
            f"SELECT {name}, sum(count), sum(count * mean_ns) / sum(count), sum(count * median_ns) / sum(count) "
            f"FROM (SELECT h.* FROM {table} h JOIN runs r ON r.id = h.run ORDER BY r.uid) "
            f"GROUP BY {name} ORDER BY {name}"
        )
        return {found: HostTime(*time) for found, *time in rows}

    # ---- rows

    def _query(self, sql: str, *values: Any) -> list[tuple]:
        with reported(self.path, "read"):
            try:
                return self._connection.execute(sql, values).fetchall()
            except (OverflowError, UnicodeEncodeError):
                return []  # a value that no column can hold

    @contextmanager
    def _complete(self) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise DatabaseError(
                f"{self.path}: is damaged: a row refers to number {error}, which is not there"
            ) from error

    def _signatures(self) -> dict[int, bytes]:
        """The canonical bytes of each signature by its number."""
        names = dict(self._query("SELECT id, text FROM texts"))
        return {
            number: signature.encode(kind, self._fields(names.get(name), rest))
            for number, kind, name, rest in self._query(
                "SELECT id, kind, name, rest FROM signatures"
            )
        }

    def _fields(self, name: Any, rest: Any) -> list:
        try:
            return signature.join(name, rest)
        except SignatureError as error:
            raise DatabaseError(f"{self.path}: is damaged: {error}") from error

    def _context(self, body: bytes | None) -> list | None:
        try:
            context = None if body is None else signature.unpack(body)
        except SignatureError as error:
            raise DatabaseError(f"{self.path}: is damaged: a context is {error}") from error
        if context is not None and not isinstance(context, list):
            raise DatabaseError(f"{self.path}: is damaged: a context is no list")
        return context

    def _statistics(self, numbers: list | tuple) -> Statistics:
        found = Statistics(*numbers)
        try:
            found.check()
        except ValueError as error:
            raise DatabaseError(f"{self.path}: is damaged: {error}") from error
        return found

    def _row(self, numbers: list | tuple) -> tuple[Statistics, bool]:
        return self._statistics(numbers[:-1]), bool(numbers[-1])

    def _rows_of(self, data: bytes) -> list[tuple[str, Statistics, bool]]:
        """What each run measured of a signature's canonical bytes."""
        found = self._query(
            f"SELECT r.uid, {_NUMBERS}, first FROM samples p JOIN runs r ON r.id = p.run "
            f"WHERE p.signature = {_NUMBER_OF}",
            *_found_by(data),
        )
        return [(uid, *self._row(numbers)) for uid, *numbers in found]

    @staticmethod
    def _counting(rows: list[_Row]) -> list[_Row]:
        """Launches for which the leader stopped the GPU count only if there are no others."""
        return [row for row in rows if not row[-1]] or rows

    def _median(self, rows: list[tuple[str, Statistics, bool]], scale: Scale) -> float | None:
        """The median as `combine` gives it, each run's own times `scale`; None without rows."""
        if not rows:
            return None
        counting = self._counting(rows)
        return float(
            weighted_median((found.median * scale(uid), found.count) for uid, found, _ in counting)
        )


def _found_by(data: bytes) -> tuple[int, int, bytes, str | None]:
    """What `_NUMBER_OF` finds a signature by, given its canonical bytes."""
    kind, fields = signature.decode(data)
    name, rest = signature.split(fields)
    return signed(signature.key_of(data)), kind, rest, name
