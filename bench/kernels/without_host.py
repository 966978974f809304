"""Copies a recording without what its host paid.

    python bench/kernels/without_host.py RECORDING.sqlite OUT.sqlite

Why it exists: a sweep over operators (bench/frameworks/triton_sweep.py) measures kernels of jobs that nobody runs. Its kernel
times belong in the database that ships; its gaps between kernels would shift those of real steps, as runs count by their samples.
"""
from __future__ import annotations

import sys
from pathlib import Path

from phantora_ns.kernels.content import Host
from phantora_ns.kernels.database import Database
from phantora_ns.kernels.writing import save


def main() -> None:
    recording, out = map(Path, sys.argv[1:])
    with Database.open(recording) as database:
        gpu, runs = database.gpu, list(database.runs())
    for run in runs:
        run.host = Host()
    save(out, gpu, runs)


if __name__ == "__main__":
    main()
