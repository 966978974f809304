"""The job's command: which launcher it starts, if any, and how large a cluster it means.

Rule: the command line is never changed. What torchrun has to be told on each node it is told by
PET_* variables (machine/environment.py), and only where the command line does not say it already.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora_ns.launch.command import deepspeed
from phantora_ns.launch.command.torchrun import (
    TorchrunOptions,
    node_count,
    parse_torchrun,
    processes_per_node,
)
from phantora_ns.launch.errors import UsageError

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?$")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_DEEPSPEED_NAMES = ("deepspeed", "deepspeed.pt", "ds")
_DEEPSPEED_MODULES = ("deepspeed.launcher.runner",)
_PYTHON_VALUE_FLAGS = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True)
class JobCommand:
    """One command for every node. `torchrun` and `deepspeed` are None when the command is not that
    launcher's."""

    argv: tuple[str, ...]
    program: str
    torchrun: TorchrunOptions | None
    nodes: int | None
    processes_per_node: int | None  # None: as many as the node has GPUs
    deepspeed: deepspeed.DeepSpeedOptions | None = None


def _launcher_arguments(
    argv: Sequence[str], names: Sequence[str], modules: Sequence[str]
) -> Sequence[str] | None:
    """The part of `argv` that the launcher of these names parses, or None when this is another
    command."""
    name = os.path.basename(argv[0])
    if name in names:
        return argv[1:]
    if not _PYTHON.match(name):
        return None
    position = 1
    while position < len(argv) and argv[position].startswith("-"):
        flag = argv[position]
        if flag == "-m":
            module = argv[position + 1] if position + 1 < len(argv) else ""
            return argv[position + 2 :] if module in modules else None
        if flag.startswith("-m"):
            return argv[position + 1 :] if flag[2:] in modules else None
        if flag.startswith("-c"):
            return None
        position += 2 if flag in _PYTHON_VALUE_FLAGS else 1
    return None


def _find_program(name: str, environment: Mapping[str, str]) -> str:
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    if not found and "/" not in name:  # torchrun, accelerate, deepspeed
        # an environment that is used without being activated
        beside = Path(sys.executable).parent / name
        found = str(beside) if os.access(beside, os.X_OK) else None
    if found:
        return os.path.abspath(found)
    if name == "torchrun":
        raise UsageError(
            f"torchrun not found; on PATH and beside {sys.executable}; activate the environment that has torch, "
            "or pip install torch"
        )
    if name in _DEEPSPEED_NAMES:
        raise UsageError(
            f"{name} not found; on PATH and beside {sys.executable}; activate the environment that has DeepSpeed, "
            "or pip install deepspeed"
        )
    if "/" in name and os.path.exists(name):
        raise UsageError(
            f"{name} is not executable; in the command; start it with its interpreter, or chmod +x {name}"
        )
    raise UsageError(f"{name}: command not found; on PATH; correct the command")


def parse_command(
    argv: Sequence[str], environment: Mapping[str, str], *, nnodes: int | None = None
) -> JobCommand:
    """Understands the user's command; `nnodes` is phantora-ns's own --nnodes. Raises UsageError."""
    if not argv:
        raise UsageError(
            "no command; after the options; add it: phantora-ns torchrun --nnodes 2 --nproc-per-node 8 train.py"
        )
    if argv[0].startswith("-"):
        raise UsageError(f"{argv[0]!r} is not a command; after the options; see phantora-ns --help")
    arguments = _launcher_arguments(argv, ("torchrun",), _TORCHRUN_MODULES)
    program = _find_program(argv[0], environment)
    if (launched := _launcher_arguments(argv, _DEEPSPEED_NAMES, _DEEPSPEED_MODULES)) is not None:
        return _deepspeed_command(argv, program, launched, nnodes)
    if arguments is None:
        return JobCommand(tuple(argv), program, None, nnodes, None)
    options = parse_torchrun(arguments, environment)
    asked = node_count(options)
    if None not in (asked, nnodes) and asked != nnodes:
        raise UsageError(
            f"--nnodes is {nnodes} for phantora-ns and {asked} for torchrun; in the command; give it once"
        )
    if options.script is None and not options.flag("help"):
        raise UsageError(
            "torchrun has no script to run; at the end of the command; add it, such as train.py"
        )
    nodes = asked if asked is not None else nnodes if nnodes is not None else 1
    return JobCommand(tuple(argv), program, options, nodes, processes_per_node(options))


def _deepspeed_command(
    argv: Sequence[str], program: str, arguments: Sequence[str], nnodes: int | None
) -> JobCommand:
    options = deepspeed.parse_deepspeed(arguments)
    asked = deepspeed.node_count(options)
    if None not in (asked, nnodes) and asked != nnodes:
        raise UsageError(
            f"--nnodes is {nnodes} for phantora-ns and deepspeed's hostfile has {asked} hosts; in the command; "
            "leave --nnodes out"
        )
    if options.script is None and "help" not in options.given:
        raise UsageError(
            "deepspeed has no script to run; at the end of the command; add it, such as train.py"
        )
    return JobCommand(
        tuple(argv),
        program,
        None,
        asked or nnodes or 1,
        deepspeed.processes_per_node(options),
        options,
    )
