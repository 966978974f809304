"""`phantora-ns`: its commands, and how errors end them.

`phantora-ns [OPTIONS] COMMAND...` runs COMMAND on every node; `profile`, `doctor` and the like are
commands of our own. Our options come first: everything from the first word on that is no option is
the user's. Rule: what a command needs is imported when it is called, because every job pays for
what is imported here.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from phantora_ns.cli.calibrate import calibrate
from phantora_ns.cli.help_text import (
    SHELLS,
    RareCommand,
    ShortHelpCommand,
    ShortHelpGroup,
    completion_script,
    help_all,
)
from phantora_ns.cli.run_options import run_options
from phantora_ns.launch.command.options import RunOptions
from phantora_ns.launch.errors import EXIT_OURS, EXIT_USAGE, LaunchError, UsageError, say

_JOB_FOLLOWS: dict[str, Any] = {"allow_interspersed_args": False}
_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _JobGroup(ShortHelpGroup):
    """A group whose unknown commands are jobs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands and args[0] != "run":
            return super().resolve_command(ctx, args)
        return "run", self.commands["run"], ["--", *args]


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from phantora_ns.launch.machine.software import own_version

        click.echo(f"phantora-ns {own_version()}")
        context.exit()


@click.group(cls=_JobGroup, context_settings=_JOB_FOLLOWS | _HELP)
@run_options
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@help_all
@click.pass_context
def cli(context: click.Context, **options: Any) -> None:
    """Runs COMMAND, an unmodified distributed PyTorch job, as if on a cluster of GPU servers, on
    this machine.

    \b
    phantora-ns torchrun --nnodes 2 --nproc-per-node 8 train.py
    phantora-ns --nnodes 2 --gpus-per-node 8 -- python train.py
    """
    context.obj = RunOptions(**options)


@cli.command(hidden=True, context_settings=_JOB_FOLLOWS | {"help_option_names": []})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def run(options: RunOptions, command: tuple[str, ...]) -> int:
    """Runs COMMAND on every node."""
    from phantora_ns.launch.run.run_request import build_request
    from phantora_ns.launch.run.runner import Runner

    return Runner(build_request(command, options)).run()


def _given(context: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """The options that stand after a command's own name; the others stood before it, if anywhere."""
    return {
        key: value
        for key, value in options.items()
        if context.get_parameter_source(key) is not ParameterSource.DEFAULT
    }


@cli.command(
    cls=ShortHelpCommand,
    context_settings=_JOB_FOLLOWS,
    short_help="Measures a job's kernels on this machine's GPU.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The database to add to, or the file of values  [default: "
    "~/.local/share/phantora-ns/kernels/GPU.sqlite, or a file by command and folder].",
)
@click.option(
    "--name",
    default="",
    metavar="TEXT",
    help="The name of the job's configuration, kept with the measurements  [default: none].",
)
@click.option(
    "--record",
    type=click.Choice(["all", "kernels", "host", "values"]),
    default="all",
    show_default=True,
    help="What to record. kernels: kernel times, one run per leader. host: host times, in one run. "
    "all: both. values: what the GPU computes and the job depends on, for --values replay.",
)
@run_options
@help_all
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def profile(
    context: click.Context,
    command: tuple[str, ...],
    output: Path | None,
    name: str,
    record: str,
    **options: Any,
) -> int:
    """Measures a job's kernels on this machine's GPU: runs the job with one leader after another.

    The options of a run may come before or after the word profile.

    \b
    phantora-ns profile torchrun --nproc-per-node 8 train.py
    phantora-ns profile --leaders 0,4 -o times.sqlite torchrun --nproc-per-node 8 train.py
    """
    from phantora_ns.launch.profiling import ProfileOptions, run_profile

    own = replace(context.obj, **_given(context, options))
    return run_profile(command, own, ProfileOptions(output, name, record))


@cli.command(
    cls=ShortHelpCommand,
    context_settings=_JOB_FOLLOWS,
    short_help="Says whether a job fits into memory, from its first steps.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after N steps  [default: 4 or more, up to 20, until no rank's memory grows].",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON; sizes in bytes.")
@click.option(
    "--log",
    type=click.File("w+b"),
    metavar="FILE",
    help="A file for the job's output  [default: none; its end is shown if the job fails for "
    "another reason].",
)
@run_options
@help_all
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def fit(
    context: click.Context,
    command: tuple[str, ...],
    steps: int | None,
    as_json: bool,
    log: Any,
    **options: Any,
) -> int:
    """Says whether a job fits into the GPUs' memory, by how much, which rank is nearest to the limit, and
    what to change. It runs the job's first steps, without host times.

    Exit code 0: it fits. 1: it does not. 3: not known, because the job failed for another reason.

    \b
    phantora-ns fit torchrun --nproc-per-node 8 train.py
    phantora-ns fit --set gpu=b200 torchrun --nproc-per-node 8 train.py
    """
    from phantora_ns.launch.fit import FitOptions, run_fit

    own = replace(context.obj, **_given(context, options))
    return run_fit(command, own, FitOptions(steps, as_json, log), click.echo)


def _point_options(command: Any) -> Any:
    """The options of a run that points of a sweep may have."""
    from phantora_ns.launch.command.options import NOT_OF_A_POINT

    return run_options(command, without=NOT_OF_A_POINT)


class _SweepCommand(ShortHelpCommand):
    """Its options may follow the file, which a command's may not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the file after the options that follow it."""
        with_value = {
            name
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for name in parameter.opts
        }
        for at, word in enumerate(args):
            if word != "--" and (word.startswith("-") or (at and args[at - 1] in with_value)):
                continue
            if not word.endswith(".toml"):  # a command, whose words are its own
                break
            after = args[at + 1 :]
            _, left, _ = self.make_parser(ctx).parse_args(list(after))
            options = after[: len(after) - len(left)]
            return super().parse_args(ctx, [*args[:at], *options, word, *left])
        return super().parse_args(ctx, args)


@cli.command(
    cls=_SweepCommand,
    context_settings=_JOB_FOLLOWS,
    short_help="Runs a job with many settings, and says which is best.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder of results; finished points in it are not run again  [default: FILE without its "
    "suffix, or sweep].",
)
@click.option(
    "--grid",
    multiple=True,
    metavar="KEY=VALUES",
    help="Vary KEY, such as '--tp=1,2,4' (an argument), set.gpu=h200,b200, env.NAME=..., option.nnodes=1,2, "
    "or width=1024,2048 for {width} in the command. May be repeated: every combination.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Only points for which this holds, such as 'tp * width <= 8192'. May be repeated.",
)
@click.option(
    "--work",
    metavar="AMOUNT",
    help="What a step does, such as 'batch * 1024 * gpus tokens'; points are then compared by it.",
)
@click.option(
    "--price",
    metavar="PRICE",
    help="Of a GPU for an hour: 2.5, or h200=2.5,b200=4.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="At most N runs at once  [default: as many as cores and memory allow].",
)
@click.option("--again", is_flag=True, help="Also run what is finished.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the page goes  [default: sweep.html in the folder of results].",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "dask"]),
    default="local",
    show_default=True,
    help="Where runs are: on this machine, or on the workers of a dask cluster (pip install "
    "'phantora-ns[dask]').",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="The address of dask's scheduler, such as tcp://node0:8786.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but the table at the end.")
@_point_options
@help_all
@click.argument("words", nargs=-1, metavar="FILE | COMMAND...", type=click.UNPROCESSED)
@click.pass_context
def sweep(
    context: click.Context,
    words: tuple[str, ...],
    output: Path | None,
    grid: tuple[str, ...],
    where: tuple[str, ...],
    work: str | None,
    price: str | None,
    jobs: int | None,
    again: bool,
    html: Path | None,
    engine: str,
    scheduler: str | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Runs a job with every combination of settings, as many at once as machines allow, and shows
    step time, memory and cost of each, and the best that fits. FILE is TOML; without it, give COMMAND and
    --grid. The same command goes on where a sweep was ended.

    Exit code 0: a point ended well. 1: none did.

    \b
    phantora-ns sweep layouts.toml
    phantora-ns sweep --grid '--batch=8,16' --grid set.gpu=h200,b200 torchrun train.py
    """
    from phantora_ns.sweep.command import SweepWords, sweep_command

    assert context.parent is not None
    given = {**_given(context.parent, context.parent.params), **_given(context, options)}
    quiet = given.pop("quiet", False) or quiet
    asked = SweepWords(
        words, output, grid, where, work, price, jobs, again, html, engine, scheduler, quiet
    )
    return sweep_command(asked, given, parse_options)


@cli.command(short_help="Tries everything that a run needs.")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also say whether N ranks are likely to fit this machine.",
)
def doctor(ranks: int | None) -> int:
    """Tries everything that a run needs, step by step, and says how to cure what fails."""
    from phantora_ns.launch.doctor import run_doctor

    return run_doctor(click.echo, ranks)


@cli.command(
    "compile-values", cls=RareCommand, short_help="Compiles the values library for a torch."
)
@click.argument("torch", metavar="[PYTHON]", default="", type=click.Path())
def compile_values(torch: str) -> int:
    """Compiles the values library for the torch of PYTHON, or for torch's own folder.

    A job does this by itself when its command tells which torch it uses. Without PYTHON: the torch
    of a job that torchrun starts.
    """
    from phantora_ns.launch.compile_values import compile_values

    return compile_values(torch)


@cli.command()
def clusters() -> int:
    """Lists the clusters that --cluster knows by name."""
    from phantora_ns.config import ConfigError, default_cluster, list_clusters, load_cluster

    try:
        for name in list_clusters():
            mark = " (default)" if name == default_cluster() else ""
            click.echo(f"{name:16} {load_cluster(name).description}{mark}")
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return 0


@cli.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="A B [C...]", type=click.Path(path_type=Path)
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the comparison as a page.",
)
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="End with exit code 1 if this holds, such as 'step_time > +3%' (change against A) or "
    "'peak_memory > 80 GiB'. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON; times in ns.")
def compare(
    files: tuple[Path, ...], html: Path | None, conditions: tuple[str, ...], as_json: bool
) -> int:
    """Says what moved between runs, and what made it. A, B, ... are what --report or
    --html wrote; pages tell most. All are compared with A.

    \b
    phantora-ns compare before.json after.json --fail-if 'step_time > +3%'
    """
    from phantora_ns.page.compare import CompareError
    from phantora_ns.page.compare_run import run_compare

    if len(files) < 2:
        raise UsageError("compare needs two reports or more; on the command line; give A and B")
    try:
        lines, broken = run_compare(files, conditions, html, as_json)
    except CompareError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"cannot write the page: {error.strerror}; {html}; choose another"
        ) from error
    click.echo("\n".join(lines))
    for line in broken:
        say(f"failed: {line}")
    return 1 if broken else 0


@cli.command(cls=RareCommand, short_help="Prints what makes a shell complete phantora-ns.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Prints what makes SHELL complete phantora-ns: eval "$(phantora-ns completion bash)"."""
    click.echo(completion_script(cli, shell))


@cli.command(
    cls=RareCommand, context_settings={"ignore_unknown_options": True, "help_option_names": []}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kernels(arguments: tuple[str, ...]) -> int:
    """Looks into kernel-time databases, and merges them."""
    from phantora_ns.cli.kernels import main as kernels_main

    return kernels_main(list(arguments))


cli.add_command(calibrate)


@cli.group()
def trace() -> None:
    """Looks into Kineto traces of real and of simulated runs."""


@trace.command("diff")
@click.argument("real", type=click.Path(path_type=Path))
@click.argument("sim", type=click.Path(path_type=Path))
@click.option(
    "--by",
    type=click.Choice(["operator", "kernel", "family"]),
    default="kernel",
    show_default=True,
    help="What one row of the table stands for.",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=25,
    show_default=True,
    metavar="N",
    help="Rows of each table; 0: all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON; times in ns.")
def trace_diff(real: Path, sim: Path, by: str, limit: int, as_json: bool) -> int:
    """Says which kernels, which communication and which idle time make the steps of trace SIM
    longer or shorter than those of trace REAL. Times are per step, in ms or us."""
    import json

    from phantora_ns.trace import diff, diff_text
    from phantora_ns.trace.kineto import TraceError, read_trace

    try:
        result = diff.diff(read_trace(real), read_trace(sim), by)
    except TraceError as error:
        raise UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps(diff.as_json(result)))
    else:
        click.echo("\n".join(diff_text.text(result, limit)))
    return 0


def parse_options(words: Sequence[str]) -> RunOptions:
    """The options of a run from words of the command line. Raises click.ClickException."""
    return RunOptions(**cli.make_context("phantora-ns", [*words, "command"]).params)


def explain(error: click.ClickException | UsageError | LaunchError) -> tuple[int, str]:
    """The exit code and the line that an error ends the command with."""
    if isinstance(error, click.ClickException):
        text = error.format_message().rstrip(".")
        return EXIT_USAGE, f"{text}; on the command line; see phantora-ns --help"
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_OURS, str(error)


def main(arguments: list[str] | None = None) -> int:
    """The console script; returns the exit code. Every error is one line on stderr."""
    try:
        result = cli.main(args=arguments, prog_name="phantora-ns", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except (click.ClickException, UsageError, LaunchError) as error:
        code, line = explain(error)
        say(line)
        return code
    except click.Abort:
        # A SIGINT where no run handles it, such as before the job begins. It ends us as a SIGTERM does
        # there. Python sees to that by itself only where the signal came in an `exec` of source.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        return 130
    except Exception as error:
        from phantora_ns.config import ConfigError  # imported by whoever raised it

        if not isinstance(error, ConfigError):
            raise
        say(str(error))
        return EXIT_USAGE
