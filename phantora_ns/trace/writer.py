"""Writes one rank's Kineto trace from its log and the final times of its vertices.

Why it exists: tools for real runs should also show simulated ones. So a trace has PyTorch's own
format, as Kineto writes it, with everything that Holistic Trace Analysis and Perfetto need
(docs/traces.md).
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from phantora_ns.trace.collect import Collector, Written
from phantora_ns.trace.log import Log
from phantora_ns.trace.times import Times
from phantora_ns.whole_file import replacing

COMPRESSION = 4  # takes a third of the time of level 9 and makes files a tenth larger
_BATCH = 2000  # events written at once
_SORT_GPU = 5_000_000  # Kineto shows GPUs below all processes


@dataclass(frozen=True)
class Gpu:
    """What a trace says about the GPUs. `properties`: Kineto's deviceProperties, without the id.
    `nccl`: the job's version of NCCL."""

    properties: dict[str, Any]
    count: int
    nccl: str = "unknown"


def write_trace(
    log: Log, times: Times, path: Path, gpu: Gpu, steps: tuple[int, int | None] | None
) -> Written:
    """Writes the trace of `log` to `path` (.json.gz), completely or not at all; `steps` as in
    TraceOptions.

    Raises OSError; ValueError when the log is damaged, or the steps were not reached.
    """
    collector = Collector(log, times, gpu.properties["numSms"], steps, path)
    try:
        collector.collect()
        with replacing(path) as scratch:
            _write(scratch, path.name, _texts(collector, gpu))
    finally:
        collector.sorter.close()
    return collector.written


def _write(scratch: Path, name: str, texts: Iterator[str]) -> None:
    """Writes the file; `name` is what it says of itself."""
    with (
        open(scratch, "wb") as raw,
        gzip.GzipFile(name, "wb", COMPRESSION, raw) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as file,
    ):
        batch: list[str] = []
        for text in texts:
            batch.append(text)
            if len(batch) >= _BATCH:
                file.write("".join(batch))
                batch.clear()
        file.write("".join(batch))


def _texts(collector: Collector, gpu: Gpu) -> Iterator[str]:
    """The whole file, in pieces."""
    start = collector.log.start
    groups = {}
    for group in collector.groups.values():
        ranks = group["ranks"]
        groups[group["pg_name"]] = group | {"ranks": ranks if "..." in ranks else json.loads(ranks)}
    top = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, **gpu.properties} for device in range(gpu.count)],
        # HTA's regular expression for the rank requires the space after the colon.
        "distributedInfo": {"backend": "nccl", "rank": max(start.rank, 0), "world_size": max(start.world_size, 1),
                            "pg_count": len(groups), "pg_config": list(groups.values()), "nccl_version": gpu.nccl},
        "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceName": collector.written.path.name,
        "phantora-ns": collector.written.summary(),
    }  # fmt: skip
    yield json.dumps(top)[:-1] + ', "traceEvents": [\n'
    between = ""
    for text in chain(_metadata(collector), collector.sorter.texts()):
        yield between + text
        between = ",\n"
    yield "\n]}\n"


def _metadata(collector: Collector) -> Iterator[str]:
    def event(what: str, pid: int, tid: int, **arguments) -> str:
        return json.dumps(
            {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": arguments}
        )

    start = collector.log.start
    yield event(
        "process_name", collector.pid, 0, name=f"rank {start.rank} on node-{max(start.node, 0)}"
    )
    yield event("process_labels", collector.pid, 0, labels="CPU")
    yield event("process_sort_index", collector.pid, 0, sort_index=collector.pid)
    for device in sorted({device for device, _ in collector.streams}):
        yield event(
            "process_name", device, 0, name=f"rank {start.rank} on node-{max(start.node, 0)}"
        )
        yield event("process_labels", device, 0, labels=f"GPU {device}")
        yield event("process_sort_index", device, 0, sort_index=_SORT_GPU + device)
    for device, stream in sorted(collector.streams):
        yield event("thread_name", device, stream, name=f"stream {stream}")
        yield event("thread_sort_index", device, stream, sort_index=stream)
    for tid, name in sorted(collector.threads.values()):
        yield event("thread_name", collector.pid, tid, name=f"thread {tid} ({name})")
        yield event("thread_sort_index", collector.pid, tid, sort_index=tid)
