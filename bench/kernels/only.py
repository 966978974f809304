"""Copies chosen kernels of a recording, without its host times.

    python -m bench.kernels.only RECORDING.sqlite OUT.sqlite --kernels '^triton_'
    python -m bench.kernels.only RECORDING.sqlite OUT.sqlite --products --graphs --below-us 1600

Why it exists: a sweep over operators (bench/frameworks/triton_sweep.py, bench/kernels/products.py)
is a job that nobody runs. Its kernels belong in the database that ships. Its host times, and the
kernels that fill its inputs, do not: they would change what is known of real steps. A part of a
recording is a run of its own, with a name of its own, so that it can have a clock of its own
([power.recorded_in] of the GPU's file).
"""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path

from phantora_ns.kernels import signature
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.records import Host
from phantora_ns.kernels.database.writer import save
from phantora_ns.protocol import SignatureKind


def wanted(data: bytes, options: argparse.Namespace) -> bool:
    place, parts = map(int, options.part.split("/"))
    if int.from_bytes(hashlib.sha256(data).digest()[:8]) % parts != place - 1:
        return False
    kind, fields = signature.decode(data)
    if kind == SignatureKind.KERNEL:
        return options.kernels is not None and re.search(options.kernels, fields[0]) is not None
    return (
        (options.products and kind == SignatureKind.GEMM)
        or (options.graphs and kind == SignatureKind.CUDNN)
        or (options.calls and kind == SignatureKind.CALL)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernels", metavar="REGEX", help="kernels whose mangled names have it")
    parser.add_argument("--products", action="store_true", help="matrix products of cuBLAS")
    parser.add_argument("--graphs", action="store_true", help="operation graphs of cuDNN")
    parser.add_argument("--calls", action="store_true", help="other calls of libraries")
    parser.add_argument("--from-us", type=float, default=0.0, help="no shorter medians")
    parser.add_argument("--below-us", type=float, default=1e12, help="only shorter medians")
    parser.add_argument(
        "--part",
        metavar="K/N",
        default="1/1",
        help="the K-th of N parts, by hash: others may judge",
    )
    parser.add_argument("--name", help="of the configuration, in place of the recording's")
    options = parser.parse_args()
    with Database.open(options.recording) as database:
        gpu, runs = database.gpu, list(database.runs())
    for run in runs:
        run.host = Host()
        run.samples = {
            data: sample
            for data, sample in run.samples.items()
            if wanted(data, options)
            and options.from_us <= sample.statistics.median / 1e3 < options.below_us
        }
        if options.name:
            run.fields["configuration"] = options.name
            run.uid = hashlib.sha256(f"{run.uid} {options.name}".encode()).hexdigest()[:16]
    save(options.out, gpu, [run for run in runs if run.samples])  # others measured none of them


if __name__ == "__main__":
    main()
