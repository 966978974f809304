"""Logs of nccl-tests: what was run on which GPUs, and how long it took.

Why it exists: a log is what people have. Rules: the column names in a table's own header say what a
row means, so all releases are read by one piece of code. A row must agree with itself: nccl-tests
prints size, time and bandwidth, and each follows from the other two. What cannot be read is counted
or refused, never guessed. Source of the format: NVIDIA/nccl-tests, src/common.cu and src/util.cu of
releases 2.0 to 2.19.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

OPERATIONS = (
    "reduce_scatter",
    "all_reduce",
    "all_gather",
    "alltoall",
    "sendrecv",
    "hypercube",
    "broadcast",
    "scatter",
    "gather",
    "reduce",
)
"""The tests, so that no name comes after one that is part of it."""
_KNOWN = ", ".join(sorted(OPERATIONS))
NO_ROOT = -1

_STARTS = re.compile(r"#\s*(?:nccl-tests version |Collective test starting: |nThread\s)")
_PROGRAM = re.compile(r"(?<![a-z_])([a-z_]+)_perf\b")
_LIBRARY = re.compile(r"nccl-library=(\d{1,9})(?!\d)")
_VERSION = re.compile(r"NCCL version (\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s+"
    r"\[([^\]]*)\]\s*(.*\S)"
)
_HEADER = re.compile(r"#\s*(size\s+count\s+type\s.*(?:time|cputime)\s.*)")
_SETTING = re.compile(r"\b(agg iters|graph): (\d+)")
_TAGS = re.compile(r"\x1b\[[0-9;]*m|\[\d+,\d+\]<std(?:out|err)>:|\[\d+\](?=\s)")
"""Colours, and what mpirun writes before each piece of output, also within a row."""
_TYPES = r"(?:u?int(?:8|32|64)|u?char|half|float|double|bfloat16|f8e4m3|f8e5m2|fp8_e4m3|fp8_e5m2)"
_ROW = re.compile(rf"(?:^|[\s:>])(\d+\s+\d+\s+{_TYPES}\s.*)")
_CLOSE = 0.05  # of what a row says twice: a time above 10 s has two digits
MOST_BYTES = 1 << 50
_MOST_DIGITS = 9


class LogError(ValueError):
    """A log cannot be used; the message names it and says what to do."""


@dataclass(frozen=True)
class Rank:
    """A line "# Rank ...": who takes part. `group`: ranks of other groups measure beside it."""

    number: int
    group: int
    host: str
    device: int
    bus: str
    gpu: str


@dataclass(frozen=True)
class Timing:
    """One operation of a row: microseconds, and GB/s by nccl-tests' two definitions."""

    us: float
    algorithm: float
    bus: float


@dataclass(frozen=True)
class Row:
    """One size: bytes as nccl-tests counts them. `timings`: out of place, then in place."""

    size: int
    root: int
    timings: tuple[Timing, ...]


@dataclass
class Run:
    """One table of a log. `nccl`: the library's release as "2.28.9", None: the log does not say.
    `damaged`: rows that were not read; `wrong`: results that were wrong. `unusual`: how it differs
    from a plain run, "" if it does not. `reductions`: whether rows name one, as far as they have the
    column."""

    log: str
    operation: str = ""
    nccl: str | None = None
    ranks: list[Rank] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    damaged: int = 0
    wrong: int = 0
    unusual: str = ""
    reductions: set[bool] = field(default_factory=set)

    def groups(self) -> list[list[Rank]]:
        """The ranks that form a communicator each."""
        found: dict[int, list[Rank]] = {}
        for rank in self.ranks:
            found.setdefault(rank.group, []).append(rank)
        return [found[group] for group in sorted(found)]


def read_log(path: Path) -> list[Run]:
    """The runs of a file. Raises LogError."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LogError(f"cannot be read: {error.strerror}; {path}; give a readable file") from None
    return parse(text, str(path))


def parse(text: str, log: str) -> list[Run]:
    """The runs in the text of a log. `log` is named in messages. Raises LogError."""
    runs = [run for run in _runs(text.splitlines(), log) if run.rows or run.damaged]
    if not runs:
        raise LogError(
            f"holds no table of nccl-tests; {log}; give what all_reduce_perf and the like print"
        )
    for run in runs:
        _check(run)
    return runs


def _runs(lines: Iterable[str], log: str) -> Iterator[Run]:
    run, columns, program = Run(log), list[str](), ""
    for raw in lines:
        line = _TAGS.sub(" ", raw)
        if _STARTS.search(line) and run.ranks:
            yield run
            run, columns = Run(log, nccl=run.nccl), []
        if found := _PROGRAM.findall(line):
            program = found[-1]
            if not run.rows:
                run.operation = program
        if code := _LIBRARY.search(line):
            run.nccl = _release(int(code[1]))
        elif version := _VERSION.search(line):
            run.nccl = ".".join(version.groups())
        if "Blocking Enabled" in line:
            run.unusual = "with barriers between operations (-z)"
        for name, value in _SETTING.findall(line):
            if name == "agg iters" and value != "1":
                run.unusual = f"with {value} operations in each launch (-m)"
        if rank := _RANK.search(line):
            number, group, host, device, bus, gpu = rank.groups()
            numbers = [_whole(text, log) for text in (number, group or "0", device)]
            run.ranks.append(Rank(numbers[0], numbers[1], host, numbers[2], bus, gpu))
        elif header := _HEADER.search(line):
            columns = header[1].split()
            if "cputime" in columns:
                run.unusual = "with times of the CPU (-C)"
        elif columns and (values := _ROW.search(line)):
            run.operation = run.operation or program
            _add(run, columns, values[1].split())
    yield run


def _whole(text: str, log: str) -> int:
    """Of a rank's line. Without that line its run would be taken for a smaller one."""
    if len(text) > _MOST_DIGITS:
        raise LogError(f"has a rank with a number of {len(text)} digits; {log}; run it again")
    return int(text)


def _release(code: int) -> str:
    """Of NCCL_VERSION_CODE: 22809 is 2.28.9."""
    high, low = (10000, 100) if code >= 10000 else (1000, 100)
    return f"{code // high}.{code % high // low}.{code % low}"


def _add(run: Run, columns: list[str], values: list[str]) -> None:
    """A row, if it has a value for each column. The columns of a timing come twice. A hypercube's
    rows leave out its reduction."""
    if "redop" in columns and (place := columns.index("redop")) < len(values):
        if re.fullmatch(r"-?\d+", values[place]):
            values = [*values[:place], "", *values[place:]]
    named: dict[str, list[str]] = {}
    for name, value in zip(columns, values):
        named.setdefault(name, []).append(value)
    time = "cputime" if "cputime" in columns else "time"
    try:
        if len(values) < len(columns) - ("timestamp" in columns):
            raise ValueError
        size, root = int(named["size"][0]), int(named.get("root", [str(NO_ROOT)])[0])
        numbers = [[_number(text) for text in named[name]] for name in (time, "algbw", "busbw")]
        timings = tuple(Timing(*three) for three in zip(*numbers, strict=True))
        if not 0 <= size <= MOST_BYTES:
            raise ValueError
    except (ValueError, KeyError):
        run.damaged += 1
        return
    run.wrong += sum(map(_wrong, named.get("#wrong", [])))
    if size and all(timing.us for timing in timings):
        run.rows.append(Row(size, root, timings))
        run.reductions |= {word not in ("", "none") for word in named.get("redop", [])}


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e15:
        raise ValueError
    return value


def _wrong(text: str) -> int:
    try:
        return int(float(text) > 0)
    except ValueError:
        return 0  # N/A: not checked


def bus_share(operation: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it (doc/PERFORMANCE.md)."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("sendrecv", "broadcast", "reduce", "hypercube"):
        return 1.0
    return (ranks - 1) / ranks


def _check(run: Run) -> None:
    """Completes the run, and takes out rows that contradict themselves. Raises LogError where the
    run cannot be what it says."""
    _check_ranks(run)
    _check_operation(run)
    ranks = len(run.groups()[0])
    counted = (ranks - 1) / ranks if run.operation == "hypercube" else 1.0
    if ranks > 1:
        good = [row for row in run.rows if all(_agree(row.size * counted, t) for t in row.timings)]
        run.damaged += len(run.rows) - len(good)
        run.rows = good
        if good and not _has_bus(run, run.operation):
            raise LogError(
                f"its bus bandwidths are not those of {run.operation} on {ranks} ranks; {run.log}; give "
                "the whole output of one test, with all of its ranks"
            )
    if not run.rows:
        raise LogError(f"all {run.damaged} rows of its table are damaged; {run.log}; run it again")


def _agree(size: float, timing: Timing) -> bool:
    """Whether bytes, microseconds and GB/s are those of one operation."""
    return _close(timing.algorithm, size / timing.us / 1000)


def _has_bus(run: Run, operation: str) -> bool:
    """Whether bus bandwidths are those of the operation, where there are enough digits to tell."""
    share = bus_share(operation, len(run.groups()[0]))
    told = [t for row in run.rows for t in row.timings if t.algorithm >= 1]
    fitting = sum(_close(timing.bus, timing.algorithm * share) for timing in told)
    return 2 * fitting >= len(told)


def _close(printed: float, computed: float) -> bool:
    return abs(printed - computed) <= _CLOSE * computed + 0.01


def _check_operation(run: Run) -> None:
    """Which test it is, by its own words, else its file's name, else what its rows say."""
    if run.operation in OPERATIONS:
        return
    if run.operation:
        raise LogError(f"is of {run.operation}_perf; {run.log}; known are {_KNOWN}")
    plain = re.sub("[^a-z]", "", Path(run.log).stem.lower())
    named = [name for name in OPERATIONS if name.replace("_", "") in plain]
    fitting = named[:1] or [name for name in OPERATIONS if _could_be(run, name)]
    if len(fitting) != 1:
        raise LogError(
            f"does not say which test wrote it; {run.log}; name the file after its test, such as "
            f"all_reduce.log; known are {_KNOWN}"
        )
    run.operation = fitting[0]


def _could_be(run: Run, operation: str) -> bool:
    """Whether the columns of a table with both redop and root, and its bandwidths, are those of the
    test. Which columns a test fills in is in its source file."""
    reduces = operation in ("all_reduce", "reduce_scatter", "reduce", "sendrecv")
    rooted = operation in ("broadcast", "reduce", "gather", "scatter")
    told = any(timing.algorithm >= 1 for row in run.rows for timing in row.timings)
    return (
        told
        and operation != "hypercube"
        and run.reductions == {reduces}
        and {row.root != NO_ROOT for row in run.rows} == {rooted}
        and _has_bus(run, operation)
    )


def _check_ranks(run: Run) -> None:
    if not run.ranks:
        raise LogError(
            f'has no line "# Rank ..." before its table; {run.log}; give the whole output, so that '
            "it says which GPUs took part"
        )
    numbers = sorted(rank.number for rank in run.ranks)
    if numbers != list(range(len(numbers))):
        raise LogError(
            f"its {len(numbers)} ranks are numbered {_short(numbers)}; {run.log}; if each process counts "
            "from 0, nccl-tests was compiled without MPI: compile it with MPI=1"
        )
    run.ranks.sort(key=lambda rank: rank.number)
    if len({len(group) for group in run.groups()}) > 1:
        raise LogError(f"its groups are not equally large; {run.log}; give groups of one size")


def _short(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:8]))
    return text + (", ..." if len(numbers) > 8 else "")
