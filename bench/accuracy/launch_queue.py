"""How full a stream's launch queue was when a launch that had to wait returned.

    python -m bench.accuracy.launch_queue

Why it exists: this is the source of `launch_queue` in the GPUs' data files, and of the rule which
operations take a slot (libintercept/time/launch_queue.c). In each real trace it finds the launches
that took 60 us or more (others take 3 to 10), and counts the earlier operations of their stream
that had not ended when they returned. The right rule gives one number in all traces. That number
plus the launch itself is the limit. The host notices 4 to 12 us late, so the number is one lower
where the next operation is a fill (1 us). Calibration traces give everything except that copies
from the host take no slot: only the evaluation traces show this.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict

from bench.accuracy.configs import HERE, load
from phantora_ns.compressed import read_text

WAITED_US = 60.0
RULES = {
    "kernels, fills, copies on the device": lambda work: (
        "HtoD" not in work["name"] and "DtoH" not in work["name"]
    ),
    "all copies as well": lambda work: True,
    "kernels and fills": lambda work: work["cat"] != "gpu_memcpy",
    "kernels": lambda work: work["cat"] == "kernel",
}


def unfinished(events: list[dict], counts) -> Counter:
    """Over the launches that waited: how many earlier works of their stream that `counts` accepts
    had not ended at the return."""
    works = {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    }
    launches = [
        e
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and e["args"].get("correlation") in works
    ]
    ends, found = defaultdict(list), Counter()
    for call in sorted(launches, key=lambda e: e["ts"]):
        work = works[call["args"]["correlation"]]
        before = ends[work["args"]["stream"]]
        if call["dur"] >= WAITED_US and len(before) > 500:  # earlier waits have another cause
            found[len(before) - bisect_right(before, call["ts"] + call["dur"])] += 1
        if counts(work):
            before.append(work["ts"] + work["dur"])
    return found


def main() -> None:
    for configuration in load():
        path = HERE / "data" / "traces" / f"{configuration.name}.json.xz"
        if not path.exists():
            continue
        events = [e for e in json.loads(read_text(path))["traceEvents"] if e.get("ph") == "X"]
        print(f"{configuration.name} ({configuration.set})")
        for name, counts in RULES.items():
            found = unfinished(events, counts)
            print(
                f"    {name:38}",
                ", ".join(f"{count} x{times}" for count, times in found.most_common(6))
                or "no launch waited",
            )


if __name__ == "__main__":
    main()
