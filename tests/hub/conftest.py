"""Why it exists: every test of the hub talks to a real one, in its own process and run directory; this starts and ends it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


class RunningHub:
    """A hub process over a run directory; `stop` ends it and returns hub.json."""

    def __init__(self, run_dir: Path, process: subprocess.Popen) -> None:
        self.run_dir = run_dir
        self.process = process
        self.stderr = ""

    def stop(self) -> dict:
        self.process.send_signal(signal.SIGTERM)
        _, self.stderr = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, self.stderr
        return json.loads((self.run_dir / "hub.json").read_text())


def start_hub(run_dir: Path, main=("-m", "hub_main"), **options) -> RunningHub:
    """A hub for `nodes` servers of `gpus_per_node` GPUs, ready for clients."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    run_dir.mkdir(mode=0o700, exist_ok=True)
    (run_dir / "ranks").mkdir(exist_ok=True)
    run = {"cluster": "h200-rail", "nodes": 2, "gpus_per_node": 4, "host_time": "none", "sync": "conservative",
           "values": "auto", "databases": [], **options}
    (run_dir / "run.json").write_text(json.dumps(run))
    process = subprocess.Popen([sys.executable, *main, str(run_dir)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd=HERE.parent.parent,
                               env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"})
    if process.stdout.readline() != "ready\n":
        _, stderr = process.communicate(timeout=20)
        raise AssertionError(f"the hub did not start: {stderr}")
    return RunningHub(run_dir, process)


@pytest.fixture(autouse=True)
def no_client_left():
    """Closes the clients that a test opened."""
    import client

    yield
    while client.opened:
        client.opened.pop().close()


@pytest.fixture
def short_dir():
    """A directory with a path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="ph-") as path:
        yield Path(path)


@pytest.fixture
def hub(short_dir):
    """A running hub with two servers of four GPUs."""
    running = start_hub(short_dir / "run")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()
    for stream in (running.process.stdout, running.process.stderr):
        stream.close()


@pytest.fixture
def hub_of(short_dir):
    """Starts hubs with options of run.json: `hub_of(nodes=1, gpus_per_node=8)`."""
    started = []

    def start(**options) -> RunningHub:
        started.append(start_hub(short_dir / f"run{len(started)}", **options))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate()
        for stream in (running.process.stdout, running.process.stderr):
            stream.close()
