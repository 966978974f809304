"""How long collectives take beside compute, against real steps of FSDP on H200s (bench/gpus/data).

A layer's all-gathers and reduce-scatters, from the begin of the last rank's kernel to the end of the
first one's: what they take without waits.
"""

from functools import lru_cache
from pathlib import Path
from statistics import median

import pytest

from bench.gpus import steps, visit
from phantora_ns.config import load_cluster
from phantora_ns.sim._courses import Courses
from phantora_ns.sim.collectives import KINDS, CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.topology import Topology

DATA = Path(__file__).resolve().parents[2] / "bench" / "gpus" / "data"
LAYER = {"1b": 60_821_504, "8b": 218_112_000}  # parameters
KERNELS = {"all_gather": "ncclDevKernel_AllGather", "reduce_scatter": "ncclDevKernel_ReduceScatter"}


@lru_cache(maxsize=1)
def traces():
    found = {}
    for trace in visit.traces(DATA):
        if "-fsdp-" in trace["part"] and not trace["part"].endswith("@1"):
            found.setdefault(trace["part"], {})[trace["rank"]] = trace
    return found


def real_ns(part, kind):
    ranks = []
    for rank in range(int(part.partition("@")[2])):
        trace = traces()[part][rank]
        kernels = [k for k in steps.of_line(trace) if k.name.startswith(KERNELS[kind])]
        base = trace["base_ns"]
        ranks.append(
            [(base + k.begin, base + k.end) for k in sorted(kernels, key=lambda k: k.begin)]
        )
    met = zip(*ranks, strict=True)
    return median(min(end for _, end in one) - max(begin for begin, _ in one) for one in met)


def simulated_ns(size, gpus, kind, overlapped):
    cluster = load_cluster("h200-1x8", 1, 8)
    topology = Topology.build(cluster)
    model = CollectiveModel(topology, cluster.gpu_model)
    flows = FlowSimulator(topology.capacities)
    share = cluster.gpu_model.contention.collective if overlapped else 0.0
    bytes_each = 2 if kind == "all_gather" else 4
    plan = model.plan(KINDS.index(kind), range(gpus), LAYER[size] * bytes_each // gpus)
    course = Courses(model, topology.capacities, flows.group, share).of(plan, overlapped)
    flow = flows.add_group(course.before_ns, course.shared)
    return flows.completion_ns(flow) + course.after_ns


# Calibration; then evaluation.
PARTS = ["1b-fsdp-4k@4", "8b12-fsdp-8k-ac@2", "8b12-fsdp-8k-ac@4", "8b12-fsdp-4k@4", "8b-fsdp-4k@4"]


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("part", PARTS)
def test_collectives_beside_compute_take_their_real_time(part, kind):
    size, gpus = part[: part.index("b") + 1], int(part.partition("@")[2])
    real = real_ns(part, kind)
    assert simulated_ns(size, gpus, kind, True) == pytest.approx(real, rel=0.12)
    if kind == "all_gather":
        assert simulated_ns(size, gpus, kind, False) < real


def test_the_share_is_that_of_all_calibration_parts():
    ratios = [
        simulated_ns(part[: part.index("b") + 1], int(part.partition("@")[2]), kind, True)
        / real_ns(part, kind)
        for part in PARTS[:3]
        for kind in KERNELS
    ]
    assert median(ratios) == pytest.approx(1, abs=0.03)
