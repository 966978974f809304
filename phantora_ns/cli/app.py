"""Why it exists: the click commands of phantora-ns, and nothing else.

`phantora-ns [OPTIONS] COMMAND...` runs COMMAND on every node; `profile`, `doctor` and the like are
commands of our own. Our options come first: from the first word that is no option on, everything is
the user's.
"""

from __future__ import annotations

import math
from pathlib import Path

import click
from click.core import ParameterSource

from phantora_ns.launch.errors import EXIT_OURS, EXIT_USAGE, LaunchError, UsageError, say


class _JobGroup(click.Group):
    """A group whose unknown commands are jobs."""

    def resolve_command(self, ctx, args):
        if args[0] in self.commands and args[0] != "run":
            return super().resolve_command(ctx, args)
        return "run", self.commands["run"], ["--", *args]

    def format_usage(self, ctx, formatter):
        own = " | ".join(
            name for name, command in sorted(self.commands.items()) if not command.hidden
        )
        formatter.write_usage(
            "phantora-ns", f"[OPTIONS] torchrun ARGS... | [OPTIONS] COMMAND... | {own}"
        )


def _positive(_ctx, _param, value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise click.BadParameter("must be a number above 0")
    return value


def _scale(_ctx, _param, value: str) -> str:
    if value == "auto":
        return value
    try:
        return repr(_positive(_ctx, _param, float(value)))
    except ValueError:
        raise click.BadParameter("must be a number above 0, or auto") from None


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("phantora-ns")
    except metadata.PackageNotFoundError:
        return "unknown (a checkout that is not installed)"


def _print_version(ctx, _param, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"phantora-ns {_version()}")
        ctx.exit()


@click.group(
    cls=_JobGroup,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    help="Cluster to simulate: a name from `phantora-ns clusters`, or a TOML file.",
)
@click.option(
    "--nnodes", type=click.IntRange(1), metavar="N", help="Nodes, where torchrun does not say it."
)
@click.option(
    "--gpus-per-node",
    type=click.IntRange(1),
    metavar="N",
    help="GPUs of a node  [default: --nproc-per-node]",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a JSON report to FILE.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a Kineto trace of each rank to DIR.",
)
@click.option(
    "--trace-steps",
    metavar="FIRST:END",
    help="Trace only these steps, as a Python slice: 3:5 is steps 3 and 4.",
)
@click.option("--trace-ranks", metavar="LIST", help="Trace only these ranks, such as 0,8-11.")
@click.option(
    "--host-time",
    type=click.Choice(["measured", "model", "none"]),
    default="measured",
    show_default=True,
    help="Host time between GPU calls: the rank's own CPU time, what a database holds of it (runs repeat), or zero.",
)
@click.option(
    "--host-scale",
    default="1.0",
    show_default=True,
    callback=_scale,
    metavar="FACTOR|auto",
    help="Multiplies host time: below 1 for a cluster with faster CPUs than this machine's; auto: as the database's.",
)
@click.option(
    "--record-host",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add the host time measured in this run to kernel-time database FILE, for --host-time model.",
)
@click.option(
    "--sync",
    type=click.Choice(["conservative", "optimistic"]),
    default="conservative",
    show_default=True,
    help="When a rank is told a time: once nothing can change it, or (for many cores) as soon as it is known.",
)
@click.option(
    "--isolation",
    type=click.Choice(["namespaces", "none"]),
    default="namespaces",
    show_default=True,
    help="none: nodes are loopback addresses and share this machine's host name; needs no user namespaces.",
)
@click.option(
    "--kernels",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Kernel-time database to ask before the user's own and the shipped one; may be repeated.",
)
@click.option(
    "--leaders",
    default="auto",
    show_default=True,
    metavar="auto|none|RANKS",
    help="Rank that runs on this machine's GPU and measures; auto: rank 0 where the GPU is the simulated model.",
)
@click.option(
    "--values",
    default="balanced",
    show_default=True,
    metavar="zeros|balanced|replay[:FILE]",
    help="What a job reads where only a GPU could know: zeros, evenly spread choices (routes of tokens to experts), or "
    "what a leader's GPU computed (profile --record values).",
)
@click.option(
    "--keep-run-dir", is_flag=True, help="Keep the run's own files, to look into a failure."
)
@click.option("--quiet", is_flag=True, help="No summary, no progress line; failures still say why.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
@click.pass_context
def cli(ctx, **options) -> None:
    """Runs an unmodified distributed PyTorch job as if on a cluster of GPU servers, on this
    machine.

    \b
    phantora-ns torchrun --nnodes 2 --nproc-per-node 8 train.py
    phantora-ns --nnodes 2 --gpus-per-node 8 -- python train.py
    """
    ctx.obj = options


@cli.command(
    hidden=True, context_settings={"allow_interspersed_args": False, "help_option_names": []}
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def run(options, command) -> int:
    """Runs COMMAND on every node."""
    from phantora_ns.launch.run.run_request import build_request
    from phantora_ns.launch.run.runner import Runner

    return Runner(build_request(command, **options)).run()


@cli.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Database to add to  [default: ~/.local/share/phantora-ns/kernels/GPU.sqlite], or file of values.",
)
@click.option(
    "--name",
    default="",
    metavar="TEXT",
    help="Name of the job's configuration, kept with the measurements.",
)
@click.option(
    "--record",
    type=click.Choice(["all", "kernels", "host", "values"]),
    default="all",
    show_default=True,
    help="What to record: kernels, run after run; what the host pays, in one run more; both (all); or the values "
    "that the job steers by, for --values replay of the same command.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def profile(ctx, command, output, name, record, **options) -> int:
    """Measures a job's kernels on this machine's GPU: runs the job with one leader after another.

    \b
    phantora-ns profile torchrun --nproc-per-node 8 train.py
    phantora-ns profile --leaders 0,4 -o times.sqlite torchrun --nproc-per-node 8 train.py
    """
    from phantora_ns.launch.profiling import run_profile

    here = {
        key: value
        for key, value in options.items()
        if ctx.get_parameter_source(key) is not ParameterSource.DEFAULT
    }
    return run_profile(command, ctx.obj | here, output, name, record)


profile.params += [
    param for param in cli.params if param.expose_value
]  # a run's own options may follow the word profile too


@cli.command()
@click.pass_obj
def doctor(_options) -> int:
    """Tries, step by step, all that a run needs, and says how to cure what fails."""
    from phantora_ns.launch.doctor import run_doctor

    return run_doctor(click.echo)


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


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kernels(arguments) -> int:
    """Looks into kernel-time databases, compares and merges them."""
    from phantora_ns.cli.kernels import main as kernels_main

    return kernels_main(list(arguments))


@cli.group()
def trace() -> None:
    """Looks into Kineto traces, of real runs and of simulated ones."""


@trace.command("diff")
@click.argument("real", type=click.Path(path_type=Path))
@click.argument("sim", type=click.Path(path_type=Path))
@click.option(
    "--by",
    type=click.Choice(["operator", "kernel", "family"]),
    default="kernel",
    show_default=True,
    help="What a row of the table is.",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=25,
    show_default=True,
    metavar="N",
    help="Rows of each table; 0: all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def trace_diff(real, sim, by, limit, as_json) -> int:
    """Says which kernels, which communication and which idle time make the steps of SIM longer or
    shorter than those of REAL."""
    import json

    from phantora_ns.trace import diff, diff_text
    from phantora_ns.trace.kineto import TraceError, read_trace

    try:
        result = diff.diff(read_trace(real), read_trace(sim), by)
    except TraceError as error:
        raise UsageError(str(error)) from error
    click.echo(
        json.dumps(diff.as_json(result)) if as_json else "\n".join(diff_text.text(result, limit))
    )
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The console script; returns the exit code. Every error is one line on stderr."""
    try:
        result = cli.main(args=arguments, prog_name="phantora-ns", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        say(f"{error.format_message().rstrip('.')}; on the command line; see phantora-ns --help")
        return EXIT_USAGE
    except click.Abort:
        return 130
    except UsageError as error:
        say(str(error))
        return EXIT_USAGE
    except LaunchError as error:
        say(str(error))
        return EXIT_OURS
