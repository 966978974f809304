"""What a run is made of before it starts: the files in RUN_DIR, and the sandbox's spec.

Why it exists: the hub and the ranks read from RUN_DIR what the request says. Everything is written
here, so that one place shows what they are told.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phantora_ns.config.description import write_cluster
from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine import (
    environment,
    installation,
    interposition,
    values_libraries,
    warm_start,
)
from phantora_ns.launch.machine.gpus import RealGpu
from phantora_ns.launch.machine.sandbox import SandboxSpec
from phantora_ns.launch.machine.software import read_software
from phantora_ns.launch.machine.values_recipe import read_torch
from phantora_ns.launch.record import host_time, leaders, learned_host_times
from phantora_ns.launch.run import step_hold
from phantora_ns.launch.run.run_request import RunRequest
from phantora_ns.protocol import VALUE_TABLE_FILE
from phantora_ns.report import held_part


@dataclass(frozen=True)
class Prepared:
    """A run directory that is ready. `kernel_info`: what torch's kernels say of their parameters,
    None without torch."""

    path: Path
    host: host_time.Prepared
    kernel_info: Path | None


def lay_out(path: Path) -> None:
    """Puts what the ranks load into the run directory `path`."""
    installation.link_installation(path)
    values_libraries.provide(path)


def job_of(request: RunRequest) -> host_time.Job:
    """What the job's learned host times are kept under."""
    torch = read_software(request.torch).torch if request.torch is not None else ""
    shape = (request.shape.nodes, request.shape.gpus_per_node)
    return host_time.Job(
        learned_host_times.job_of(request.command.argv, request.cwd, shape, torch), torch
    )


def prepare(request: RunRequest, path: Path, gpu: RealGpu | None) -> Prepared:
    """Writes what the hub and the ranks read into the run directory `path`, which has
    our libraries (lay_out). `gpu`: the real one on which the leader runs, None without a leader.
    Raises LaunchError, OSError."""
    host = host_time.prepare(
        request.host, request.cluster, request.databases, path, job_of(request), request.quiet
    )
    if request.trace is not None:
        (path / "trace").mkdir()
    if request.memory_modules:
        (path / held_part.FOLDER).mkdir()
    if request.folding.fold is not None:
        (path / "fold").mkdir()
    run = _run_description(request, path, gpu) | host.run
    kernel_info = _kernel_info(request, path, run["warnings"])
    (path / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    write_cluster(request.cluster, path)
    if request.values.file is not None:
        shutil.copyfile(request.values.file, path / VALUE_TABLE_FILE)
    (path / "hosts").write_text(environment.hosts_file(request.command, request.shape.nodes))
    return Prepared(path, host, kernel_info)


def _kernel_info(request: RunRequest, path: Path, warnings: list[str]) -> Path | None:
    """As installation.find_kernel_info. A torch whose kernels cannot be read may be newer than we
    are: the job is tried, and `warnings` gets why its times are estimates."""
    model = request.cluster.gpu_model
    architecture = 10 * model.compute_major + model.compute_minor
    try:
        return installation.find_kernel_info(request.torch, architecture, path)
    except LaunchError as error:
        warnings.append(str(error))
        return None


def _run_description(request: RunRequest, path: Path, gpu: RealGpu | None) -> dict[str, Any]:
    """run.json, host time apart."""
    values_work = values_libraries.serves(path, request.torch and read_torch(request.torch))
    run: dict[str, Any] = {
        "cluster": os.path.abspath(request.cluster.file),
        "nodes": request.shape.nodes,
        "gpus_per_node": request.shape.gpus_per_node,
        "sync": request.sync,
        "values": request.values.policy if values_work else "none",
        "databases": list(request.databases),
        "leader": None,
        "recording": None,
        "command": list(request.command.argv),
        "options": list(request.options),
        "work": None if request.work is None else asdict(request.work),
        "model_flop": request.model_flop,
        "warnings": interposition.warnings(request.command.program),
    }
    torch = request.torch
    if torch is not None:
        run["software"] = read_software(torch).describe()
    model = request.cluster.gpu_model
    if request.leading is not None:
        assert gpu is not None
        about = leaders.describe_run(
            request.leading,
            model.model,
            torch,
            request.command.argv,
            request.name,
        )
        run["leader"] = request.leading.rank
        run["records"] = request.leading.record
        run["recording"] = about | {"device": gpu.name, "clocks": gpu.clocks}
    if request.host.record is not None:
        run["recording"] = host_time.recording_meta(model, request.command.argv)
    folding = request.folding
    if folding.asked != "off":
        run["fold"] = folding.fold and folding.fold.describe()
        run["fold_asked"], run["not_folded"] = folding.asked, folding.reason
        run["ranks_per_node"] = request.ranks // request.shape.nodes
    if request.trace is not None:
        run["trace"] = request.trace.describe(path)
    return run


def sandbox_spec(request: RunRequest, prepared: Prepared, gpu: RealGpu | None) -> SandboxSpec:
    """The nodes, and what each of them runs. `gpu` as for `prepare`. Raises LaunchError."""
    outer = environment.outer_environment()
    isolated, path = request.shape.isolated, prepared.path
    nodes = environment.node_environments(request.command, request.shape, outer)
    faults = request.cluster.faults
    return SandboxSpec(
        program=request.command.program,
        argv=request.command.argv,
        cwd=request.cwd,
        isolated=isolated,
        env=_job_environment(request, prepared, gpu, outer),
        node_envs=[own | environment.gpu_faults(faults, node) for node, own in enumerate(nodes)],
        fake_gpus=request.shape.gpus_per_node if isolated else 0,
        hosts=str(path / "hosts") if isolated else None,
    )


def _job_environment(
    request: RunRequest, prepared: Prepared, gpu: RealGpu | None, outer: dict[str, str]
) -> dict[str, str]:
    """What every process of the job sees, on all nodes alike."""
    job = environment.job_environment(outer, prepared.path, request.shape, prepared.kernel_info)
    job |= prepared.host.environment
    job |= {"PHANTORA_VALUES": request.values.policy}
    job |= {"PHANTORA_HOST_TENSORS": request.host_tensors}
    if request.memory_modules:
        job |= {"PHANTORA_MEMORY_MODULES": "1"}
    if request.hold is not None:
        job |= {"PHANTORA_HOLD": str(prepared.path / step_hold.FILE)}
    job |= warm_start.prepare(prepared.path, request.warm)
    storage = request.cluster.server.storage_bytes_per_ns
    if storage is not None:
        job |= {"PHANTORA_STORAGE_BANDWIDTH": repr(storage)}
    if request.trace is not None:
        job |= request.trace.environment()
        if request.leading is None:  # a leader's ranges are its real tools'
            ours = prepared.path / "lib" / installation.INTERCEPTOR.name
            job.setdefault("NVTX_INJECTION64_PATH", str(ours))  # libintercept/trace/nvtx.c
    job |= _fold_environment(request)
    if request.folding.fold is not None:
        # An agent has no rank, whatever is exported around us.
        job.pop("RANK", None)
    if request.leading is not None:
        assert gpu is not None
        job |= leaders.leader_environment(
            request.leading,
            gpu,
            prepared.path / "lib" / installation.LEADER_LIBRARY.name,
            request.torch,
            outer,
            job,
        )
        if request.command.torchrun is not None or request.command.deepspeed is not None:
            # A launcher has no rank of its own, whatever is exported around us; its workers have.
            job.pop("RANK", None)
    return job


def _fold_environment(request: RunRequest) -> dict[str, str]:
    """What tells a rank that it is absent (libintercept/base/absent.c), and PyTorch that an absent rank
    makes no unique id."""
    fold = request.folding.fold
    if fold is None:
        return {}
    return {
        "PHANTORA_FOLD": f"{fold.period},{fold.block},{fold.world},{fold.last}",
        "TORCH_NCCL_RANKS_PER_ROOT": str(fold.world),
        # a gloo group is made without its absent members; its use is refused (_phantora_fold.py)
        "TORCH_GLOO_LAZY_INIT": "1",
    }
