"""Why it exists: tells what kind of command the user gave, how large a cluster it means, and what
is sure to fail in it.

Rule: the command line is never changed. What torchrun has to be told per node it is told by PET_*
variables, and only where the command line does not say it already.
"""

from __future__ import annotations

import ipaddress
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

STATIC_PORT = 29500  # torchrun's default --master-port
C10D_PORT = 29400  # torchrun's default port of a c10d endpoint
MAX_NODES = 1000  # ports of one Linux bridge: BR_MAX_PORTS 1024, net/bridge/br_private.h

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
        beside = (
            Path(sys.executable).parent / name
        )  # an environment that is used without being activated
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


def node_name(node: int) -> str:
    """Host name of a node, counted from 0."""
    return f"node-{node}"


def node_address(node: int, isolated: bool) -> str:
    """IPv4 address of a node: in the cluster's own /16, or on this machine's loopback when nodes
    are not isolated."""
    high, low = divmod(node + 1, 256)
    return f"10.77.{high}.{low}" if isolated else f"127.77.{high}.{low}"


def split_endpoint(endpoint: str) -> tuple[str, str]:
    """Host and port ("" when absent) of torchrun's HOST[:PORT], IPv6 brackets included."""
    if endpoint.startswith("["):
        host, _, port = endpoint[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = endpoint.partition(":")
    return host, port


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def meeting_host(command: JobCommand) -> tuple[str, str] | None:
    """Where torchrun's agents are told to meet: (option, host), or None when the command line
    leaves it to us."""
    options = command.torchrun
    if options is None:
        return None
    if options.get("rdzv_endpoint"):
        return "rdzv-endpoint", split_endpoint(options.get("rdzv_endpoint"))[0]
    if options.has("master_addr") and options.get("rdzv_backend", "static") == "static":
        return "master-addr", options.get("master_addr")
    return None


def foreign_names(command: JobCommand, nodes: int) -> list[str]:
    """Names of real machines that the command uses for its master: they have to mean node-0 in the
    cluster."""
    meeting = meeting_host(command)
    if meeting is None or _is_loopback(meeting[1]) or meeting[1] in map(node_name, range(nodes)):
        return []
    try:
        ipaddress.ip_address(meeting[1])
    except ValueError:
        return [meeting[1]]
    return []


def _refuse_deepspeed(options: deepspeed.DeepSpeedOptions, nodes: int) -> None:
    cure = (
        "in the command; start it on each node: phantora-ns --nnodes N --gpus-per-node G bash -c 'deepspeed --hostfile FILE "
        "--no_ssh --node_rank $NODE_RANK --master_addr $MASTER_ADDR train.py', or use torchrun"
    )
    if not options.hosts:
        raise UsageError(
            f"deepspeed without a hostfile runs a job of its own on each of the {nodes} nodes; {cure}"
        )
    if options.spreads:
        raise UsageError(
            f"deepspeed starts the other hosts by ssh, and simulated nodes run no ssh server; {cure}"
        )
    raise UsageError(
        f"--node_rank {options.given.get('node_rank', '-1')} would give all {nodes} nodes the same rank; {cure}"
    )


def check_multi_node(command: JobCommand, nodes: int, isolated: bool) -> None:
    """Refuses what would hang or fail minutes later on several nodes. Raises UsageError with the
    cure."""
    options = command.torchrun
    if command.deepspeed is not None and nodes > 1:
        _refuse_deepspeed(command.deepspeed, nodes)
    if options is None or nodes == 1:
        return
    if options.flag("standalone"):
        raise UsageError(
            f"--standalone runs a job of its own on each of the {nodes} nodes; in the command; remove it"
        )
    if options.has("node_rank"):
        raise UsageError(
            f"--node-rank {options.get('node_rank')} would give all {nodes} nodes the same rank; in the command; "
            "remove it: each node gets its own (PET_NODE_RANK)"
        )
    meeting = meeting_host(command)
    if meeting is None:
        return
    option, host = meeting
    here = [node_address(node, isolated) for node in range(nodes)]
    if not isolated:
        if host in map(node_name, range(nodes)):
            raise UsageError(
                f"--{option} {host}: node names cannot be resolved with --isolation none; in the command; "
                f"remove it, or use {here[0]}"
            )
        return
    if _is_loopback(host):
        raise UsageError(
            f"--{option} {host}: each of the {nodes} nodes would meet itself alone; in the command; remove it, "
            f"or use {node_name(0)}"
        )
    if re.fullmatch(r"[0-9.]+|.*:.*", host) and host not in here:
        raise UsageError(
            f"--{option} {host} is no address of the simulated cluster; in the command; remove it, or use "
            f"{node_name(0)}"
        )
    if (
        host not in here
        and foreign_names(command, nodes)
        and options.get("rdzv_backend") == "c10d"
        and options.get("rdzv_conf")
        and "is_host" not in options.get("rdzv_conf")
    ):
        raise UsageError(
            f"--rdzv-endpoint {host} is no node of the simulated cluster, and --rdzv-conf keeps us from naming its "
            f"host; in the command; use {node_name(0)}, or add is_host to --rdzv-conf"
        )
