"""The environment of the job's processes: the variables that make a process a rank of the cluster.

Rule: what the user exported stays, except for what names this machine's hardware, which the
simulated nodes do not have.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from phantora_ns.launch.command.job_command import JobCommand
from phantora_ns.launch.command.multi_node import foreign_names
from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.machine.installation import INTERCEPTOR, find_libzmq
from phantora_ns.launch.nodes import C10D_PORT, STATIC_PORT, node_address, node_name
from phantora_ns.model.cluster import Fault

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_NODE = "PHANTORA_NODE"
_FEW_NODES = 8
_MONITOR_INTERVAL_S = 0.1  # torchrun's default
# Less than OTHERS_GRACE_S of launch/run/runner.py, so that each agent says why its ranks failed.
_LONGEST_INTERVAL_S = 0.8
_THIS_MACHINES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Shape:
    """The size of the cluster, and whether its nodes are isolated."""

    nodes: int
    gpus_per_node: int
    isolated: bool


def _prefixed(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


def refuse_nesting(outer: Mapping[str, str]) -> None:
    """Raises UsageError on a node of a job of ours: its GPUs and clocks are simulated, so a run in there
    would simulate, or measure, a simulation. With --isolation none the node is this machine, with a GPU
    that is emulated: that is how leaders are tried without one (tests/leader)."""
    node, here = outer.get(_NODE, ""), socket.gethostname()
    if node.isdecimal() and here == node_name(int(node)):
        raise UsageError(
            "phantora-ns was started inside of its own job, whose GPUs and clocks are simulated; on "
            f"{here}; start it outside of the job"
        )


def job_environment(
    outer: Mapping[str, str], run_dir: Path, shape: Shape, kernel_info: Path | None
) -> dict[str, str]:
    """The variables of every process of the job, the same on all nodes, except for host time
    (host_time.prepare)."""
    env = {name: value for name, value in outer.items() if name not in _THIS_MACHINES}
    for name in _INTERFACES:
        if env.get(name):
            env[name] = "eth0" if shape.isolated else "lo"
    # A thread that spins until its OpenMP workers get a core of this busy machine would count that
    # wait as host time of the job.
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    cuda = str(run_dir / "lib")
    env["LD_PRELOAD"] = _prefixed(f"{cuda}/{INTERCEPTOR.name}", env.get("LD_PRELOAD"))
    env["LD_LIBRARY_PATH"] = _prefixed(cuda, env.get("LD_LIBRARY_PATH"))
    env["TRITON_LIBCUDA_PATH"] = cuda
    env["PYTHONPATH"] = _prefixed(str(run_dir / "startup"), env.get("PYTHONPATH"))
    env["PHANTORA_RUN_DIR"] = str(run_dir)
    env["PHANTORA_GPUS_PER_NODE"] = str(shape.gpus_per_node)
    env["PHANTORA_LIBZMQ"] = str(find_libzmq())
    env["PHANTORA_VALUES_LIB"] = cuda
    env["PHANTORA_KERNEL_INFO"] = str(kernel_info or "")
    return env


def replaced_variables(outer: Mapping[str, str]) -> list[str]:
    """A message for each exported variable that does not reach the job."""
    return [
        f"{name}={outer[name]} is not passed on, since it names this machine's GPUs; in the environment; to restrict a "
        f"simulated node run: env {name}=... COMMAND"
        for name in _THIS_MACHINES
        if outer.get(name)
    ]


def free_port() -> int:
    """A TCP port that is free on this machine at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def node_environments(
    command: JobCommand, shape: Shape, outer: Mapping[str, str]
) -> list[dict[str, str]]:
    """The variables that differ between nodes, and those by which the nodes find each other."""
    master = node_name(0) if shape.isolated else node_address(0, False)
    port = str(STATIC_PORT if shape.isolated else free_port())
    c10d_port = str(C10D_PORT if shape.isolated else free_port())
    result = []
    for node in range(shape.nodes):
        env = {_NODE: str(node)}
        if not shape.isolated:
            env["PET_LOCAL_ADDR"] = node_address(node, False)
        if command.torchrun is None:
            env |= _plain(node, shape, master, outer.get("MASTER_PORT") or port)
        else:
            env |= _torchrun(command, node, shape, outer, master, port, c10d_port)
        result.append(env)
    return result


def gpu_faults(faults: Iterable[Fault], node: int) -> dict[str, str]:
    """The slow GPUs of a node, as libintercept/time/gpu_faults.c reads them."""
    entries = [
        f"{gpu},{fault.from_ns},{fault.to_ns or 0},{round(fault.factor * 1000)}"
        for fault in faults
        if fault.gpu is not None
        and fault.gpu.startswith(f"node-{node}/gpu-")
        and (gpu := fault.gpu.rpartition("-")[2])
    ]
    return {"PHANTORA_GPU_FAULTS": ";".join(entries)} if entries else {}


def _plain(node: int, shape: Shape, master: str, port: str) -> dict[str, str]:
    env = {
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "NODE_RANK": str(node),
        "NNODES": str(shape.nodes),
        "GPUS_PER_NODE": str(shape.gpus_per_node),
        # for a torchrun inside a script
        "PET_NNODES": str(shape.nodes),
        "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
    }
    if shape.gpus_per_node == 1:
        # The one process is the rank. With more, only the command knows how it numbers its ranks.
        env |= {
            "RANK": str(node),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(shape.nodes),
            "LOCAL_WORLD_SIZE": "1",
        }
    return env


def _torchrun(
    command: JobCommand,
    node: int,
    shape: Shape,
    outer: Mapping[str, str],
    master: str,
    port: str,
    c10d_port: str,
) -> dict[str, str]:
    options = command.torchrun
    assert options is not None
    env = {}
    if (command.processes_per_node or shape.gpus_per_node) > 1 and "OMP_NUM_THREADS" not in outer:
        # torchrun would set this itself, and print a warning of five lines on every node.
        env["OMP_NUM_THREADS"] = "1"
    defaults = {
        "nnodes": str(shape.nodes),
        "node_rank": str(node),
        "master_addr": master,
        "master_port": port,
    }
    for name, value in defaults.items():
        if not options.has(name):
            env[f"PET_{name.upper()}"] = value
    if shape.nodes > _FEW_NODES and not options.get("monitor_interval"):
        # All agents run on this machine. 128 of them took 15 % of two cores at torchrun's default.
        interval_s = min(_LONGEST_INTERVAL_S, _MONITOR_INTERVAL_S * shape.nodes / _FEW_NODES)
        env["PET_MONITOR_INTERVAL"] = f"{interval_s:.2f}"
    if options.get("rdzv_backend") == "c10d":
        if not options.get("rdzv_endpoint"):
            env["PET_RDZV_ENDPOINT"] = f"{master}:{c10d_port}"
        elif foreign_names(command, shape.nodes) and not options.get("rdzv_conf"):
            # By its real name, no node would take itself for the host.
            env["PET_RDZV_CONF"] = f"is_host={int(node == 0)}"
    return env


def hosts_file(command: JobCommand, nodes: int) -> str:
    """The text of /etc/hosts in every node: the names of all nodes, and for node-0 also the real
    names that the command uses.

    Dual-stack sockets (torch's stores) ask for the name of ::ffff:10.77.0.1. Without an answer here
    they ask DNS, and warn. The answer is another name, so that the nodes' usual names stand for IPv4
    addresses only.
    """
    lines = [
        "127.0.0.1 localhost",
        "::1 localhost ip6-localhost ip6-loopback",
        "::ffff:127.0.0.1 localhost.cluster",
    ]
    for node in range(nodes):
        aliases = foreign_names(command, nodes) if node == 0 else []
        lines.append(" ".join([node_address(node, True), node_name(node), *aliases]))
        lines.append(f"::ffff:{node_address(node, True)} {node_name(node)}.cluster")
    return "\n".join(lines) + "\n"


def outer_environment() -> dict[str, str]:
    """This process's environment. Bytes that cannot be decoded are kept as surrogates."""
    return dict(os.environ)
