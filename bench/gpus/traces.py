"""One step of every rank by kernel, in a few bytes per kernel.

Why it exists: Kineto's file of one step is tens of megabytes; the name, the stream, the begin, the
duration and the launch are what comparisons read. A line is one step of one rank: `names`, and
`rows` of [name, stream, begin ns, duration ns, begin of the launch ns], where begin and launch
count from `base_ns` (since the epoch: the same clock on all ranks). NCCL's names carry the number
of channels.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import time
import traceback
from collections import defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def traced(step, meet) -> dict:
    """Two steps under the profiler, the second one kept; `meet` lets all ranks begin it at once."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
        meet()
        begin = time.time_ns()
        step()
        issued = time.time_ns()
        torch.cuda.synchronize()
        end = time.time_ns()
    line = {"base_ns": begin, "issued_ns": issued - begin, "end_ns": end - begin}
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.json"
            recorded.export_chrome_trace(str(path))
            line.update(reduced(json.loads(path.read_text(errors="replace")), begin))
    except Exception as error:  # the steps of the parts to come are worth more than this one
        traceback.print_exc()
        line["failed"] = repr(error)
    return line


def reduced(content: dict, begin: int) -> dict:
    """Names and rows of what a Kineto file holds from `begin` on."""
    base = int(content.get("baseTimeNanoseconds", 0))
    events = content["traceEvents"]

    def ns(event: dict) -> int:
        return base + round(event["ts"] * 1000) - begin

    launches = {
        event["args"]["correlation"]: ns(event)
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and "correlation" in event.get("args", {})
    }
    names: dict[str, int] = defaultdict(lambda: len(names))
    rows = []
    for event in events:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset") or ns(event) < 0:
            continue
        name, arguments = event["name"], event.get("args", {})
        if name.startswith("nccl"):
            name = f"{name} x{(arguments.get('grid') or ['?'])[0]}"
        rows.append(
            [
                names[name],
                arguments.get("stream"),
                ns(event),
                round(event["dur"] * 1000),
                launches.get(arguments.get("correlation")),
            ]
        )
    rows.sort(key=lambda row: row[2])
    return {"names": list(names), "rows": rows, "events": len(events)}


def append(folder: Path, rank: int, line: dict) -> None:
    """A member of its own in the rank's file, which gzip reads as one file."""
    data = gzip.compress((json.dumps(line, separators=(",", ":")) + "\n").encode(), 6)
    file = os.open(
        folder / f"trace-rank{rank}.jsonl.gz", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    os.write(file, data)
    os.close(file)
