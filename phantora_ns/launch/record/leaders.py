"""Which rank leads, on which GPU, and what its environment needs (docs/leading.md).

Why it exists: whether `--leaders` makes sense depends on this machine's GPUs and on the simulated
cluster. Whatever is wrong with it must be said before anything starts.
"""

from __future__ import annotations

import datetime
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora_ns.launch.errors import LaunchError, UsageError
from phantora_ns.launch.machine import gpus
from phantora_ns.launch.machine.host_cpu import host_cpu_name
from phantora_ns.launch.machine.software import read_software

AUTO, NONE = "auto", "none"
KERNELS, HOST, VALUES = "kernels", "host", "values"
"""What a leader records (docs/leading.md, PHANTORA_LEAD_RECORD)."""
_OURS = "PHANTORA_"


@dataclass(frozen=True)
class Leading:
    """The rank that leads in one run. `candidates`: the GPUs of this machine that it may use.
    `record`: KERNELS, HOST or VALUES; None: as the environment says."""

    rank: int
    candidates: tuple[gpus.RealGpu, ...]
    machine: gpus.Machine
    record: str | None = None


def parse_leaders(text: str, world: int) -> tuple[int, ...] | None:
    """The ranks that --leaders names, in its order: () for none, None for auto. Raises
    UsageError."""
    if text in (AUTO, NONE):
        return () if text == NONE else None
    ranks: list[int] = []
    for word in text.split(","):
        if not re.fullmatch("[0-9]{1,9}", word):
            raise UsageError(
                f"--leaders {text}: {word!r} is no rank; on the command line; give auto, none, or ranks such as 0,4"
            )
        if int(word) >= world:
            raise UsageError(
                f"--leaders {text}: there is no rank {int(word)} in a job of {world}; on the command line; "
                f"give ranks from 0 to {world - 1}"
            )
        if int(word) not in ranks:
            ranks.append(int(word))
    return tuple(ranks)


def find_gpus(
    gpu_name: str, outer: Mapping[str, str]
) -> tuple[gpus.Machine, tuple[gpus.RealGpu, ...]]:
    """(this machine, its usable GPUs of the simulated model). `gpu_name`: NVIDIA's name of the model,
    such as "NVIDIA H200"."""
    machine = gpus.look()
    usable = gpus.visible(machine.gpus, outer.get("CUDA_VISIBLE_DEVICES"))
    return machine, tuple(gpu for gpu in usable if gpu.name == gpu_name)


def why_none(gpu_name: str, machine: gpus.Machine, outer: Mapping[str, str]) -> str:
    """Why no rank can lead here, and what to do, for an error message."""
    if not machine.gpus:
        return "this machine has no NVIDIA GPU, or its driver does not answer (try nvidia-smi)"
    seen = gpus.visible(machine.gpus, outer.get("CUDA_VISIBLE_DEVICES"))
    if not seen:
        return f"CUDA_VISIBLE_DEVICES={outer.get('CUDA_VISIBLE_DEVICES')} hides this machine's GPUs"
    return f"this machine has {', '.join(sorted({gpu.name for gpu in seen}))}, and the cluster's GPU is {gpu_name}"


def choose(text: str, world: int, gpu_name: str, outer: Mapping[str, str]) -> Leading | None:
    """Who leads in a run with `--leaders text`; None: nobody. Raises UsageError, also when there is
    no GPU for the rank."""
    ranks = parse_leaders(text, world)
    if ranks == ():
        return None
    if ranks is not None and len(ranks) > 1:
        raise UsageError(
            f"--leaders {text}: in one run one rank leads; on the command line; choose one, or let "
            "phantora-ns profile run the job once for each"
        )
    machine, candidates = find_gpus(gpu_name, outer)
    if candidates:
        return Leading(ranks[0] if ranks else 0, candidates, machine)
    if ranks is None:
        return None
    raise UsageError(
        f"--leaders {text}: {why_none(gpu_name, machine, outer)}; on this machine; leave --leaders out to simulate "
        "all ranks"
    )


def describe_run(
    leading: Leading | None, gpu_model: str, torch: Path | None, argv: Sequence[str], name: str
) -> dict[str, Any]:
    """Where a recording is made: `gpu` and schema.RUN_FIELDS, without the device, which is chosen
    later."""
    software = read_software(torch) if torch is not None else None
    known = leading.machine if leading is not None else gpus.Machine()
    return {
        "gpu": gpu_model,
        "configuration": name,
        "rank": str(leading.rank) if leading is not None else "",
        "command": shlex.join(argv),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "driver": known.driver,
        "cuda": (software.cuda if software else "") or known.cuda,
        "torch": software.torch if software else "",
        "cudnn": software.cudnn if software else "",
        "cublas": software.cublas if software else "",
        "host_cpu": host_cpu_name(),
    }


def leader_environment(
    leading: Leading,
    chosen: gpus.RealGpu,
    library: Path,
    torch: Path | None,
    outer: Mapping[str, str],
    job: Mapping[str, str],
) -> dict[str, str]:
    """The variables that let one process of the job become the leader (startup/sitecustomize.py).

    `job` is the environment of the other ranks. PHANTORA_LEAD_RESTORE maps variables to their
    values on this machine outside of the run (null: not set): Triton's path, and our own variables
    that a run around this one has set. CUDA_VISIBLE_DEVICES is the job's.
    """
    restore = {"TRITON_LIBCUDA_PATH": outer.get("TRITON_LIBCUDA_PATH")}
    restore |= {name: outer[name] for name in job if name.startswith(_OURS) and name in outer}
    visible = chosen.uuid if len(leading.machine.gpus) > 1 else outer.get("CUDA_VISIBLE_DEVICES")
    cupti = outer.get("PHANTORA_CUPTI")
    if not cupti:
        cupti = (
            str(max(torch.parent.glob("nvidia/*/lib/libcupti.so.*"), default=""))
            if torch is not None
            else ""
        )
    return {
        "PHANTORA_LEADER": str(leading.rank),
        "PHANTORA_LEAD_LIBRARY": str(library),
        "PHANTORA_LEAD_RESTORE": json.dumps(restore),
        "PHANTORA_CUPTI": cupti,
        **({} if leading.record is None else {"PHANTORA_LEAD_RECORD": leading.record}),
        **({} if visible is None else {"PHANTORA_MACHINE_VISIBLE_DEVICES": visible}),
    }


def require_library(library: Path) -> None:
    """Raises LaunchError when the leader's library is not there."""
    if not library.is_file():
        raise LaunchError(
            f"{library.name} is not built; in {library.parent}; run make build, or let no rank lead: "
            "--leaders none"
        )
