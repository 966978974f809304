"""`phantora-ns profile`: the job is run with one leader after another, and what they measure goes
into one database.

Why it exists: ranks of one job run different kernels (pipeline stages, experts), and one GPU can
serve one rank at a time. Each further run takes what the earlier ones measured from the database,
so only what is still unknown is waited for or estimated. What calls cost the host, and what passes
between them, takes a run of its own: the profiler that times kernels slows every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from phantora_ns.kernels.database import databases
from phantora_ns.launch.errors import EXIT_OURS, UsageError, say
from phantora_ns.launch.record.leaders import HOST, KERNELS, NONE, VALUES, parse_leaders
from phantora_ns.launch.record.recorded_values import default_file, read
from phantora_ns.launch.run.run_request import build_request
from phantora_ns.launch.run.runner import Request, Runner

ENOUGH = 0.001
"""Share of a rank's GPU time: a rank with less of it unmeasured need not lead."""
ALL = "all"
"""What a profile records: KERNELS, run after run; HOST, in one more; both; or VALUES alone, one
leader after another."""


def run_profile(
    argv: Sequence[str],
    options: Mapping[str, Any],
    output: Path | None,
    name: str,
    record: str = ALL,
) -> int:
    """Runs the job once per leader; returns the exit code of the first run that fails, else 0.
    Raises UsageError, LaunchError.

    `options` are those of a run (`build_request`), `record` is KERNELS, HOST, ALL or VALUES. What
    was measured before a failure is kept.
    """
    text = options["leaders"]
    if text == NONE:
        raise UsageError(
            "--leaders none measures nothing; on the command line; leave it out, or name ranks"
        )
    options = dict(options)
    first = build_request(argv, **(options | {"leaders": text.partition(",")[0]}), name=name)
    if (
        first.leading is None
    ):  # auto, and no GPU: as if rank 0 had been asked for, which says why it cannot be
        first = build_request(argv, **(options | {"leaders": "0"}), name=name)
    named = parse_leaders(text, _world(first))
    if record == VALUES:
        return _record_values(first, output, named or (0,))
    into = Path(
        databases.user_path(first.cluster.gpu_model.model) if output is None else output
    ).absolute()
    _check_output(into, _open_database)
    first = replace(first, record_into=into)
    led: list[int] = []
    rank: int | None = first.leading.rank if record != HOST else None
    while rank is not None:
        code, runner = _run(
            first,
            _with(into, first.databases),
            rank,
            KERNELS,
            f"rank {rank} leads; run {len(led) + 1}"
            f"{f' of {len(named)}' if named is not None else ''}",
        )
        if code != 0:
            return code
        led.append(rank)
        rank = (
            next((rank for rank in named if rank not in led), None)
            if named is not None
            else next_leader(runner.report, led)
        )
    if record != KERNELS:
        host = named[0] if named and record == HOST else 0
        announcement = f"rank {host} leads{' once more' if led else ''}, for what its host pays"
        code, _ = _run(first, _with(into, first.databases), host, HOST, announcement)
        if code != 0:
            return code
    if not first.quiet:
        what = (
            [f"kernels measured on rank{'s' if len(led) > 1 else ''} {', '.join(map(str, led))}"]
            if led
            else []
        )
        what += [f"host costs on rank {host}"] if record != KERNELS else []
        say(f"{', '.join(what)}; in {into}")
    return 0


def _record_values(first: Request, output: Path | None, ranks: Sequence[int]) -> int:
    """The runs of `profile --record values`, one leader after another; returns an exit code. Raises
    UsageError."""
    into = (
        default_file(first.cluster.gpu_model.model, first.command.argv, first.cwd)
        if output is None
        else output.absolute()
    )
    _check_output(into, read)
    kept = 0
    for rank in ranks:
        code, runner = _run(
            replace(first, record_into=into),
            first.databases,
            rank,
            VALUES,
            f"rank {rank} leads, for the values that its GPU computes",
        )
        if code != 0:
            return code
        kept += runner.values_kept
    if not first.quiet:
        say(
            f"{kept} values recorded on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}; in {into}; replay "
            f"them: --values replay{'' if output is None else f':{output}'}"
        )
    return 0


def _run(
    first: Request, asked: Sequence[str], rank: int, record: str, announcement: str
) -> tuple[int, Runner]:
    """One run with one leader that asks these databases: (its exit code, or ours when it recorded
    nothing; the run)."""
    assert first.leading is not None
    request = replace(
        first, leading=replace(first.leading, rank=rank, record=record), databases=tuple(asked)
    )
    if not request.quiet:
        say(announcement)
    runner = Runner(request)
    code = runner.run()
    problem = _problem(runner, rank, record) if code == 0 else None
    if problem is not None:
        say(f"{_NOTHING[record]} on rank {rank}: {problem}")
        code = EXIT_OURS
    return code, runner


_NOTHING = {
    KERNELS: "nothing was measured",
    HOST: "nothing was recorded of the host",
    VALUES: "no values were recorded",
}


def next_leader(report: Mapping[str, Any] | None, led: Sequence[int]) -> int | None:
    """The rank with the most GPU time that nobody has measured, None when no rank has more than
    ENOUGH of its own left.

    `report` is of the latest run; ranks that have led are left out.
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
            "no process of the job came as its leader; its Python has to start with RANK set, as under torchrun, and without "
            "-I or -E"
        )
    if record == VALUES:
        return None if runner.values_kept else "the job neither reads nor chooses by any"
    if not leading.get("samples" if record == KERNELS else "host_recorded"):
        return "its process launched no work on the GPU, or ended without its exit handlers (os._exit, a signal)"
    return None


def _world(request: Request) -> int:
    return request.shape.nodes * (request.command.processes_per_node or request.shape.gpus_per_node)


def _with(into: Path, others: Sequence[str]) -> tuple[str, ...]:
    """The databases of one run: what has been recorded so far first."""
    return tuple(dict.fromkeys([*([str(into)] if into.is_file() else []), *others]))


def _open_database(path: Path) -> None:
    from phantora_ns.kernels.database.database import Database

    Database.open(path).close()


def _check_output(path: Path, opened: Callable[[Path], object]) -> None:
    """Raises UsageError for a file that cannot become what is to be added to, or that `opened`
    finds to be something else."""
    try:
        if path.exists():
            opened(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:  # DatabaseError is a ValueError
        raise UsageError(f"-o {path}: {error}; on the command line; choose another file") from error
