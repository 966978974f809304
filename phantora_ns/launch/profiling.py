"""`phantora-ns profile`: runs the job with one leader after another, and keeps in one database what
they measure.

Why it exists: ranks of one job run different kernels (pipeline stages, experts), and one GPU serves
one rank at a time. Each run takes from the database what earlier runs measured, so that only what
is still unknown is measured or estimated. What the host pays for calls, and between them, takes a
run of its own, because the profiler that times kernels slows every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phantora_ns.cures import cure_of
from phantora_ns.kernels.database import databases
from phantora_ns.launch.command.options import RunOptions
from phantora_ns.launch.errors import EXIT_OURS, UsageError, say
from phantora_ns.launch.record.leaders import HOST, KERNELS, NONE, VALUES, parse_leaders
from phantora_ns.launch.record.recorded_values import default_file, read
from phantora_ns.launch.run.results import write_report
from phantora_ns.launch.run.run_request import RunRequest, build_request
from phantora_ns.launch.run.runner import Runner

ENOUGH = 0.001
"""Share of a rank's GPU time: a rank of which less is unmeasured need not lead."""
ALL = "all"
"""What a profile records: KERNELS, run after run; HOST, in one more run; both; or VALUES alone, one
leader after another."""


@dataclass(frozen=True)
class ProfileOptions:
    """What `phantora-ns profile` takes beside a run's options. `output` None: the user's own
    database, or file of values. `record`: KERNELS, HOST, ALL or VALUES."""

    output: Path | None = None
    name: str = ""
    record: str = ALL


def run_profile(argv: Sequence[str], options: RunOptions, profile: ProfileOptions) -> int:
    """Runs the job once per leader; returns the exit code of the first run that fails, else 0.

    What was measured before a failure is kept. Raises UsageError, LaunchError.
    """
    first = _first_request(argv, options, profile.name)
    named = parse_leaders(options.leaders, first.ranks)
    if profile.record == VALUES:
        return _record_values(first, profile.output, named or (0,))
    into = profile.output
    if into is None:
        into = Path(databases.user_path(first.cluster.gpu_model.model))
    into = into.absolute()
    _check_output(into, _open_database)
    first = replace(first, record_into=into)
    done = []
    if profile.record != HOST:
        code, led = _record_kernels(first, into, named)
        if code != 0:
            return code
        done.append(f"kernels measured on {_ranks(led)}")
    if profile.record != KERNELS:
        rank = named[0] if named and profile.record == HOST else 0
        again = " once more" if done else ""
        if done:
            _forget_report(first)
        code, _ = _run(
            replace(first, databases=_with(into, first.databases)),
            rank,
            HOST,
            f"rank {rank} leads{again}, for what its host pays",
        )
        if code != 0:
            return code
        done.append(f"host costs on rank {rank}")
    if not first.quiet:
        say(f"{', '.join(done)}; in {into}")
    return 0


def _first_request(argv: Sequence[str], options: RunOptions, name: str) -> RunRequest:
    """The first leader's run."""
    if options.leaders == NONE:
        raise UsageError(
            "--leaders none measures nothing; on the command line; leave it out, or name ranks"
        )
    # the ranks beside a leader do not stand for those of later runs
    options = replace(options, host_time=options.host_time or "measured")
    leader = options.leaders.partition(",")[0]
    first = build_request(argv, replace(options, leaders=leader), name=name)
    if first.leading is None:
        # auto, and no GPU. Asking for rank 0 says why no rank can lead.
        first = build_request(argv, replace(options, leaders="0"), name=name)
    return first


def _record_kernels(
    first: RunRequest, into: Path, named: Sequence[int] | None
) -> tuple[int, list[int]]:
    """(exit code, ranks that have led): one run for each of the ranks `named`, or, when it is None,
    for each rank that has enough unmeasured GPU time."""
    assert first.leading is not None
    led: list[int] = []
    rank: int | None = first.leading.rank
    while rank is not None:
        of = "" if named is None else f" of {len(named)}"
        if led:
            _forget_report(first)
        code, runner = _run(
            replace(first, databases=_with(into, first.databases)),
            rank,
            KERNELS,
            f"rank {rank} leads; run {len(led) + 1}{of}",
        )
        if code != 0:
            return code, led
        led.append(rank)
        if named is None:
            rank = next_leader(runner.report, led)
        else:
            rank = next((other for other in named if other not in led), None)
    return 0, led


def _record_values(first: RunRequest, output: Path | None, ranks: Sequence[int]) -> int:
    """The runs of `profile --record values`, one leader after another; returns an exit code. Raises
    UsageError."""
    into = output
    if into is None:
        into = default_file(first.cluster.gpu_model.model, first.command.argv, first.cwd)
    into = into.absolute()
    _check_output(into, read)
    kept = 0
    for rank in ranks:
        if kept:
            _forget_report(first)
        code, runner = _run(
            replace(first, record_into=into),
            rank,
            VALUES,
            f"rank {rank} leads, for the values that its GPU computes",
        )
        if code != 0:
            return code
        kept += runner.values_kept
    if not first.quiet:
        option = "replay" if output is None else f"replay:{output}"
        say(f"{kept} values recorded on {_ranks(ranks)}; in {into}; replay them: --values {option}")
    return 0


def _forget_report(first: RunRequest) -> None:
    """The report is that of the last run. When that one ends without, the report of an earlier one would be taken for
    it."""
    if first.report is not None:
        with suppress(OSError):  # the next run finds out, and says so
            first.report.unlink(missing_ok=True)


def _run(first: RunRequest, rank: int, record: str, announcement: str) -> tuple[int, Runner]:
    """One run with one leader. Returns its exit code, or ours when it recorded nothing, and the
    run."""
    assert first.leading is not None
    request = replace(first, leading=replace(first.leading, rank=rank, record=record))
    if not request.quiet:
        say(announcement)
    runner = Runner(request)
    code = runner.run()
    problem = _problem(runner, rank, record) if code == 0 else None
    if problem is not None:
        say(f"{_NOTHING[record]} on rank {rank}: {problem}")
        code = EXIT_OURS
        _report_failure(request, runner)
    return code, runner


def _report_failure(request: RunRequest, runner: Runner) -> None:
    """The job went well, but not the profile; the report must not say otherwise."""
    if request.report is None or runner.report is None:
        return
    try:
        write_report(
            request.report, runner.report | {"exit_code": EXIT_OURS, "failed_by": "launcher"}
        )
    except OSError as error:
        cure = cure_of(error, "run it again")
        say(
            f"the report says exit code 0 and cannot be changed: {error.strerror}; {request.report}; {cure}"
        )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


_NOTHING = {
    KERNELS: "nothing was measured",
    HOST: "nothing was recorded of the host",
    VALUES: "no values were recorded",
}


def next_leader(report: Mapping[str, Any] | None, led: Sequence[int]) -> int | None:
    """The rank with the most unmeasured GPU time; None when no rank has more than the share
    ENOUGH of its own unmeasured.

    `report` is that of the latest run. Ranks that have led are left out.
    """
    if report is None or not (report["leading"] or {}).get("unmeasured_signatures"):
        return None
    best, most_ns = None, 0
    for entry in report["ranks"]:
        busy_ns, unmeasured_ns = entry["gpu_busy_ns"] or 0, entry["gpu_unmeasured_ns"] or 0
        if entry["rank"] is None or entry["rank"] in led or unmeasured_ns <= busy_ns * ENOUGH:
            continue
        if unmeasured_ns > most_ns:
            best, most_ns = entry["rank"], unmeasured_ns
    return best


def _problem(runner: Runner, rank: int, record: str) -> str | None:
    """Why a run that ended well has recorded nothing, None when it has."""
    leading = (runner.report or {}).get("leading") or {}
    if leading.get("problem"):
        return leading["problem"]
    if rank not in leading.get("led", ()):
        return (
            "no process of the job became its leader; its Python has to start with RANK set, "
            "as under torchrun, and without -I or -E"
        )
    if record == VALUES:
        return None if runner.values_kept else "the job reads none, and none decides what it does"
    if not leading.get("samples" if record == KERNELS else "host_recorded"):
        return (
            "its process launched no work on the GPU, or ended without its exit handlers "
            "(os._exit, a signal)"
        )
    return None


def _with(into: Path, others: Sequence[str]) -> tuple[str, ...]:
    """The databases of one run: first what has been recorded so far."""
    return tuple(dict.fromkeys([*([str(into)] if into.is_file() else []), *others]))


def _open_database(path: Path) -> None:
    from phantora_ns.kernels.database.database import Database

    Database.open(path).close()


def _check_output(path: Path, opened: Callable[[Path], object]) -> None:
    """Raises UsageError for an output file that `opened` refuses, or whose folder cannot be
    made."""
    try:
        if path.exists():
            opened(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:  # DatabaseError is a ValueError
        raise UsageError(f"-o {path}: {error}; on the command line; choose another file") from error
