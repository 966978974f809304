"""Copies the kernels whose names begin with a prefix from a recording, without its host times.

    python -m bench.kernels.only RECORDING.sqlite OUT.sqlite triton_

Why it exists: a sweep over operators (bench/frameworks/triton_sweep.py) is a job that nobody runs.
Its Triton kernels belong in the database that ships. Its host times, and the kernels that fill its
inputs, do not: they would change what is known of real steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

from phantora_ns.kernels import signature
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.records import Host
from phantora_ns.kernels.database.writer import save
from phantora_ns.protocol import SignatureKind


def wanted(data: bytes, prefix: str) -> bool:
    kind, fields = signature.decode(data)
    return kind == SignatureKind.KERNEL and fields[0].startswith(prefix)


def main() -> None:
    recording, out, prefix = sys.argv[1:]
    with Database.open(Path(recording)) as database:
        gpu, runs = database.gpu, list(database.runs())
    for run in runs:
        run.host = Host()
        run.samples = {data: sample for data, sample in run.samples.items() if wanted(data, prefix)}
    save(Path(out), gpu, runs)


if __name__ == "__main__":
    main()
