"""`python -m phantora_ns.hub RUN_DIR`: the hub as a process.

Why it exists: the launcher starts the hub before the job and ends it after the job. The hub prints
"ready" once clients may connect. On SIGTERM it writes RUN_DIR/hub.json, its part of the report. Exit
status: 0 after SIGTERM or SIGINT; 1 with one line on stderr when it cannot start, or cannot write
hub.json.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import zmq

from phantora_ns.config import ConfigError
from phantora_ns.config.description import read_cluster
from phantora_ns.config.nccl import measured_version, nccl_constants
from phantora_ns.hub.lookups import KernelModels
from phantora_ns.hub.loop import serve
from phantora_ns.hub.recorder import FILE, Recorder
from phantora_ns.hub.result import write_result
from phantora_ns.hub.server import Hub, HubOptions
from phantora_ns.hub.trace_times import TraceTimes
from phantora_ns.home import cache_folder
from phantora_ns.kernels.contention import KernelContention
from phantora_ns.kernels.library_versions import LibraryVersions
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.kernels.queue_slots import queue_slots_of
from phantora_ns.model.cluster import Cluster
from phantora_ns.model.fold import Fold
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph
from phantora_ns.sim.topology import Topology

GC_THRESHOLD = 100_000
"""Reference counts free objects as history is dropped. The collector only has to find rare reference
cycles."""
SYNC_MODES = ("conservative", "optimistic")


def build_graph(cluster: Cluster) -> tuple[EventGraph, CollectiveModel]:
    """The event graph of an empty run on `cluster`, with its faults, and the collectives in it."""
    topology = Topology.build(cluster)
    flows = FlowSimulator(topology.capacities)
    for at_ns, link, bytes_per_ns in topology.capacity_changes():
        flows.set_capacity(at_ns, link, bytes_per_ns)
    gpu = cluster.gpu_model
    collectives = CollectiveModel(topology, gpu)
    graph = EventGraph(
        flows, collectives, topology.capacities, contention=gpu.contention.collective
    )
    return graph, collectives


def build_hub(run_dir: Path) -> Hub:
    """The hub of the run that RUN_DIR/run.json and RUN_DIR/cluster.json describe. Raises OSError,
    ValueError, KeyError, ConfigError."""
    run = json.loads((run_dir / "run.json").read_text())
    sync = run.get("sync", SYNC_MODES[0])
    if sync not in SYNC_MODES:
        raise ValueError(f'run.json: sync: {sync!r} is neither "conservative" nor "optimistic"')
    cluster = read_cluster(run_dir)
    gpu = cluster.gpu_model
    graph, collectives = build_graph(cluster)
    models = KernelModels(
        KernelTimes(
            gpu, run.get("databases") or [], _library_versions(run), cache_folder() / "fits"
        ),
        KernelContention(gpu).permille,
        lambda kind, fields: queue_slots_of(kind, fields, gpu.multiprocessors).packed(),
    )
    measured_version()  # reads NCCL's numbers now: a rank must not find that a file is gone
    options = HubOptions(
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        multiprocessors=gpu.multiprocessors,
        optimistic=sync == "optimistic",
        leader=run.get("leader"),
        fold=Fold(**run["fold"]) if run.get("fold") else None,
        per_node=run.get("ranks_per_node") or cluster.gpus_per_node,
        config={"sync": sync, "host_time": run.get("host_time"), "values": run.get("values")},
    )
    recording = run.get("recording")  # None: no leader records in this run
    recorder = None if recording is None else Recorder(run_dir / FILE, recording)
    hub = Hub(
        run_dir,
        graph,
        models,
        options,
        recorder,
        lambda known: collectives.use(nccl_constants(known, gpu.compute_major)),
    )
    if run.get("trace") is not None:
        hub.traces = TraceTimes(run_dir, graph, run["trace"]["ranks"])
    return hub


def _library_versions(run: dict[str, Any]) -> LibraryVersions | None:
    """The job's; None for a job without torch."""
    software = run.get("software")
    return LibraryVersions.of(software) if software else None


def main(arguments: list[str]) -> int:
    """Runs the hub of the run directory named by the only argument; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m phantora_ns.hub RUN_DIR", file=sys.stderr)
        return 1
    run_dir = Path(arguments[0])
    _lift_limit()
    try:
        hub = build_hub(run_dir)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        serve(hub, f"ipc://{run_dir.resolve()}/hub.sock", _announce)
    except (OSError, ConfigError, KeyError, ValueError, zmq.ZMQError) as error:
        what = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        print(f"phantora-ns: the hub cannot start: {what}", file=sys.stderr)
        return 1
    if hub.recorder is not None:
        hub.recorder.close()
    try:
        write_result(run_dir / "hub.json", hub)
    except OSError as error:
        print(
            f"phantora-ns: the hub's part of the report cannot be written: {error.strerror}; "
            f"{run_dir}; make room there",
            file=sys.stderr,
        )
        return 1
    return 0


def _lift_limit() -> None:
    """As many open files as the hard limit allows: each client takes three, and libzmq aborts when
    there are none left. The job keeps the limit that the user has."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _announce() -> None:
    os.write(1, b"ready\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
