"""How long collectives take beside compute, against real steps of FSDP on H200s (bench/gpus/data).

A layer's all-gathers and reduce-scatters, from the begin of the last rank's kernel to the end of the
first one's: what they take without waits.
"""

from functools import lru_cache
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.gpus import steps, visit
from phantora_ns.config import load_cluster
from phantora_ns.sim import _courses
from phantora_ns.sim._courses import Courses
from phantora_ns.sim.collectives import KINDS, CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph, ExpectedOverlap, Op
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
    course = Courses(model, topology.capacities, flows.group, share).of(
        plan, _courses.PARTS if overlapped else 0
    )
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


def ends_ns(size, waited_ns):
    """When a reduce-scatter ends that starts at 0, and compute's wait for it, on four GPUs."""
    cluster = load_cluster("h200-1x8", 1, 8)
    topology = Topology.build(cluster)
    share = cluster.gpu_model.contention.collective
    graph = EventGraph(
        FlowSimulator(topology.capacities),
        CollectiveModel(topology, cluster.gpu_model),
        topology.capacities,
        share,
    )
    clients = [graph.add_client() for _ in range(4)]
    comm = graph.communicator(clients, range(4), [str(client) for client in clients])
    op = Op(KINDS.index("reduce_scatter"), size, 7, 0, -1)
    for client, waited in zip(clients, waited_ns, strict=True):
        overlap = None if waited is None else ExpectedOverlap(waited)
        graph.launch(comm, client, 1, graph.expression(client, []), [op], overlap)
    graph.run()
    return next(graph.vertices(0))[1].time_ns


SIZES = st.integers(1 << 24, 1 << 28)


@given(SIZES, st.integers(0, 4000))
@settings(deadline=None)
def test_only_the_part_beside_compute_is_slowed(size, waited_us):
    """In a steady state the last step's wait is this step's, so its end is where a fluid would be."""
    alone, whole = ends_ns(size, [None] * 4), ends_ns(size, [0] * 4)
    waited = min(1000 * waited_us, alone)
    fluid = waited + (alone - waited) * whole / alone
    assert ends_ns(size, [waited] * 4) == pytest.approx(fluid, abs=1 + whole / _courses.PARTS / 4)
    assert alone <= ends_ns(size, [waited] * 4) <= whole


@given(SIZES, st.lists(st.none() | st.integers(0, 4_000_000), min_size=4, max_size=4), st.randoms())
@settings(deadline=None)
def test_the_gpu_that_computes_longest_sets_the_pace(size, waited_ns, rng):
    known = [waited for waited in waited_ns if waited is not None]
    most = [min(known)] * 4 if known else [None] * 4
    rng.shuffle(waited_ns)
    assert ends_ns(size, waited_ns) == ends_ns(size, most)
