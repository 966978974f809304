"""Why it exists: the click commands of phantora-ns, and nothing else.

`phantora-ns [OPTIONS] COMMAND...` runs COMMAND on every node; `doctor` and `clusters` are commands of our own. Our options come
first: from the first word that is no option on, everything is the user's.
"""
from __future__ import annotations

import math
import sys
from pathlib import Path

import click

from phantora_ns.launch.errors import EXIT_OURS, EXIT_USAGE, LaunchError, UsageError, say


class _JobGroup(click.Group):
    """A group whose unknown commands are jobs."""

    def resolve_command(self, ctx, args):
        if args[0] in self.commands and args[0] != "run":
            return super().resolve_command(ctx, args)
        return "run", self.commands["run"], ["--", *args]

    def format_usage(self, ctx, formatter):
        formatter.write_usage("phantora-ns", "[OPTIONS] torchrun ARGS... | [OPTIONS] COMMAND... | doctor | clusters")


def _positive(_ctx, _param, value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise click.BadParameter("must be a number above 0")
    return value


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


@click.group(cls=_JobGroup, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@click.option("--cluster", metavar="NAME|FILE", help="Cluster to simulate: a name from `phantora-ns clusters`, or a TOML file.")
@click.option("--nnodes", type=click.IntRange(1), metavar="N", help="Nodes, where torchrun does not say it.")
@click.option("--gpus-per-node", type=click.IntRange(1), metavar="N", help="GPUs of a node  [default: --nproc-per-node]")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a JSON report to FILE.")
@click.option("--host-time", type=click.Choice(["measured", "none"]), default="measured", show_default=True,
              help="Host time between GPU calls: the rank's own CPU time, or zero.")
@click.option("--host-scale", type=float, default=1.0, show_default=True, callback=_positive, metavar="FACTOR",
              help="Multiplies measured host time: below 1 for a cluster with faster CPUs than this machine's.")
@click.option("--sync", type=click.Choice(["conservative", "optimistic"]), default="conservative", show_default=True,
              help="When a rank is told a time: once nothing can change it, or (for many cores) as soon as it is known.")
@click.option("--isolation", type=click.Choice(["namespaces", "none"]), default="namespaces", show_default=True,
              help="none: nodes are loopback addresses and share this machine's host name; needs no user namespaces.")
@click.option("--keep-run-dir", is_flag=True, help="Keep the run's own files, to look into a failure.")
@click.option("--quiet", is_flag=True, help="No summary, no progress line; failures still say why.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version.")
@click.pass_context
def cli(ctx, **options) -> None:
    """Runs an unmodified distributed PyTorch job as if on a cluster of GPU servers, on this machine.

    \b
    phantora-ns torchrun --nnodes 2 --nproc-per-node 8 train.py
    phantora-ns --nnodes 2 --gpus-per-node 8 -- python train.py
    """
    ctx.obj = options


@cli.command(hidden=True, context_settings={"allow_interspersed_args": False, "help_option_names": []})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def run(options, command) -> int:
    """Runs COMMAND on every node."""
    from phantora_ns.launch.request import build_request
    from phantora_ns.launch.runner import Runner

    return Runner(build_request(command, **options)).run()


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


if __name__ == "__main__":
    sys.exit(main())
