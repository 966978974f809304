"""The job's host time: --host-time, --host-scale, --record-host (docs/host-time.md).

Why it exists: what the options say and what databases hold becomes what the ranks read: the costs
in device.conf, host.tbl, and some environment variables.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phantora_ns.config.device_conf import write_device_conf
from phantora_ns.kernels.database import databases, host_samples
from phantora_ns.kernels.database.database import DatabaseError
from phantora_ns.kernels.database.host_table import Here, HostRecord, read_hosts, write_table
from phantora_ns.launch.command.options import RunOptions
from phantora_ns.launch.errors import LaunchError, UsageError, say
from phantora_ns.launch.machine.host_cpu import host_cpu_name
from phantora_ns.launch.machine.installation import INTERCEPTOR
from phantora_ns.launch.record import learned_host_times as learned_times
from phantora_ns.launch.record.host_speed import REFERENCE, REFERENCE_SCORE_NS
from phantora_ns.model.cluster import Cluster
from phantora_ns.model.gpu import GpuModel
from phantora_ns.protocol import HOST_TABLE_FILE

MODES = ("auto", "measured", "model", "none")
AUTO = "auto"
REPEATS = ("auto", "model")
REPEATABLE_HASHES = "0"
SCORE_S = 60.0
_SCORE = "import ctypes; f = ctypes.CDLL(None).phantora_host_score; f.restype = ctypes.c_uint64; print(f())"
RECORDING = "recording.sqlite"  # hub/recorder.py


@dataclass(frozen=True)
class HostTimeOptions:
    """The options, checked. `scale`: a factor for the job's own host time; None: the ratio of the
    machines' CPU scores. `record`: the database that gets the host times of this run. `jitter`: with
    auto, hosts differ and vary."""

    mode: str = AUTO
    scale: float | None = 1.0
    record: Path | None = None
    jitter: bool = True


@dataclass(frozen=True)
class Prepared:
    """A run's host time: `environment` is for its ranks, `run` for run.json."""

    environment: dict[str, str]
    run: dict[str, object]


@dataclass(frozen=True)
class Job:
    """What learned host times are kept under: a job's identity, and the version of its torch."""

    identity: str
    torch: str


def check(options: RunOptions) -> HostTimeOptions:
    """The options, checked. Raises UsageError."""
    record = options.record_host
    mode = options.host_time or ("measured" if record else AUTO)
    if record is not None:
        if mode != "measured":
            raise UsageError(
                f"--record-host needs --host-time measured, not {mode}; on the command line; drop one of the two"
            )
        record = Path(os.path.abspath(record))
        if record.is_dir() or not os.access(record if record.exists() else record.parent, os.W_OK):
            raise UsageError(
                f"--record-host {record} cannot be written; on the command line; choose another file"
            )
    scale = None if options.host_scale == AUTO else float(options.host_scale)
    return HostTimeOptions(mode, scale, record, options.host_jitter == "sampled")


def cpu_score(run_dir: Path) -> float:
    """How many ns the CPU workload takes on this machine now (libintercept's phantora_host_score).
    `run_dir` has the library. Raises LaunchError."""
    try:  # preloaded, because its thread-local data has no room in a process that already runs
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SCORE],
            env={**os.environ, "LD_PRELOAD": str(run_dir / "lib" / INTERCEPTOR.name)},
            check=True,
            capture_output=True,
            text=True,
            timeout=SCORE_S,
        )
        return float(done.stdout)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["it failed"])[-1]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    raise LaunchError(
        f"this machine's speed cannot be measured: {reason}; in {INTERCEPTOR}; run make build"
    )


def _record(paths: Iterable[str], gpu: str, sites: bool) -> HostRecord:
    try:
        with ExitStack() as stack:
            return read_hosts(
                [stack.enter_context(database) for database in databases.open_all(paths, gpu)],
                sites=sites,
            )
    except DatabaseError as error:
        raise LaunchError(str(error)) from None


def prepare(
    options: HostTimeOptions,
    cluster: Cluster,
    files: Iterable[str],
    path: Path,
    job: Job,
    quiet: bool = False,
) -> Prepared:
    """Writes what ranks read about host time into run directory `path`. `files`: the kernel-time
    databases. Raises LaunchError, OSError."""
    gpu = cluster.gpu_model
    record = _record(files, gpu.model, options.mode in REPEATS)
    calls = record.costs(gpu.host).times(_slower(options, cluster, record))
    described = replace(gpu, host=calls)
    write_device_conf(described, path / "device.conf", cluster.nodes)
    env = {"PHANTORA_HOST_TIME": options.mode}
    scale = _scale(options, cluster, record, path)
    env["PHANTORA_HOST_SCALE"] = repr(scale)
    if not options.jitter:
        env["PHANTORA_HOST_MEANS"] = "1"
    told = cluster.server.cpu_score_ns is not None and options.scale is not None
    run: dict[str, object] = {"host_time": options.mode, "host_scale": scale, "host_told": told}
    if options.mode in REPEATS:
        here = _here(job, path) if options.mode == AUTO else Here()
        run["host_time_measures"] = here.measures
        write_table(path / HOST_TABLE_FILE, record, gpu.host.unknown_ns, here)
        # With a fixed seed, sets of names have the same order in every run.
        env["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", REPEATABLE_HASHES)
        if options.mode == "model" and not record.sites and not quiet:
            say(
                "no kernel-time database holds host times, so every call is charged the same; "
                "with --host-time model; record them with phantora-ns profile, or --record-host"
            )
    if options.record is not None:
        env["PHANTORA_RECORD_HOST"] = "1"
        try:
            env["PHANTORA_HOST_SCORE"] = repr(cpu_score(path))
        except LaunchError as error:
            say(f"{error}; the record will not say how fast this machine is")
    return Prepared(env, run)


def _slower(options: HostTimeOptions, cluster: Cluster, record: HostRecord) -> float:
    """What the calls cost on the cluster's CPUs, over what they cost where they were measured: that machine was
    like the one of the databases."""
    theirs = cluster.server.cpu_score_ns
    if options.scale is None or theirs is None or record.score is None:
        return 1.0
    return theirs / record.score


def _scale(options: HostTimeOptions, cluster: Cluster, record: HostRecord, path: Path) -> float:
    """What the job's own host time is multiplied by: --host-scale, and how much slower the cluster's
    CPUs are than those of the times. Raises LaunchError."""
    theirs = cluster.server.cpu_score_ns
    if options.scale is None:  # as the recorded machine, whatever the cluster's CPUs are
        if record.score is None:
            raise LaunchError(
                "--host-scale auto: no database says how fast its machine was; "
                "on the command line; give a number, or record one with phantora-ns profile"
            )
        return 1.0 if options.mode in REPEATS else record.score / cpu_score(path)
    if theirs is None or options.mode == "none":
        return options.scale
    if options.mode == AUTO:  # what a first run measures is brought to the reference machine
        return options.scale * theirs / REFERENCE_SCORE_NS
    if options.mode == "measured":
        return options.scale * theirs / cpu_score(path)
    if record.score is None:
        raise LaunchError(
            "server.cpu_score: no database says how fast its machine was; "
            f"in {cluster.file}; remove it, or record one with phantora-ns profile"
        )
    return options.scale * _slower(options, cluster, record)


def _here(job: Job, path: Path) -> Here:
    """What earlier runs have measured. If no run of the job was measured, this one will be. A home
    that cannot be entered holds nothing. Raises OSError, LaunchError."""
    known = learned_times.Learned()
    try:
        with contextlib.suppress(OSError):
            known = learned_times.read(learned_times.path(), job.identity)
    except sqlite3.Error as error:
        raise LaunchError(
            f"the host times of earlier runs cannot be read: {error}; {learned_times.path()}; delete it"
        ) from None
    if known.measured:
        return Here(known.sites, known.seldom)
    host_samples.make_samples(path, REFERENCE)
    return Here(measures=True)


def keep_learned(run_dir: Path, job: Job, run: dict[str, Any], again: bool) -> None:
    """After a run that went well with --host-time auto: keeps what it measured. If it measured
    nothing and `again`, the next run of the job measures. Raises LaunchError."""
    file = learned_times.path()
    try:
        if run.get("host_time_measures"):
            measured = host_samples.samples_of(run_dir)
            if measured.sites:  # else nothing of it used CUDA
                learned_times.keep(file, job.identity, measured)
        elif again:
            learned_times.forget(file, job.identity)
    except (OSError, sqlite3.Error) as error:
        raise LaunchError(
            f"the measured host times cannot be kept: {error}; {file}; "
            "the next run of the job will measure them again"
        ) from None


def recording_meta(gpu: GpuModel, argv: Sequence[str]) -> dict[str, str]:
    """Where host times are recorded (schema.RUN_FIELDS)."""
    return {
        "gpu": gpu.model,
        "command": shlex.join(argv),
        "host_cpu": host_cpu_name(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def keep(run_dir: Path, file: Path) -> None:
    """Adds what the run recorded to database `file`. Raises LaunchError."""
    recording = run_dir / RECORDING
    if not recording.is_file():
        raise LaunchError(
            f"no host times were recorded; {file}; the job ended before any of its processes could report"
        )
    try:
        databases.add(file, [recording])
    except DatabaseError as error:
        raise LaunchError(
            f"the host times cannot be kept: {error}; {file}; choose another file"
        ) from None
