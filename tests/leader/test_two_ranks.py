"""Why it exists: a leader's communicators are simulated although its memory is a real GPU's. Values
must travel between it and simulated ranks, in both directions, whichever rank leads, with a real
hub in between."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantora_ns.config import load_cluster, load_gpu
from phantora_ns.config.description import write_cluster
from phantora_ns.launch.machine.environment import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_spec = importlib.util.spec_from_file_location("leading", HERE / "leading.py")
leading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(leading)


@pytest.fixture
def hub(tmp_path):
    """Starts a hub that expects a leader: `hub(rank)` returns its folder and a function that ends
    it and gives hub.json."""
    processes = []

    def start(rank):
        run_dir = leading.run_dir(tmp_path / "above", load_gpu("h200"))
        run = {
            "host_time": "none",
            "sync": "conservative",
            "values": "auto",
            "databases": [],
            "leader": rank,
            "recording": {"gpu": "h200"},
        }
        (run_dir / "run.json").write_text(json.dumps(run))
        write_cluster(load_cluster("h200-rail", 1, 2), run_dir)
        (run_dir / "leader.lock").touch()
        command = [sys.executable, "-m", "phantora_ns.hub", str(run_dir)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        processes.append(process)
        assert process.stdout.readline() == "ready\n"

        def stop():
            process.terminate()
            assert process.wait(timeout=20) == 0
            return json.loads((run_dir / "hub.json").read_text())

        return run_dir, stop

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def in_order(tmp_path_factory):
    """in_order.c: a GPU whose streams wait for host functions."""
    target = tmp_path_factory.mktemp("in_order") / "libphantora-in-order.so"
    return leading.build_library(HERE / "c" / "in_order.c", target)


def run_both(job, leads, tmp_path, above, built_library, below_us=""):
    """Runs jobs/`job` on two ranks, `leads` of them over an emulated GPU (and the library
    `below_us`); both must say "fine"."""
    below = leading.run_dir(tmp_path / "below", load_gpu("h200"))
    names = tmp_path / "names"
    names.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (names / name).symlink_to(built_library)
    values = str(built_library.parent)
    common = {
        **leading.base_environment(),
        "LD_LIBRARY_PATH": str(names),
        "PHANTORA_GPUS_PER_NODE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LEADS": str(leads),
    }
    leader = {
        "LD_PRELOAD": f"{built_library.parent / 'libphantora-leader.so'} {below_us} {built_library}",
        "PHANTORA_CUPTI": str(leading.build_fake(tmp_path)),
        "PHANTORA_RUN_DIR": str(below),
        "PHANTORA_LEAD_RUN_DIR": str(above),
        "PHANTORA_LEAD_VALUES_LIB": values,
        "PHANTORA_GPUS_PER_NODE": "1",  # the machine has one
        "PHANTORA_LEAD_GPUS_PER_NODE": "2",  # the job's node two
        "FAKE_CUPTI_LOG": os.devnull,
    }
    simulated = {
        "LD_PRELOAD": str(built_library),
        "PHANTORA_RUN_DIR": str(above),
        "PHANTORA_VALUES_LIB": values,
    }
    ranks = []
    try:
        with leading.LeadersHub(below, duration_ns=7000):
            for rank in range(2):
                own = {
                    **common,
                    **(leader if rank == leads else simulated),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                }
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, str(HERE / "jobs" / job)],
                        env=own,
                        text=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                    )
                )
            outputs = [rank.communicate(timeout=150)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert all(rank.returncode == 0 and "fine" in output for rank, output in zip(ranks, outputs)), (
        "\n====\n".join(outputs)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leads", "streams_wait"),
    [
        pytest.param(0, False, id="0-host-waits"),
        pytest.param(1, True, id="1-streams-wait"),
        pytest.param(0, True, id="0-streams-wait", marks=pytest.mark.nightly),
        pytest.param(1, False, id="1-host-waits", marks=pytest.mark.nightly),
    ],
)
def test_values_travel_between_a_leader_and_a_simulated_rank(
    tmp_path, hub, built_library, in_order, leads, streams_wait
):
    above, stop = hub(leads)
    run_both(
        "collectives.py", leads, tmp_path, above, built_library, in_order if streams_wait else ""
    )
    result = stop()
    assert result["leading"]["led"] == [leads] and result["leading"]["samples"] > 0
    assert (result["bad_messages"], result["internal_errors"], result["expired_values"]) == (
        0,
        0,
        0,
    )


@pytest.mark.nightly
def test_pytorch_says_why_a_leader_s_captured_collective_fails(tmp_path, hub, built_library):
    above, stop = hub(1)
    run_both("captured.py", 1, tmp_path, above, built_library)
    told = [note for note in stop()["warnings"] if "is refused: rank 1 leads" in note]
    assert len(told) == 1 and "ncclAllReduce of 4194304 bytes over 2 ranks" in told[0]
