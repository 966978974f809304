"""Why it exists: everything that can be wrong with a request is found here, before a file or a
process has been made."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phantora_ns.launch.command.command import (
    MAX_NODES,
    JobCommand,
    check_multi_node,
    parse_command,
)
from phantora_ns.launch.errors import UsageError, say
from phantora_ns.launch.machine import environment
from phantora_ns.launch.record import host_time as host_times
from phantora_ns.launch.record.leaders import AUTO, choose, require_library
from phantora_ns.launch.record.recorded_values import BALANCED, REPLAY
from phantora_ns.launch.record.recorded_values import check as check_values
from phantora_ns.launch.run.runner import Request
from phantora_ns.trace.options import TraceOptionError, check_options


def _load_cluster(
    name: str | None, nodes: int | None, gpus: int | None, processes: int | None
) -> Any:
    """The cluster with the asked sizes. A job that starts fewer workers than a fixed server has
    GPUs leaves some idle."""
    from phantora_ns.config import ConfigError, load_cluster

    try:
        return load_cluster(name, nodes, gpus if gpus is not None else processes)
    except ConfigError as error:
        if gpus is None and processes is not None:
            try:
                whole = load_cluster(name, nodes, None)
            except ConfigError:
                whole = None
            if whole is not None and whole.gpus_per_node >= processes:
                return whole
        raise UsageError(str(error)) from error


def _check_report(path: Path | None) -> Path | None:
    if path is None:
        return None
    path = Path(os.path.abspath(path))
    if path.exists():
        if not os.access(path, os.W_OK):
            raise UsageError(
                f"--report {path} cannot be written; on the command line; choose another file"
            )
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        missing = "does not exist" if not path.parent.exists() else "cannot be written"
        raise UsageError(
            f"--report: the folder {path.parent} {missing}; on the command line; create it or choose another"
        )
    return path


def _check_cwd(isolated: bool) -> str:
    try:
        cwd = os.getcwd()
    except FileNotFoundError as error:
        raise UsageError(
            "the current folder has been deleted; in the shell; cd to one that exists"
        ) from error
    if isolated and (cwd + "/").startswith("/dev/shm/"):
        raise UsageError(
            f"the current folder is hidden in the nodes, which have a /dev/shm of their own; {cwd}; cd to another"
        )
    return cwd


def _databases(gpu: str, extra: Sequence[Path]) -> tuple[str, ...]:
    """The kernel-time databases to ask, in order; each is opened once, so that a bad one is named
    before anything starts."""
    from phantora_ns.kernels.database import databases
    from phantora_ns.kernels.database.schema import DatabaseError

    try:
        opened = databases.find(gpu, [os.path.abspath(path) for path in extra])
    except DatabaseError as error:
        raise UsageError(f"{error}; a kernel-time database") from error
    for database in opened:
        database.close()
    return tuple(os.path.abspath(database.path) for database in opened)


def build_request(
    argv: Sequence[str],
    *,
    cluster: str | None,
    nnodes: int | None,
    gpus_per_node: int | None,
    report: Path | None,
    host_time: str,
    host_scale: str,
    record_host: Path | None,
    sync: str,
    isolation: str,
    keep_run_dir: bool,
    quiet: bool,
    values: str = BALANCED,
    kernels: Sequence[Path] = (),
    leaders: str = AUTO,
    name: str = "",
    record_into: Path | None = None,
    trace: Path | None = None,
    trace_steps: str | None = None,
    trace_ranks: str | None = None,
    outer: Mapping[str, str] | None = None,
) -> Request:
    """Validates a request. Raises UsageError, or LaunchError when the installation itself is
    incomplete.

    `name` and `record_into` are of `phantora-ns profile`: the configuration's name, and the
    database for what is measured.
    """
    outer = environment.outer_environment() if outer is None else outer
    isolated = isolation == "namespaces"
    command: JobCommand = parse_command(argv, outer, nnodes=nnodes)
    loaded = _load_cluster(cluster, command.nodes, gpus_per_node, command.processes_per_node)
    if loaded.nodes > MAX_NODES:
        raise UsageError(
            f"{loaded.nodes} nodes are more than one machine can isolate; in the command; use at most {MAX_NODES}"
        )
    if command.processes_per_node is not None and command.processes_per_node > loaded.gpus_per_node:
        option = "--nproc-per-node" if command.torchrun is not None else "--num_gpus"
        raise UsageError(
            f"{option} {command.processes_per_node} is more than the {loaded.gpus_per_node} GPUs of a node; "
            "in the command; start fewer processes, or raise --gpus-per-node"
        )
    if command.torchrun is not None and command.nodes != loaded.nodes:
        raise UsageError(
            f"the cluster has {loaded.nodes} nodes and the job runs on {command.nodes}; {loaded.file}; pass "
            f"--nnodes {loaded.nodes} to torchrun"
        )
    check_multi_node(command, loaded.nodes, isolated)
    checked_report, cwd = _check_report(report), _check_cwd(isolated)
    world = loaded.nodes * (command.processes_per_node or loaded.gpus_per_node)
    try:
        traced = check_options(trace, trace_steps, trace_ranks, world)
    except TraceOptionError as error:
        raise UsageError(str(error)) from error
    told = check_values(values, loaded.gpu_model.model, command.argv, cwd)
    if told.policy == REPLAY and not environment.VALUES_LIBRARY.is_file():
        raise UsageError(
            f"--values {values} needs the values library, which is not built; in {environment.LIBRARIES}; "
            "run make build"
        )
    host = host_times.check(host_time, host_scale, record_host)
    environment.require_built()
    environment.find_libzmq()
    if not quiet:
        for note in environment.replaced_notes(outer):
            say(note)
    leading = choose(leaders, world, loaded.gpu_model.name, outer)
    if leading is not None:
        require_library(environment.LEADER_LIBRARY)
    words = [
        ("--cluster", cluster),
        ("--nnodes", nnodes),
        ("--gpus-per-node", gpus_per_node),
        ("--isolation", None if isolated else isolation),
        ("--values", None if values == BALANCED else values),
    ]
    options = tuple(str(word) for pair in words if pair[1] is not None for word in pair)
    shape = environment.Shape(loaded.nodes, loaded.gpus_per_node, isolated)
    return Request(
        command=command,
        cluster=loaded,
        shape=shape,
        cwd=cwd,
        report=checked_report,
        host=host,
        sync=sync,
        values=told,
        keep_run_dir=keep_run_dir,
        quiet=quiet,
        databases=_databases(loaded.gpu, kernels),
        options=options,
        leading=leading,
        name=name,
        record_into=record_into,
        trace=traced,
    )
