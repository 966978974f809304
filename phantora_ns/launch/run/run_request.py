"""What one run is to do, checked.

Why it exists: everything that can be wrong with a run is found here, before a file or a process has
been made. What is made of it afterwards cannot fail for a reason that the user could have been told
at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora_ns.launch.command.job_command import JobCommand, parse_command
from phantora_ns.launch.command.multi_node import check_multi_node
from phantora_ns.launch.command.options import RunOptions
from phantora_ns.launch.command.work import Work, parse_model_flop, parse_work
from phantora_ns.launch.errors import UsageError, say
from phantora_ns.launch.machine import (
    environment,
    installation,
    limits,
    values_libraries,
    warm_start,
)
from phantora_ns.launch.machine.software import read_software, remark
from phantora_ns.launch.machine.values_recipe import read_torch
from phantora_ns.launch.record import host_time, leaders, recorded_values
from phantora_ns.launch.run import folding
from phantora_ns.launch.run.step_hold import HoldRule
from phantora_ns.model.cluster import Cluster
from phantora_ns.trace.options import TraceOptionError, TraceOptions, check_options


@dataclass(frozen=True)
class RunRequest:
    """All that a run needs, checked.

    `options`: those that shape the cluster, as the user would type them again. `name`: of the job's
    configuration, for the recording. `record_into`: the database, or file of values, that gets what
    is recorded; None: a recording serves this run only. `torch`: the folder of the package that the job
    imports, as far as the command tells. `warm`: the modules that the user has imported once; None: every
    rank starts as usual. `hold`: the run ends after its first steps. `output`: a descriptor that gets the
    job's output; what is said of the run's end is then left to the caller. `progress`: is told the line of
    progress, several times a second. `work`: what a step does.
    `model_flop`: what the model needs for a step of all ranks.
    """

    command: JobCommand
    cluster: Cluster
    shape: environment.Shape
    cwd: str
    report: Path | None = None
    html: Path | None = None
    host: host_time.HostTimeOptions = host_time.HostTimeOptions()
    sync: str = "conservative"
    values: recorded_values.ValuesOption = recorded_values.ValuesOption()
    host_tensors: str = "auto"
    memory_modules: bool = False
    keep_run_dir: bool = False
    quiet: bool = False
    databases: tuple[str, ...] = ()
    trace: TraceOptions | None = None
    options: tuple[str, ...] = ()
    leading: leaders.Leading | None = None
    name: str = ""
    record_into: Path | None = None
    torch: Path | None = None
    warm: tuple[str, ...] | None = None
    folding: folding.Folding = folding.Folding()
    hold: HoldRule | None = None
    output: int | None = None
    progress: Callable[[str], None] | None = None
    work: Work | None = None
    model_flop: float | None = None

    @property
    def running(self) -> int:
        """How many ranks run: all, but in a folded job."""
        return self.folding.running(self.ranks)

    @property
    def ranks(self) -> int:
        """How many ranks the job starts on all nodes together."""
        per_node = self.command.processes_per_node or self.shape.gpus_per_node
        return self.shape.nodes * per_node


def build_request(
    argv: Sequence[str],
    options: RunOptions,
    *,
    name: str = "",
    outer: Mapping[str, str] | None = None,
) -> RunRequest:
    """Checks what the user asked for: the job's command `argv`, and our own options.

    `name`: the configuration's name (`phantora-ns profile --name`). `outer`: the environment around
    us (default: this process's). Raises UsageError, or LaunchError when the installation itself is
    incomplete.
    """
    outer = environment.outer_environment() if outer is None else outer
    environment.refuse_nesting(outer)
    command = parse_command(argv, outer, nnodes=options.nnodes)
    cluster = _load_cluster(options, command)
    _check_size(command, cluster)
    check_multi_node(command, cluster.nodes, options.isolated)
    report, html = _check_file("--report", options.report), _check_file("--html", options.html)
    cwd = _check_cwd(options.isolated)
    world = cluster.nodes * (command.processes_per_node or cluster.gpus_per_node)
    trace = _check_trace(options, world)
    torch = installation.find_torch(command.program, command.argv)
    values = _check_values(options.values, cluster, command, cwd, torch)
    host = host_time.check(options)
    leading = leaders.choose(options.leaders, world, cluster.gpu_model.name, outer)
    job = folding.Job(command, cluster, world, host, options.sync, values, leading)
    folded = folding.choose(options.fold, job, options.fold_witnesses)
    running = folded.running(world)
    limits.require_files(running)
    installation.require_built()
    installation.find_libzmq()
    if not options.quiet:
        for warning in environment.replaced_variables(outer):
            say(warning)
        _say_what_is_doubtful(torch, running, options.warm_start != "off")
    if leading is not None:
        leaders.require_library(installation.LEADER_LIBRARY)
    return RunRequest(
        command=command,
        cluster=cluster,
        shape=environment.Shape(cluster.nodes, cluster.gpus_per_node, options.isolated),
        cwd=cwd,
        report=report,
        html=html,
        host=host,
        sync=options.sync,
        values=values,
        host_tensors=options.host_tensors,
        memory_modules=options.memory_modules,
        keep_run_dir=options.keep_run_dir,
        quiet=options.quiet,
        databases=_databases(cluster.gpu, options.kernels),
        trace=trace,
        options=options.cluster_words(),
        leading=leading,
        name=name,
        torch=torch,
        warm=_check_warm(options),
        folding=folded,
        work=None if options.work is None else parse_work(options.work),
        model_flop=None if options.model_flop is None else parse_model_flop(options.model_flop),
    )


def _check_warm(options: RunOptions) -> tuple[str, ...] | None:
    if options.warm_start == "off":
        if options.preload_modules:
            raise UsageError(
                "--preload-modules has no effect without a warm start; on the command line; "
                "add --warm-start auto"
            )
        return None
    return warm_start.check(options.preload_modules)


def _say_what_is_doubtful(torch: Path | None, world: int, warm: bool) -> None:
    """One line when the job's torch is not known to work, and one when its ranks are likely to need
    more memory than there is. The job runs all the same."""
    if torch is None:
        return
    for doubt in (remark(read_software(torch)), limits.memory_remark(world, warm)):
        if doubt is not None:
            say(doubt)


def _load_cluster(options: RunOptions, command: JobCommand) -> Cluster:
    """The cluster in the size that was asked for. A job that starts fewer workers than a fixed
    server has GPUs leaves some idle."""
    from phantora_ns.config import ConfigError, load_cluster

    name, nodes, gpus = options.cluster, command.nodes, options.gpus_per_node
    processes = command.processes_per_node
    try:
        return load_cluster(name, nodes, gpus if gpus is not None else processes, options.changes)
    except ConfigError as error:
        unread = isinstance(error.__cause__, OSError)  # which says nothing about sizes
        if gpus is None and processes is not None and not unread:
            try:
                whole = load_cluster(name, nodes, None, options.changes)
            except ConfigError:
                whole = None
            if whole is not None and whole.gpus_per_node >= processes:
                return whole
        raise UsageError(str(error)) from error


def _check_size(command: JobCommand, cluster: Cluster) -> None:
    """Raises UsageError when the job does not fit the cluster."""
    processes = command.processes_per_node
    if processes is not None and processes > cluster.gpus_per_node:
        option = "--nproc-per-node" if command.torchrun is not None else "--num_gpus"
        raise UsageError(
            f"{option} {processes} is more than the {cluster.gpus_per_node} GPUs of a node; "
            "in the command; start fewer processes, or raise --gpus-per-node"
        )
    if command.torchrun is not None and command.nodes != cluster.nodes:
        raise UsageError(
            f"the cluster has {cluster.nodes} nodes and the job runs on {command.nodes}; "
            f"{cluster.file}; pass --nnodes {cluster.nodes} to torchrun"
        )


def _check_file(option: str, path: Path | None) -> Path | None:
    """A file that is written after the run."""
    if path is None:
        return None
    path = Path(os.path.abspath(path))
    if path.exists():
        if not os.access(path, os.W_OK):
            raise UsageError(
                f"{option} {path} cannot be written; on the command line; choose another file"
            )
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        missing = "does not exist" if not path.parent.exists() else "cannot be written"
        raise UsageError(
            f"{option}: the folder {path.parent} {missing}; on the command line; "
            "create it or choose another"
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
            "the current folder cannot be seen in the nodes, which have a /dev/shm of their own; "
            f"{cwd}; cd to another"
        )
    return cwd


def _check_trace(options: RunOptions, world: int) -> TraceOptions | None:
    try:
        return check_options(
            options.trace,
            options.trace_steps,
            options.trace_ranks,
            world,
            page=options.html is not None,
        )
    except TraceOptionError as error:
        raise UsageError(str(error)) from error


def _check_values(
    text: str, cluster: Cluster, command: JobCommand, cwd: str, folder: Path | None
) -> recorded_values.ValuesOption:
    values = recorded_values.check(text, cluster.gpu_model.model, command.argv, cwd)
    torch = read_torch(folder) if folder is not None else None
    if values.policy == recorded_values.REPLAY and torch is not None:
        if values_libraries.find(torch.version) is None:
            reason = values_libraries.obstacle(torch)
            if reason is not None:
                raise UsageError(
                    f"--values {text} needs the values library; for torch {torch.version}; {reason}"
                )
    return values


def _databases(gpu: str, extra: Sequence[Path]) -> tuple[str, ...]:
    """The kernel-time databases to ask, in order. Each is opened once, so that a bad one is named
    before anything starts."""
    from phantora_ns.config import ConfigError
    from phantora_ns.kernels.database import databases
    from phantora_ns.kernels.database.schema import DatabaseError

    try:
        opened = databases.find(gpu, [os.path.abspath(path) for path in extra])
    except DatabaseError as error:
        raise UsageError(f"{error}; a kernel-time database") from error
    except ConfigError as error:
        raise UsageError(str(error)) from error
    for database in opened:
        database.close()
    return tuple(os.path.abspath(database.path) for database in opened)
