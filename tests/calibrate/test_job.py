"""Why it exists: `calibrate nccl` fits a model of collectives, and a job must get the times of that model.
A job on a cluster file with its own NCCL times measures its collectives by CUDA events, and the model
must give the same times."""

import json
from pathlib import Path

import pytest

from phantora_ns.calibrate.samples import Sample
from phantora_ns.calibrate.simulate import Simulator
from phantora_ns.config import load_cluster
from phantora_ns.config.nccl import nccl_constants, nearest_version
from phantora_ns.model.nccl import NcclVersion
from tests.calibrate.made_logs import place

CLUSTER = """
gpu = "h100"
[network]
kind = "rail"
nic_bandwidth = "400 Gbit/s"
efficiency = "60%"
[nccl.ll]
start = "4 us"
step = "0.7 us"
network_step = "6 us"
network_tree_step = "7 us"
[nccl.simple]
bandwidth = "300 GB/s"
network_step = "9 us"
[nccl.pairs]
start = "9 us"
network_step = "20 us"
"""


@pytest.mark.slow
def test_a_job_takes_what_the_fit_predicts(phantora, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CLUSTER)
    done = phantora(
        "--quiet", "--host-time", "none", "--cluster", path,
        "torchrun", "--nnodes", 2, "--nproc-per-node", 2,
        Path(__file__).parent / "jobs" / "timed.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("TIMES ")]
    release, times = json.loads(line.removeprefix("TIMES "))
    cluster = load_cluster(path, 2, 2)
    constants = nccl_constants(nearest_version(NcclVersion.parse(release)), 9)
    simulator = Simulator(cluster, constants)
    assert len(times) == 12
    for operation, size, us in times:
        sample = Sample(operation, place(2, 2), size, 0, 1.0, 1.0, 1.0)
        # Events are read as floats of milliseconds, with seven digits.
        assert us == pytest.approx(simulator.run(sample).ns / 1000, rel=1e-6), (operation, size)
