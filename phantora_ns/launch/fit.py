"""`phantora-ns fit COMMAND...`: runs the first steps of a job to say whether it fits into memory.

Why it exists: "will it fit?" needs no times and few steps. The job is run as it is, without host times, and
ended once no rank's memory grows (run/step_hold.py). If a GPU has no room, it is run once more on GPUs with
more memory, because the failing allocation alone does not say how much is missing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from phantora_ns.config import list_gpus, load_gpu
from phantora_ns.launch.command.options import RunOptions
from phantora_ns.launch.errors import UsageError, say
from phantora_ns.launch.run.run_request import RunRequest, build_request
from phantora_ns.launch.run.runner import Runner
from phantora_ns.launch.run.step_hold import HoldRule
from phantora_ns.model.gpu import GpuModel
from phantora_ns.report import fit as judge
from phantora_ns.report.fit import Fit

EXIT_FITS, EXIT_NOT, EXIT_UNKNOWN = 0, 1, 3
MORE = 4
MOST_BYTES = 400 << 30
"""What a GPU with more memory has: MORE times its own, at most this. A device's addresses
(libintercept/base/memory.h) hold half a tebibyte."""
SHOWN_LINES = 30
"""Of the output of a job that failed for another reason."""
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True)
class FitOptions:
    """What `phantora-ns fit` takes beside a run's options. `steps`: end after this one. `log`: gets the
    job's output."""

    steps: int | None = None
    as_json: bool = False
    log: IO[bytes] | None = None


def run_fit(
    argv: Sequence[str], options: RunOptions, fit: FitOptions, tell: Callable[[str], None]
) -> int:
    """Runs it; `tell` gets the answer, line by line. Returns the exit code. Raises UsageError,
    LaunchError."""
    request = _request(argv, options, fit)
    with fit.log or tempfile.TemporaryFile() as log:
        runner, code = _run(request, log)
        report = runner.report
        if report is None or runner.failed_by in ("hub", "launcher") or runner.ended_by:
            say(runner.message or "the run ended without a report")
            return code
        found, ended = _judge(request, fit, runner, report), 0
        if found.fits is False:
            found, ended = _with_more_memory(request, found, log)
        if found.fits is None:
            _show_end(log)
            say(f"whether it fits is not known: {runner.message}")
    if fit.as_json:
        tell(json.dumps(found.as_json() | {"exit_code": code}, indent=1))
    else:
        for line in judge.lines_of(found):
            tell(line)
    return ended or {True: EXIT_FITS, False: EXIT_NOT, None: EXIT_UNKNOWN}[found.fits]


def _request(argv: Sequence[str], options: RunOptions, fit: FitOptions) -> RunRequest:
    if options.leaders not in ("auto", "none"):
        raise UsageError(
            "--leaders needs whole runs; with phantora-ns fit; leave it out, or run the job itself"
        )
    rule = HoldRule()
    if fit.steps is not None:
        rule = HoldRule(first=fit.steps, most=fit.steps)
    options = replace(options, host_time=options.host_time or "none", leaders="none")
    return replace(build_request(argv, options), hold=rule)


def _run(request: RunRequest, log: IO[bytes]) -> tuple[Runner, int]:
    runner = Runner(replace(request, output=log.fileno()))
    return runner, runner.run()


def _judge(request: RunRequest, fit: FitOptions, runner: Runner, report: dict[str, Any]) -> Fit:
    """What the run says."""
    model = request.cluster.gpu_model
    fits = True if report["exit_code"] == 0 else False if report["out_of_memory"] else None
    return Fit(
        fits,
        model.name,
        model.memory_bytes,
        _ended(request, fit, runner, report),
        judge.needs_of(report),
        judge.refusals_of(report) if fits is False else (),
        held=report["memory_held"],
    )


def _ended(request: RunRequest, fit: FitOptions, runner: Runner, report: dict[str, Any]) -> str:
    seen, rule = runner.seen, request.hold
    assert rule is not None
    if seen is not None:
        asked = fit.steps is not None
        return judge.ended_after(seen.step, seen.grown_step, rule.quiet, seen.without_steps, asked)
    steps = max((rank["steps"] or 0 for rank in report["ranks"]), default=0)
    told = f"{steps} steps" if steps else "the job tells no steps (docs/report.md)"
    return f"the job ran to its end: {told}"


def _with_more_memory(request: RunRequest, found: Fit, log: IO[bytes]) -> tuple[Fit, int]:
    """What the job needs when no GPU is full; and the exit code when the user ended that run, else 0."""
    model = request.cluster.gpu_model
    more = replace(
        model, memory_bytes=max(model.memory_bytes, min(MORE * model.memory_bytes, MOST_BYTES))
    )
    if not request.quiet:
        say("it does not fit; running it once more with more memory, to see how much it needs")
    larger = replace(
        request,
        cluster=replace(request.cluster, gpu_model=more),
        report=None,
        html=None,
        trace=None,
    )
    runner, code = _run(larger, log)
    if runner.ended_by is not None:
        say(runner.message or "the run was ended")
        return found, code
    if code or runner.report is None:
        return found, 0
    whole = judge.needs_of(runner.report)
    if not whole:
        return found, 0
    ended = _ended(larger, FitOptions(), runner, runner.report)
    grows = any(judge.SEGMENTS + ":True" in os.environ.get(name, "") for name in _ALLOCATOR)
    held = runner.report["memory_held"]
    advice = judge.advice(model.memory_bytes, whole, grows, _larger_than(model), held)
    found = replace(
        found, whole=whole, ended=f"with more memory: {ended}", advice=advice, held=held
    )
    return found, 0


def _larger_than(model: GpuModel) -> dict[str, int]:
    """GPU models with more memory than this one."""
    sizes = {name: load_gpu(name).memory_bytes for name in list_gpus()}
    return {name: size for name, size in sizes.items() if size > model.memory_bytes}


def _show_end(log: IO[bytes]) -> None:
    """Prints the end of the job's output on stderr."""
    log.flush()
    with open(f"/proc/self/fd/{log.fileno()}", "rb") as written:
        lines = deque(written, SHOWN_LINES)
    sys.stderr.buffer.write(b"".join(lines))
    sys.stderr.flush()
