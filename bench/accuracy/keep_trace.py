"""Reduces a Kineto trace to what comparisons read, and compresses it.

    python -m bench.accuracy.keep_trace TRACE.json.gz ... FOLDER

Why it exists: traces are most of this repository. Arrows between events, and numbers that follow
from others, are more than half of one and nobody reads them. What is left opens in Perfetto as
before. `phantora_ns/compressed.py` reads the result.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

from phantora_ns.compressed import read_text

KEPT = ("X", "M")  # complete events and names of processes; not arrows (s, f) and instants (i)
DROPPED = {
    "Ev Idx",
    "Fwd thread id",
    "Record function id",
    "Sequence number",
    "cbid",
    "context",
    "est. achieved occupancy %",
    "memory bandwidth (GB/s)",
    "queued",
}


def reduced(trace: dict) -> dict:
    """The trace without what nobody reads."""
    events = [event for event in trace["traceEvents"] if event.get("ph") in KEPT]
    for event in events:
        if "args" in event:
            event["args"] = {k: v for k, v in event["args"].items() if k not in DROPPED}
    return {**trace, "traceEvents": events}


def keep(source: Path, target: Path) -> None:
    """Writes `target` (.json.xz)."""
    trace = reduced(json.loads(read_text(source)))
    text = json.dumps(trace, separators=(",", ":"))
    target.write_bytes(lzma.compress(text.encode(), preset=7))


def main() -> None:
    *sources, folder = map(Path, sys.argv[1:])
    for source in sources:
        target = folder / f"{source.name.split('.json')[0]}.json.xz"
        keep(source, target)
        print(f"{target}: {source.stat().st_size:,} -> {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
