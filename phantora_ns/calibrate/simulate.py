"""How long an operation of nccl-tests takes in the simulator.

Why it exists: what is fitted must be what a job gets. Rule: there is no formula here. Each rank
launches its operation in an event graph of its own, as a job's ranks do in theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from phantora_ns.calibrate.samples import Sample
from phantora_ns.model.cluster import Cluster
from phantora_ns.model.nccl import NcclConstants
from phantora_ns.protocol import Collective
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph, Op, Transfer
from phantora_ns.sim.topology import Topology

_KINDS = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
    "alltoall": Collective.ALL_TO_ALL,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
}
_WHOLE = ("all_reduce", "broadcast", "reduce")
"""Each rank names the whole size; of the others its own share."""
_FLOAT = 7


class Simulated(NamedTuple):
    """The time, and what NCCL chose for it."""

    ns: float
    algorithm: str
    protocol: str


class Simulator:
    """Operations on one cluster, each alone."""

    def __init__(
        self,
        cluster: Cluster,
        constants: NcclConstants | None = None,
        topology: Topology | None = None,
    ) -> None:
        """`constants`: of a release of NCCL; None: that of the GPU model's times. `topology`: the
        cluster's, if it is at hand."""
        self.topology = topology or Topology.build(cluster)
        self.model = CollectiveModel(self.topology, cluster.gpu_model)
        if constants is not None:
            self.model.use(constants)

    def run(self, sample: Sample) -> Simulated:
        """The sample's operation, until its last rank is through; of groups side by side, the mean."""
        capacities = self.topology.capacities
        graph = EventGraph(FlowSimulator(capacities), self.model, capacities)
        groups = [self._launch(graph, sample, group) for group in sample.groups]
        graph.run()
        ends = [
            max(((end.time_ns or 0, end) for end in found), key=lambda one: one[0])
            for found in groups
        ]
        course = ends[0][1].course
        assert course is not None
        return Simulated(fmean(ns for ns, _ in ends), course.algorithm, course.protocol)

    def _launch(
        self, graph: EventGraph, sample: Sample, group: tuple[tuple[int, int], ...]
    ) -> list[Transfer]:
        """Enters the operation of one communicator. Returns the transfers that end it."""
        clients = [graph.add_client() for _ in group]
        gpus = [node * self.topology.gpus_per_node + gpu for node, gpu in group]
        comm = graph.communicator(clients, gpus, [str(client) for client in clients])
        found: list[Transfer] = []
        for number, step in enumerate(_steps(sample, len(clients)), 1):
            # Each launch comes after the one before it on the same stream.
            after = [number - 1, 0, 0] if number > 1 else []
            found = [
                transfer
                for client, ops in zip(clients, step, strict=True)
                for transfer in graph.launch(
                    comm, client, number, graph.expression(client, after), ops
                )
            ]
        return found


def _steps(sample: Sample, ranks: int) -> Iterator[list[list[Op]]]:
    """For each launch, what each rank puts into it. A hypercube is a message to and from the
    neighbour in each dimension, one dimension after the other."""
    if sample.operation != "hypercube":
        yield [_ops(sample, rank, ranks) for rank in range(ranks)]
        return
    distance = 1
    while distance < ranks:
        size = sample.size // ranks * distance
        yield [_messages(rank ^ distance, rank ^ distance, size) for rank in range(ranks)]
        distance *= 2


def _ops(sample: Sample, rank: int, ranks: int) -> list[Op]:
    """What a rank launches for it."""
    if sample.operation == "sendrecv":
        return _messages((rank + 1) % ranks, (rank - 1) % ranks, sample.size)
    size = sample.size if sample.operation in _WHOLE else sample.size // ranks
    return [Op(_KINDS[sample.operation], size, _FLOAT, 0, sample.root)]


def _messages(to: int, of: int, size: int) -> list[Op]:
    return [
        Op(Collective.SEND, size, _FLOAT, -1, to),
        Op(Collective.RECV, size, _FLOAT, -1, of),
    ]
