"""The records of a kernel-time database, independent of any file: runs, with their samples and their
host times.

Why it exists: merging, exporting and importing must not depend on how SQLite stores a record. A run
is identified by its `uid`. A database is a set of runs, and merging is the union of two sets. If
both hold the same run (one file was copied while the run was still recorded), the fuller copy is
kept. That order is total, so merging is commutative, associative and idempotent.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from phantora_ns.kernels import signature
from phantora_ns.kernels.database.durations import Statistics
from phantora_ns.kernels.database.schema import (
    LONGEST_HOST_NS,
    MAX_COUNT,
    RUN_FIELDS,
    DatabaseError,
)
from phantora_ns.kernels.signature import SignatureError

MAX_TEXT = 1 << 16


class HostTime(NamedTuple):
    """Times of one kind of host work: their count, and mean and median in ns."""

    count: int
    mean_ns: float
    median_ns: float


class CallSite(NamedTuple):
    """Host time before one call site (docs/leading.md, HOST). Its key covers `depth` earlier call
    sites; `text` names it."""

    key: int
    depth: int
    text: str
    count: int
    mean_ns: float
    median_ns: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run measured of a signature. `context`: canonical msgpack of `[operator,
    input_bytes, output_bytes, shapes]`, None when no operator was known. `first`: all measured
    launches were ones for which the leader stopped the GPU."""

    context: bytes | None
    first: bool
    statistics: Statistics


class Observation(NamedTuple):
    """The median time of one signature in one configuration (of a run, or of a real trace). Models
    are fitted to observations and judged by them. `fields` and `context` are as in
    docs/wire-protocol.md (a kernel has 12 fields); `count` launches were measured."""

    configuration: str
    kind: int
    fields: list
    context: list | None
    median_ns: float
    count: int
    uid: str = ""
    """the run's"""


@dataclass
class Host:
    """The host times of a run: `score`, the CPU score in ns of a fixed workload (None: not
    measured); `numbers` (latency, gap); `calls` by class; `sites`, the call sites by key."""

    score: float | None = None
    numbers: dict[str, HostTime] = field(default_factory=dict)
    calls: dict[str, HostTime] = field(default_factory=dict)
    sites: dict[int, CallSite] = field(default_factory=dict)

    @classmethod
    def of_message(cls, message: Any) -> Host:
        """From the map of a HOST message. Work that was never seen (count 0) is left out.

        Raises DatabaseError if the map, which comes from another process, is wrong.
        """
        if not isinstance(message, Mapping):
            raise DatabaseError("host times are not a map")
        host = cls()
        for key, value in message.items():
            if not isinstance(key, str):
                raise DatabaseError(f"host times: {key!r} is no name")
            if key == "score":
                host.score = None if value is None else _positive(value, "host score")
            elif key == "calls":
                for name, *time in _rows(value, 4, "host calls"):
                    if found := _time(time, f"host call {name!r}"):
                        host.calls[_text(name, "host call")] = found
            elif key == "sites":
                for number, depth, text, *time in _rows(value, 6, "host sites"):
                    if (
                        type(number) is not int
                        or not 0 <= number < 1 << 64
                        or type(depth) is not int
                        or not 0 <= depth < 256
                    ):
                        raise DatabaseError(
                            f"host site {number!r} of depth {depth!r}: not numbers in range"
                        )
                    if found := _time(time, f"host site {number:#x}"):
                        host.sites[number] = CallSite(
                            number, depth, _text(text, "host site"), *found
                        )
            elif found := _time(value, f"host times: {key!r}"):
                host.numbers[_text(key, "host times")] = found
        return host

    def message(self) -> dict:
        """The map, in a fixed order. `of_message` is its inverse."""
        return {
            "score": self.score,
            **{name: list(time) for name, time in sorted(self.numbers.items())},
            "calls": [[name, *time] for name, time in sorted(self.calls.items())],
            "sites": [list(site) for _, site in sorted(self.sites.items())],
        }


@dataclass
class Run:
    """One leader in one run of a job. `fields` has every name of RUN_FIELDS; `samples` is by a
    signature's canonical bytes."""

    uid: str
    fields: dict[str, str]
    host: Host = field(default_factory=Host)
    samples: dict[bytes, Sample] = field(default_factory=dict)

    @property
    def configuration(self) -> str:
        """The name of the job's configuration, empty if it has none. Validation leaves out one
        configuration after another."""
        return self.fields["configuration"]

    @property
    def count(self) -> int:
        """Durations measured in the run."""
        return sum(sample.statistics.count for sample in self.samples.values())

    def precedence(self) -> tuple[int, bytes]:
        """The copy of a run with the higher precedence is kept: that with more durations. A digest
        makes the order total."""
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line.encode())
        return self.count, digest.digest()

    def lines(self) -> Iterator[str]:
        """The run as JSON lines, the same for the same content (docs/kernels-database.md,
        "Export")."""
        yield _json(
            {
                "run": self.uid,
                **{name: self.fields[name] for name in RUN_FIELDS},
                "host": self.host.message(),
            }
        )
        for data in sorted(self.samples):
            sample, (kind, fields) = self.samples[data], signature.decode(data)
            context = None if sample.context is None else to_json(signature.unpack(sample.context))
            s = sample.statistics
            yield _json(
                {
                    "kind": kind,
                    "fields": to_json(fields),
                    "context": context,
                    "first": sample.first,
                    "count": s.count,
                    "total": s.total,
                    "squares": s.squares,
                    "median": s.median,
                    "middle": s.middle,
                    "low": s.low,
                    "high": s.high,
                    "minimum": s.minimum,
                    "maximum": s.maximum,
                }
            )


def run_fields(meta: Mapping[str, Any]) -> dict[str, str]:
    """Every field of a run, from those that `meta` gives.

    Raises DatabaseError for an unknown field, or a value that is no text.
    """
    unknown = sorted(set(meta) - set(RUN_FIELDS), key=repr)
    if unknown:
        raise DatabaseError(
            f"a run has no field {unknown[0]!r}; its fields are {', '.join(RUN_FIELDS)}"
        )
    return {name: _text(meta.get(name, ""), name) for name in RUN_FIELDS}


def new_uid() -> str:
    """A unique name for a run: 64 random bits."""
    return secrets.token_hex(8)


def union(databases: Iterable[Iterable[Run]]) -> list[Run]:
    """The runs of all databases in the order of their uid; of a run that several hold, the fullest
    copy."""
    found: dict[str, Run] = {}
    for runs in databases:
        for run in runs:
            there = found.get(run.uid)
            if there is None or run.precedence() > there.precedence():
                found[run.uid] = run
    return [found[uid] for uid in sorted(found)]


def pack(kind: int, fields: Any) -> bytes:
    """Canonical bytes of a signature. Raises SignatureError for a signature that a file cannot
    keep."""
    if type(kind) is not int or not 0 <= kind < 1 << 31:
        raise SignatureError(f"{kind!r} is no kind of signature")
    if not isinstance(fields, (list, tuple)):
        raise SignatureError("a signature's fields are a list")
    _check_value(fields)
    return signature.encode(kind, fields)


def pack_context(context: Any) -> bytes | None:
    """Canonical bytes of a context, None for None. Raises SignatureError."""
    if context is None:
        return None
    if not isinstance(context, (list, tuple)):
        raise SignatureError("a context is a list, or nothing")
    _check_value(context)
    return signature.pack(context)


def _check_value(value: Any, depth: int = 0) -> None:
    if depth > 32:
        raise SignatureError("nested too deeply")
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_value(item, depth + 1)
    elif not (value is None or type(value) in (bool, int, float, str, bytes)):
        raise SignatureError(f"a value of type {type(value).__name__} cannot be kept")


def to_json(value: Any) -> Any:
    """A field's value for JSON. Byte strings become {"hex": ...}, and numbers that JSON cannot
    express become {"float": ...}."""
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`. Raises ValueError for a map that is neither of the two."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {"hex"} and isinstance(value["hex"], str):
            return bytes.fromhex(value["hex"])
        if value.keys() == {"float"} and value["float"] in ("inf", "-inf", "nan"):
            return float(value["float"])
        raise ValueError("a map where a value was expected")
    return value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise DatabaseError(f"{what}: {value!r:.80} is no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DatabaseError(f"{what}: {value!r:.80} is no text") from error
    return value


def _positive(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise DatabaseError(f"{what}: {value!r:.80} is no number above 0")
    return float(value)


def _rows(value: Any, width: int, what: str) -> list:
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(row, (list, tuple)) and len(row) == width for row in value
    ):
        raise DatabaseError(f"{what} are not rows of {width}")
    return value


def _time(value: Any, what: str) -> HostTime | None:
    if (
        not isinstance(value, (list, tuple))
        or len(value) != 3
        or type(value[0]) is not int
        or not 0 <= value[0] <= MAX_COUNT
    ):
        raise DatabaseError(f"{what}: not [count, mean, median]")
    if not value[0]:
        return None
    times = value[1:]
    if not all(type(t) in (int, float) and 0 <= t <= LONGEST_HOST_NS for t in times):
        raise DatabaseError(f"{what}: {times!r:.80} are no times")
    return HostTime(value[0], float(times[0]), float(times[1]))
