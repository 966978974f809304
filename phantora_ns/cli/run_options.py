"""The options of a run: `phantora-ns` takes them, and `phantora-ns profile` after its own name too.

Why it exists: their help text is what a user reads first, and it stands in one place. Defaults are
those of launch/command/options.py. tests/cli compares all help texts with files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from phantora_ns.cli.help_text import RunOption, complete_cluster
from phantora_ns.launch.command.options import RunOptions

_FILE = click.Path(dir_okay=False, path_type=Path)
Command = Callable[..., Any]


def _scale(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    """A factor in its shortest exact form, or auto."""
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        raise click.BadParameter("must be a number above 0, or auto") from None
    if not math.isfinite(value) or value <= 0:
        raise click.BadParameter("must be a number above 0")
    return repr(value)


def _option(name: str, **settings: Any) -> tuple[str, Callable[[Command], Command]]:
    return name, click.option(name, cls=RunOption, **settings)


_OPTIONS = (
    _option(
        "--cluster",
        short="Cluster to simulate: a name or a TOML file.",
        metavar="NAME|FILE",
        shell_complete=complete_cluster,
        help="The cluster to simulate: a name that `phantora-ns clusters` lists, or a TOML file.",
    ),
    _option(
        "--set",
        short="Change the cluster, such as gpu=b200.",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a value of the cluster file, such as gpu=b200 or network.nic_bandwidth='800 "
        "Gbit/s'. May be repeated.",
    ),
    _option(
        "--slow-gpu",
        multiple=True,
        metavar="GPU:SHARE",
        help="Make the GPU of a rank, or one such as node-0/gpu-3, slower: 3:10%. May be repeated.",
    ),
    _option(
        "--slow-link",
        multiple=True,
        metavar="LINK:SHARE",
        help="Make a link slower: 'node-0/nic-1 - rail-1:50%', or node-0/nic-1:50% for all of its "
        "links. May be repeated.",
    ),
    _option(
        "--nnodes",
        short="Nodes, if the command does not say.",
        type=click.IntRange(1),
        metavar="N",
        help="Nodes, if the job's command does not say how many  [default: 1].",
    ),
    _option(
        "--gpus-per-node",
        short="GPUs of a node, if the command does not say.",
        type=click.IntRange(1),
        metavar="N",
        help="GPUs of a node  [default: the command's processes per node, else all of a server's].",
    ),
    _option(
        "--report",
        type=_FILE,
        metavar="FILE",
        short="Write a JSON report of the run.",
        help="Write a JSON report of the run.",
    ),
    _option(
        "--html",
        short="Write a page: memory, step time, why.",
        type=_FILE,
        metavar="FILE",
        help="Write a page about the run: whether it fits, how fast it is, where the step goes and "
        "why. It traces the first 12 steps of up to 32 ranks, or what --trace-steps and "
        "--trace-ranks say.",
    ),
    _option(
        "--trace",
        short="Write a Kineto trace of each rank.",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Write a Kineto trace (Chrome trace JSON, gzip) of each rank to folder DIR.",
    ),
    _option(
        "--trace-steps",
        metavar="FIRST:END",
        help="Trace only these steps, counted from 0, without END: 3:5 is steps 3 and 4  [default: all].",
    ),
    _option(
        "--trace-ranks",
        metavar="LIST",
        help="Trace only these ranks, such as 0,8-11  [default: all].",
    ),
    _option(
        "--host-time",
        short="What host code between GPU calls costs.",
        type=click.Choice(["auto", "measured", "model", "none"]),
        help="What the host code between GPU calls costs. auto: the first run of a job measures it, "
        "and later runs repeat exactly. measured: the CPU time that the process uses here, which is "
        "never the same. model: times of a database, the same in every run and on every rank. "
        "none: zero.  [default: auto; measured with profile and --record-host]",
    ),
    _option(
        "--host-scale",
        default=RunOptions.host_scale,
        show_default=True,
        callback=_scale,
        metavar="FACTOR|auto",
        help="Multiply host time by FACTOR: below 1 if the cluster's CPUs are faster than this "
        "machine's. auto: as fast as the CPU on which the database was recorded.",
    ),
    _option(
        "--host-jitter",
        type=click.Choice(["sampled", "mean"]),
        default=RunOptions.host_jitter,
        show_default=True,
        help="With --host-time auto: hosts differ and vary as real ones do, the same in every run, or "
        "all take the mean.",
    ),
    _option(
        "--record-host",
        type=_FILE,
        metavar="FILE",
        help="Add the host time measured in this run to kernel-time database FILE, for later runs "
        "with --host-time model.",
    ),
    _option(
        "--sync",
        type=click.Choice(["conservative", "optimistic"]),
        default=RunOptions.sync,
        show_default=True,
        help="When a waiting rank learns a time. conservative: once nothing can change it any more. "
        "optimistic: as soon as it is known, to be corrected if it changes; for many cores.",
    ),
    _option(
        "--isolation",
        type=click.Choice(["namespaces", "none"]),
        default=RunOptions.isolation,
        show_default=True,
        help="How nodes are kept apart. namespaces: own network, processes, host name. none: own "
        "loopback addresses only; needs no user namespaces.",
    ),
    _option(
        "--kernels",
        type=_FILE,
        multiple=True,
        metavar="FILE",
        help="Kernel-time database to ask before your own and the shipped one; may be repeated.",
    ),
    _option(
        "--leaders",
        default=RunOptions.leaders,
        show_default=True,
        metavar="auto|none|RANKS",
        help="The rank that runs on this machine's GPU and measures kernels; with profile, ranks such "
        "as 0,4. auto: rank 0 if the GPU is the simulated model, else none.",
    ),
    _option(
        "--values",
        default=RunOptions.values,
        show_default=True,
        metavar="zeros|balanced|replay[:FILE]",
        help="What a job reads where only a GPU could know the value. zeros; balanced: zeros, and "
        "choices such as tokens' experts spread evenly; replay: what profile --record values "
        "recorded, by default in a file for each command and folder.",
    ),
    _option(
        "--host-tensors",
        type=click.Choice(["auto", "real"]),
        default=RunOptions.host_tensors,
        show_default=True,
        help="Large tensors of floats in host memory. auto: once a process holds more than 256 MiB of "
        "tensors of 1 MiB and more, they hold nothing: they take no memory and read as zero, and work on "
        "them is charged and skipped. real: they hold what the CPU computes.",
    ),
    _option(
        "--memory-modules",
        is_flag=True,
        help="Find out which modules of the model hold the peak of memory. The run takes longer; what it "
        "simulates stays the same with --host-time model or none.",
    ),
    _option(
        "--warm-start",
        type=click.Choice(["auto", "off"]),
        default=RunOptions.warm_start,
        show_default=True,
        short="auto: import torch once for all ranks.",
        help="How the job's Pythons start. auto: torch is imported once, and every rank takes over that "
        "memory; a rank then starts in a fraction of a second and costs the memory that it writes. off: "
        "every rank imports torch itself.",
    ),
    _option(
        "--preload-modules",
        metavar="LIST",
        help="With --warm-start auto, also import these modules once, such as transformers,einops.",
    ),
    _option(
        "--fold",
        default=RunOptions.fold,
        show_default=True,
        metavar="off|auto|N[/BLOCK]",
        help="Run few ranks, and let them stand for those that do the same work. N: the job repeats itself "
        "every N ranks (of each BLOCK ranks). auto: every node, where that is possible. What differs after "
        "all ends the run. Needs --host-time model or none.",
    ),
    _option(
        "--fold-witnesses",
        type=click.Choice(["all", "first"]),
        default=RunOptions.fold_witnesses,
        show_default=True,
        help="With --fold: which ranks run beside each that stands for others, to check that all do the same. "
        "all: the first and the last two of those that are alike. first: the first alone, which is half the "
        "memory, and shows less.",
    ),
    _option(
        "--work",
        metavar="'AMOUNT UNIT'",
        short="What a step does, for tokens per second.",
        help="What a step of all ranks does, such as '16*8192 tokens': summary, report and page then say how "
        "much that is a second.",
    ),
    _option(
        "--model-flop",
        metavar="EXPR",
        help="FLOP of the model in a step of all ranks, without what is recomputed, such as '6 * 8.03e9 * "
        "16*8192': summary, report and page then have MFU beside HFU.",
    ),
    _option(
        "--keep-run-dir",
        is_flag=True,
        help="Keep the folder of the run's own files, to look into a failure.",
    ),
    _option(
        "--quiet",
        is_flag=True,
        help="Print no summary and no progress, only failures.",
    ),
)


def run_options(command: Command, without: Iterable[str] = ()) -> Command:
    """Decorates a click command with the options of a run, but those named in `without`."""
    for name, option in reversed(_OPTIONS):
        if name.removeprefix("--").replace("-", "_") not in without:
            command = option(command)
    return command
