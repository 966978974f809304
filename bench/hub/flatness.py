"""Memory and CPU of the event graph over a long synthetic FSDP job, without any I/O.

    python -m bench.hub.flatness [--ranks 64] [--steps 10000] [--collectives 24] [--contention 90000]

Why it exists: the hub's memory must not grow with the number of steps, and its CPU time per message
bounds how many ranks one core can serve. Prints one line per tenth of the run: steps done, resident
memory, live nodes, objects kept by the flow simulator, microseconds per message.
"""

import argparse
import gc
import resource
import time

from phantora_ns.config import load_cluster, load_gpu
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph, Op
from phantora_ns.sim.topology import Topology


def resident_mb() -> float:
    """Resident memory now, in MB."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 1e6


class Rank:
    """One rank's own numbering: the last nodes of its compute and communication stream, and its
    host anchor."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.number = 0
        self.anchor = 0
        self.compute: list = [0, 0, 0]
        self.comm = [0, 0, 0]

    def fresh(self) -> int:
        self.number += 1
        return self.number


def main() -> None:
    """Runs the job and prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--collectives", type=int, default=24, help="collectives per rank and step")
    parser.add_argument(
        "--contention",
        type=int,
        default=90_000,
        help="ns that 300 us of compute take longer beside communication",
    )
    options = parser.parse_args()
    gpus_per_node = min(8, options.ranks)
    cluster = load_cluster(
        "h200-rail", nodes=options.ranks // gpus_per_node, gpus_per_node=gpus_per_node
    )
    topology = Topology.build(cluster)
    flows = FlowSimulator(topology.capacities)
    graph = EventGraph(flows, CollectiveModel(topology, load_gpu(cluster.gpu)), topology.capacities)
    ranks = [Rank(graph.add_client()) for _ in range(options.ranks)]
    comm = graph.communicator(
        [r.client for r in ranks], list(range(options.ranks)), [f"rank {r.client}" for r in ranks]
    )
    gather, scatter = Op(1, 4 << 20, 9, -1, -1), Op(2, 4 << 20, 9, 0, -1)
    messages = 0
    print("steps  resident MB  live nodes  flow objects  us/message", flush=True)
    mark, marked = time.process_time(), 0
    for step in range(1, options.steps + 1):
        for i in range(options.collectives):
            op = gather if i % 3 else scatter
            for rank in ranks:
                # the collective waits for the compute stream; compute waits for the collective
                # before it
                head = [*rank.comm, *rank.compute, rank.anchor, 5_000 * i + rank.client % 7, 0]
                node = rank.fresh()
                graph.launch(comm, rank.client, node, graph.expression(rank.client, head), [op])
                rank.compute = [
                    *rank.comm[:2],
                    [300_000, options.contention] if options.contention else 300_000,
                ]
                rank.comm = [node, 0, 0]
                messages += 1
            graph.run()
        ends = []
        for rank in ranks:
            node = rank.fresh()
            head = graph.expression(
                rank.client, [rank.anchor, 200_000 + rank.client, 0, *rank.comm, *rank.compute]
            )
            ends.append(graph.define(rank.client, node, head))
            graph.forget(rank.client, node)
            rank.anchor, rank.comm, rank.compute = node, [node, 0, 0], [node, 0, 0]
            messages += 1
        graph.run()
        graph.commit(min(end.time_ns for end in ends))
        if step % max(1, options.steps // 10) == 0:
            gc.collect()
            now = time.process_time()
            print(
                f"{step:5}  {resident_mb():11.1f}  {graph.size():10}  {flows.statistics.retained:12}  "
                f"{(now - mark) / (messages - marked) * 1e6:10.2f}",
                flush=True,
            )
            mark, marked = time.process_time(), messages


if __name__ == "__main__":
    main()
