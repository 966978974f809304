"""`phantora-ns calibrate ...`: descriptions of one's own cluster from measurements on it.

Why it exists: it holds only the click commands of this group; their work is in phantora_ns/calibrate.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from phantora_ns.cli.help_text import complete_cluster
from phantora_ns.launch.errors import UsageError, say


def _tell(line: str) -> None:
    """Progress, for people only."""
    if sys.stderr.isatty():
        say(line)


@click.group(short_help="Describes your own cluster from measurements on it.")
def calibrate() -> None:
    """Describes your own cluster from measurements on it: links and latencies, and its CPUs."""


@calibrate.command(short_help="Fits a cluster file to logs of nccl-tests.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the cluster file, for --cluster. Without it, only the errors are printed.",
)
@click.option(
    "--like",
    metavar="NAME|FILE",
    shell_complete=complete_cluster,
    help="The cluster to start from, which decides what logs do not say  [default: by their GPU].",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change the cluster to start from, such as network.nic_bandwidth='200 Gbit/s'. May be "
    "repeated.",
)
def nccl(
    logs: tuple[Path, ...], output: Path | None, like: str | None, settings: tuple[str, ...]
) -> int:
    """Fits a cluster file to LOGs of nccl-tests: whatever all_reduce_perf and the others print. Every
    second size is left out of the fit; the errors of both halves are printed.

    \b
    phantora-ns calibrate nccl a.log b.log -o mine.toml
    phantora-ns --cluster mine.toml torchrun --nnodes 2 --nproc-per-node 8 train.py
    """
    from phantora_ns.calibrate.nccl_log import LogError
    from phantora_ns.calibrate.nccl_run import run_nccl
    from phantora_ns.config import ConfigError

    if output is not None and output.exists():
        raise UsageError(f"{output} exists already; on the command line; choose another file")
    try:
        lines = run_nccl(logs, output, like, settings, _tell)
    except (LogError, ConfigError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"cannot write the cluster file: {error.strerror}; {output}; choose another"
        ) from error
    click.echo("\n".join(lines))
    return 0


@calibrate.command(short_help="Measures how fast a machine's CPUs are.")
@click.option(
    "--script",
    is_flag=True,
    help="Print a script that measures another machine, which needs Python 3.6 or later and nothing "
    "else.",
)
@click.option(
    "--line",
    metavar="TEXT|-",
    help="Take the line that the script printed instead of measuring this machine; -: from standard "
    "input.",
)
@click.option(
    "--into",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Put the score into cluster file FILE, as server.cpu_score.",
)
def host(script: bool, line: str | None, into: Path | None) -> int:
    """Measures how fast this machine's CPUs run code like a framework's, or takes what the script
    measured elsewhere. Runs with the score in their cluster file have host times of those CPUs.

    \b
    phantora-ns calibrate host
    phantora-ns calibrate host --script | ssh HOST python3 - | phantora-ns calibrate host --line -
    """
    from phantora_ns.calibrate.host import run_host
    from phantora_ns.calibrate.host import script as host_script
    from phantora_ns.config import ConfigError

    if script:
        if line is not None or into is not None:
            raise UsageError(
                "--script prints a script and takes no other option; on the command line; run it there"
            )
        click.echo(host_script(), nl=False)
        return 0
    source = "standard input" if line == "-" else "--line"
    try:
        text = click.get_text_stream("stdin").read() if line == "-" else line
        click.echo("\n".join(run_host(text, source, into)))
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read or written: {error}; {into or source}") from error
    return 0
