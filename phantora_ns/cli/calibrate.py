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
    phantora-ns calibrate nccl *.log -o mine.toml
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
