"""`phantora_ns.run`: one run, as the command line does it, from Python.

Why it exists: notebooks and scripts want a `Report`, and an exception where the command has an exit
code. Rule: the run is a child process. A run takes signals, a terminal and Python's module search path,
which belong to the caller here. The child is killed when the caller's process dies, and leaves nothing
behind then.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Literal, TypedDict, Unpack

from phantora_ns.api import notebook
from phantora_ns.api.report import Report
from phantora_ns.launch.command.options import option_words
from phantora_ns.launch.errors import LaunchError, PhantoraError, UsageError
from phantora_ns.launch.machine.installation import SANDBOX, require_built
from phantora_ns.launch.machine.own_python import own_command

StrPath = str | os.PathLike[str]


class JobError(PhantoraError):
    """The job failed, or the run was ended by a signal. `report`: what the run says about itself all the
    same; None when it could not be made. `exit_code`: as that of the command."""

    def __init__(self, message: str, exit_code: int, report: Report | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.report = report


class Options(TypedDict, total=False):
    """The options of the command line, by their names with `_` for `-`. What may be repeated there
    takes one value or several; a flag takes True. `phantora-ns --help-all` says what each does."""

    cluster: StrPath | None
    set: Mapping[str, object] | str | Sequence[str]
    slow_gpu: str | Sequence[str]
    slow_link: str | Sequence[str]
    nnodes: int | None
    gpus_per_node: int | None
    report: StrPath | None
    html: StrPath | None
    trace: StrPath | None
    trace_steps: str | None
    trace_ranks: str | None
    host_time: Literal["auto", "measured", "model", "none"] | None
    host_scale: float | Literal["auto"]
    host_jitter: Literal["sampled", "mean"]
    record_host: StrPath | None
    sync: Literal["conservative", "optimistic"]
    isolation: Literal["namespaces", "none"]
    kernels: StrPath | Sequence[StrPath]
    leaders: str
    values: str
    host_tensors: Literal["auto", "real"]
    memory_modules: bool
    warm_start: Literal["auto", "off"]
    preload_modules: str | None
    fold: str
    fold_witnesses: Literal["all", "first"]
    work: str | None
    model_flop: str | float | None
    keep_run_dir: bool
    quiet: bool


def _shows_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives `function` a signature that names each of Options, for help() and for notebooks. The
    annotations stay what type checkers read."""
    signature = inspect.signature(function)
    fixed = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    named = [
        inspect.Parameter(name, keyword, default=None, annotation=kind.__forward_arg__)
        for name, kind in Options.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=[*fixed, *named])  # type: ignore[attr-defined]
    return function


def run(
    command: str | Sequence[StrPath],
    *,
    check: bool = True,
    cwd: StrPath | None = None,
    env: Mapping[str, str] | None = None,
    log: StrPath | None = None,
    **options: Unpack[Options],
) -> Report:
    """Runs an unmodified job as if on a cluster of GPU servers, and returns what came out.

    The job runs in child processes, and nothing in this process changes. Its output and the summary
    go where this process's own output goes. On a terminal and in a notebook a line shows how far the run
    is, unless it is `quiet`.

    :param command: what you would type on the cluster, as a list of words or as one text:
        `["torchrun", "--nproc-per-node", "8", "train.py"]`
    :param check: raise JobError when the job fails. False: return its report, whose `exit_code` is not 0
    :param cwd: the folder in which the job runs; by default the current one
    :param env: environment variables, besides those of this process
    :param log: a file for the output of the job and for the summary; it is replaced
    :param options: those of `phantora-ns`, with `_` for `-`: `cluster="h200-rail"`,
        `set={"gpu": "b200"}`, `html="run.html"`, `quiet=True`. None means that an option is not given
    :raises UsageError: something that was asked for cannot be; nothing was started
    :raises JobError: the job failed, or a signal ended the run; it has the report
    :raises LaunchError: phantora-ns itself failed

    The text of an error is the line that the command prints. A KeyboardInterrupt ends the run first,
    as Ctrl-C does at the command.
    """
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"run() got an unexpected keyword argument {min(unknown)!r}")
    given, words = option_words(dict(options)), _words(command)
    with notebook.progress_line(not options.get("quiet")) as progress:
        answer = _in_a_child([str(len(given)), *given, *words], cwd, env, log, progress)
    message, code = answer["message"], answer["exit_code"]
    if answer["kind"] == "usage":
        raise UsageError(message)
    report = None if answer["report"] is None else Report(answer["report"])
    if answer["kind"] == "launch" or report is None or report.failed_by in ("hub", "launcher"):
        raise LaunchError(message or f"the run ended with exit code {code} and no report")
    if code and check:
        raise JobError(message or f"the command failed with exit code {code}", code, report)
    return report


_shows_options(run)


def _words(command: str | Sequence[StrPath]) -> list[str]:
    if isinstance(command, str):
        return shlex.split(command)
    return [os.fspath(word) for word in command]


def _opened(log: StrPath) -> IO[bytes]:
    try:
        return open(log, "wb")
    except OSError as error:
        raise UsageError(
            f"log: {log} cannot be written: {error.strerror}; in the call of run; choose another file"
        ) from error


def _in_a_child(
    arguments: Sequence[str],
    cwd: StrPath | None,
    env: Mapping[str, str] | None,
    log: StrPath | None,
    progress: Callable[[str], None] | None,
) -> dict[str, Any]:
    """Runs the command line in a child (child.py); returns what it tells: `kind`, `message`,
    `exit_code`, `report`. `progress`: is told the line of progress."""
    require_built()
    if cwd is not None and not os.path.isdir(cwd):
        raise UsageError(f"cwd: there is no folder {cwd}; in the call of run; create it")
    reader, writer = os.pipe()
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(os.fdopen(reader, "rb"))
        ours = stack.enter_context(os.fdopen(writer, "wb"))
        output = None if log is None else stack.enter_context(_opened(log))
        child = subprocess.Popen(
            [
                str(SANDBOX),
                "guard",
                str(os.getpid()),
                *own_command(
                    "phantora_ns.api.child", str(writer), str(int(progress is not None)), *arguments
                ),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            pass_fds=(writer,),
            start_new_session=True,  # an interrupt reaches this process, which passes it on once
        )
        ours.close()
        answer: dict[str, Any] = {}
        try:
            for line in told:
                answer = json.loads(line)
                if progress is not None and "progress" in answer:
                    progress(answer.pop("progress"))
            code = child.wait()
        except BaseException:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise
    if not answer:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise LaunchError(f"the run ended ({how}) without a word; its messages, if any, are above")
    return answer
