"""Why it exists: logs of a cluster that is known, since the simulator gave their times, plus noise."""

from __future__ import annotations

import math
import random
from pathlib import Path

from phantora_ns.calibrate.samples import Sample
from phantora_ns.calibrate.simulate import Simulator
from phantora_ns.model.cluster import Cluster
from tests.calibrate.nccl_tests_log import Log

POWERS = range(10, 33, 2)


def place(nodes: int, gpus: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    return (tuple((node, gpu) for node in range(nodes) for gpu in range(gpus)),)


def microseconds(
    cluster: Cluster, operation: str, nodes: int, gpus: int, sizes
) -> dict[int, float]:
    """What the simulator takes, by size."""
    simulator, where = Simulator(cluster), place(nodes, gpus)
    return {
        size: simulator.run(Sample(operation, where, size, 0, 1.0, 1.0, 1.0)).ns / 1000
        for size in sizes
    }


def write_log(
    folder: Path, cluster: Cluster, operation: str, nodes: int, gpus: int, noise: float, seed: int
) -> Path:
    """A log of one test with relative `noise`, as nccl-tests would print it."""
    chance = random.Random(f"{seed} {operation} {nodes} {gpus}")
    times = {
        size: tuple(us * math.exp(chance.gauss(0, noise)) for _ in range(2))
        for size, us in microseconds(
            cluster, operation, nodes, gpus, [1 << power for power in POWERS]
        ).items()
    }
    path = folder / f"{operation}-{nodes}x{gpus}.log"
    path.write_text(Log(operation, nodes, gpus).text(times))
    return path
