"""RUN_DIR/cluster.json: the validated cluster of a run, for its other processes.

Why it exists: the launcher reads and validates the cluster file once. The hub and the trace writers
get the validated description. So it does not matter if the file changes in the meantime, or if they
see its folder differently.
"""

from __future__ import annotations

import json
from pathlib import Path

from phantora_ns.model.cluster import Cluster
from phantora_ns.model.plain import from_plain, to_plain

FILE = "cluster.json"


def write_cluster(cluster: Cluster, run_dir: Path) -> None:
    """Writes the description into `run_dir`. Raises OSError."""
    (run_dir / FILE).write_text(json.dumps(to_plain(cluster), indent=1) + "\n", encoding="utf-8")


def read_cluster(run_dir: Path) -> Cluster:
    """The description that `write_cluster` put into `run_dir`. Raises OSError, ValueError."""
    return from_plain(Cluster, json.loads((run_dir / FILE).read_text(encoding="utf-8")), FILE)
