"""Records which operators a step of the accuracy bench runs, with the shapes of their inputs: what
its real traces lack.

    phantora-ns torchrun --nproc-per-node N -m bench.kernels.shapes OUT.json.xz FLAGS...

Why it exists: the traces in bench/accuracy/data were taken without shapes, for recording them slows
the host that is being measured. The same script runs the same operators in the same order under the
emulator, on a machine without a GPU, so their shapes can be recorded there. trace_launches.py (in
phantora_ns/kernels/evaluation) joins them to the real trace by that order. FLAGS are workload.py's;
the profiled step is its third.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from pathlib import Path

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
    from torch.profiler import ProfilerActivity, profile

    from bench.accuracy import workload

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
        text = json.dumps(operators(events), separators=(",", ":"))
        Path(path).write_bytes(lzma.compress(text.encode()))

    workload.profile = recorded
    workload.main()


if __name__ == "__main__":
    main()
