"""Records which operators a step of the accuracy bench runs, with the shapes of their inputs: what
its real traces lack.

    phantora-ns torchrun --nproc-per-node N bench/kernels/shapes.py OUT.json.gz FLAGS...

Why it exists: the traces in bench/accuracy/data were taken without shapes, for recording them slows
the host that is being measured. The same script runs the same operators in the same order under the
emulator, on a machine without a GPU, so their shapes can be recorded there and joined to the real
trace by that order (bench/kernels/joined.py). FLAGS are workload.py's; the profiled step is its
third.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "accuracy"))

FIELDS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


def operators(events: list[dict]) -> list[list]:
    """[name, dims, types, strides, concrete inputs] of every framework operator, in order of
    start."""
    found = sorted(
        (e for e in events if e.get("cat") == "cpu_op"), key=lambda e: (e["ts"], -e["dur"])
    )
    return [[e["name"], *(e["args"].get(field, []) for field in FIELDS)] for e in found]


def main() -> None:
    import torch
    import workload
    from torch.profiler import ProfilerActivity, profile

    out = Path(sys.argv.pop(1))
    sys.argv += ["--steps", "1", "--warmup", "0", "--trace", str(out)]

    def recorded(step, path, rank):
        step()
        if rank != 0:
            step()
            torch.cuda.synchronize()
            return
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as active:
            step()
            torch.cuda.synchronize()
        with tempfile.NamedTemporaryFile(suffix=".json") as scratch:
            active.export_chrome_trace(scratch.name)
            events = json.loads(Path(scratch.name).read_text())["traceEvents"]
        with gzip.GzipFile(
            path, "wb", mtime=0
        ) as file:  # no time stamp: the same run gives the same bytes
            file.write(json.dumps(operators(events), separators=(",", ":")).encode())

    workload.profile = recorded
    workload.main()


if __name__ == "__main__":
    main()
