"""A hub in its own process, as the tests start and end it.

Why it exists: not in conftest.py, because child processes that tests spawn import the tests by
name, and `conftest` names many files.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from phantora_ns.config import load_cluster
from phantora_ns.config.description import write_cluster

HERE = Path(__file__).parent


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

    def close(self) -> None:
        """Ends the hub, however it is, and gives its pipes back."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()


def start_hub(
    run_dir: Path,
    main=("-m", "hub_main"),
    cluster="h200-rail",
    nodes=2,
    gpus_per_node=4,
    under=(),
    **options,
) -> RunningHub:
    """A hub for `nodes` servers of `gpus_per_node` GPUs, ready for clients. `under`: a command that
    starts it."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    run_dir.mkdir(mode=0o700, exist_ok=True)
    (run_dir / "ranks").mkdir(exist_ok=True)
    run = {
        "cluster": cluster,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "host_time": "none",
        "sync": "conservative",
        "values": "auto",
        "databases": [],
        **options,
    }
    (run_dir / "run.json").write_text(json.dumps(run))
    write_cluster(load_cluster(cluster, nodes, gpus_per_node), run_dir)
    process = subprocess.Popen(
        [*under, sys.executable, *main, str(run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parent.parent,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    if process.stdout.readline() != "ready\n":
        _, stderr = process.communicate(timeout=20)
        raise AssertionError(f"the hub did not start: {stderr}")
    return RunningHub(run_dir, process)
