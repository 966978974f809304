"""Where the nodes of a job meet, and which commands cannot work on several nodes.

Why it exists: a command that is meant for one server, or for real machines, hangs or fails after
minutes on several simulated nodes. Such a command is refused at once, with the cure.
"""

from __future__ import annotations

import ipaddress
import re

from phantora_ns.launch.command import deepspeed
from phantora_ns.launch.command.job_command import JobCommand
from phantora_ns.launch.command.torchrun import TorchrunOptions
from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.nodes import node_address, node_name


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
    """Where torchrun's agents are told to meet: (option, host). None when the command line leaves
    it to us."""
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
        "in the command; start it on each node: phantora-ns --nnodes N --gpus-per-node G bash -c "
        "'deepspeed --hostfile FILE "
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
    if nodes == 1:
        return
    if command.deepspeed is not None:
        _refuse_deepspeed(command.deepspeed, nodes)
    options = command.torchrun
    if options is None:
        return
    if options.flag("standalone"):
        raise UsageError(
            f"--standalone runs a job of its own on each of the {nodes} nodes; in the command; "
            "remove it"
        )
    if options.has("node_rank"):
        raise UsageError(
            f"--node-rank {options.get('node_rank')} would give all {nodes} nodes the same rank; "
            "in the command; remove it: each node gets its own (PET_NODE_RANK)"
        )
    meeting = meeting_host(command)
    if meeting is None:
        return
    if isolated:
        _check_isolated_host(command, options, nodes, *meeting)
    elif meeting[1] in map(node_name, range(nodes)):
        option, host = meeting
        raise UsageError(
            f"--{option} {host}: node names cannot be resolved with --isolation none; "
            f"in the command; remove it, or use {node_address(0, False)}"
        )


def _check_isolated_host(
    command: JobCommand, options: TorchrunOptions, nodes: int, option: str, host: str
) -> None:
    """Raises UsageError when isolated nodes cannot meet at `host`, which --`option` names."""
    if _is_loopback(host):
        raise UsageError(
            f"--{option} {host}: each of the {nodes} nodes would meet itself alone; "
            f"in the command; remove it, or use {node_name(0)}"
        )
    if host in [node_address(node, True) for node in range(nodes)]:
        return
    if re.fullmatch(r"[0-9.]+|.*:.*", host):
        raise UsageError(
            f"--{option} {host} is no address of the simulated cluster; in the command; remove it, "
            f"or use {node_name(0)}"
        )
    configuration = options.get("rdzv_conf")
    if (
        foreign_names(command, nodes)
        and options.get("rdzv_backend") == "c10d"
        and configuration
        and "is_host" not in configuration
    ):
        raise UsageError(
            f"--rdzv-endpoint {host} is no node of the simulated cluster, and --rdzv-conf keeps us "
            f"from naming its host; in the command; use {node_name(0)}, or add is_host to --rdzv-conf"
        )
