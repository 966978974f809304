"""Records every allocation of a workload run, and finds the first one in which two runs differ.

    torchrun --nproc-per-node 1 -m bench.accuracy.memory_history record OUT.jsonl.xz --size 160m
        --mode none --steps 3
    python -m bench.accuracy.memory_history diff REAL.jsonl.xz SIMULATED.jsonl.xz

Why it exists: peak memory must equal a real GPU's to the byte. When it does not, the peak alone
does not tell which allocation differs. A line of the record is [action, address, bytes, stream]
of rank 0's caching allocator, in order; addresses are relative to the lowest segment, since only
their order can matter (the allocator breaks ties by it).
"""

from __future__ import annotations

import json
import lzma
import os
import sys

from phantora_ns.compressed import read_text

ENTRIES = 1_000_000
CONTEXT = 12  # events shown before the first difference


def record(path: str, flags: list[str]) -> None:
    """Runs workload.py with `flags` and writes rank 0's allocator events to `path`."""
    import torch

    from bench.accuracy import workload

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=ENTRIES)
    sys.argv = ["workload.py", *flags]
    workload.main()
    if os.environ["RANK"] != "0":
        return
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    if len(events) == ENTRIES:
        raise SystemExit("memory_history.py: the record is full; run fewer steps")
    base = min((e["addr"] for e in events if e["action"] == "segment_alloc"), default=0)
    with lzma.open(path, "wt") as stream:
        for e in events:
            stream.write(json.dumps([e["action"], e["addr"] - base, e["size"], e["stream"]]) + "\n")


def read(path: str) -> list[tuple]:
    """The events of a record, streams numbered in order of appearance (their handles differ from
    run to run)."""
    streams: dict[int, int] = {}
    lines = read_text(path).splitlines()
    return [
        (action, address, size, streams.setdefault(stream, len(streams)))
        for action, address, size, stream in map(json.loads, lines)
    ]


def diff(first_path: str, second_path: str) -> int:
    """Prints the first event whose action, size or stream differs, then the first whose address
    does. 0: no difference."""
    first, second = read(first_path), read(second_path)
    print(f"{len(first)} and {len(second)} events")
    status = 0
    for what, key in (
        ("action, size or stream", lambda e: (e[0], e[2], e[3])),
        ("address", lambda e: e),
    ):
        at = next(
            (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if key(a) != key(b)),
            None if len(first) == len(second) else min(len(first), len(second)),
        )
        if at is None:
            print(f"no difference in {what}")
            continue
        status = 1
        print(f"first difference in {what}: event {at}")
        for index in range(max(0, at - CONTEXT), at + 4):
            print(f"  {index:7d}  {str(first[index : index + 1]):60s} {second[index : index + 1]}")
    return status


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2], sys.argv[3:])
    elif sys.argv[1] == "diff":
        sys.exit(diff(*sys.argv[2:]))
    else:
        sys.exit(__doc__)
