"""One step of one rank, taken apart: kernels by class, what covered them, what the pauses were.

Why it exists: real traces (traces.py) and the simulator's (`--trace`) must be taken apart by the
same rules, or their difference is one of definitions. Times are integer ns. The main stream is the
one with the most kernel time; a step's length is its kernels plus its pauses.

A pause, from the end of one main-stream kernel to the begin of the next, is split in this order:
`launch` until the next kernel was launched; then `exposed` while a collective runs (`late`: while it
waits for its last rank), `side` while another stream works, `small` the rest.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

CLASSES = (  # the first that fits; `sharded`: work that depends on the number of GPUs
    ("nccl", re.compile(r"^nccl")),
    ("gemm", re.compile(r"nvjet|gemm|cutlass|cublas", re.I)),
    ("attention", re.compile(r"sdpa|flash|fmha|cudnn")),
    (
        "sharded",
        re.compile(r"multi_tensor_apply|split_with_sizes|chunk_cat|lpnorm_cleanup|^Memcpy"),
    ),
    ("other", re.compile(r"^Memset|cub::|krn_|partial_segment|grad_weight|sum_and_scatter")),
    ("memory", re.compile("")),
)
PAUSES = ("exposed", "late", "side", "launch", "small")


def class_of(name: str) -> str:
    return next(label for label, pattern in CLASSES if pattern.search(name))


@dataclass
class Kernel:
    name: str
    stream: int
    begin: int
    length: int
    launch: int | None
    alone: int | None = None  # the simulator's: without communication beside it
    covered: float = 0.0  # the part of it during which a collective ran

    @property
    def end(self) -> int:
        return self.begin + self.length


def of_line(trace: dict) -> list[Kernel]:
    """Of a line of traces.py."""
    names = trace["names"]
    return [Kernel(names[n], s, b, d, launch) for n, s, b, d, launch in trace["rows"]]


def of_simulated(path: Path) -> list[Kernel]:
    """Of the simulator's trace of one step."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]

    def ns(us: float) -> int:
        return round(us * 1000)

    launches = {
        event["args"]["correlation"]: ns(event["ts"])
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]
    }
    found = [
        Kernel(
            event["name"],
            event["args"]["stream"],
            ns(event["ts"]),
            ns(event["dur"]),
            launches.get(event["args"].get("correlation")),
            event["args"].get("alone (ns)"),
        )
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    return sorted(found, key=lambda kernel: kernel.begin)


class Spans:
    """Stretches of time that do not overlap, in order."""

    def __init__(self, kernels: list[Kernel]) -> None:
        self.spans: list[list[int]] = []
        for kernel in sorted(kernels, key=lambda kernel: kernel.begin):
            if self.spans and kernel.begin <= self.spans[-1][1]:
                self.spans[-1][1] = max(self.spans[-1][1], kernel.end)
            else:
                self.spans.append([kernel.begin, kernel.end])
        self.ends = [end for _, end in self.spans]

    def inside(self, begin: int, end: int) -> int:
        """How much of begin..end they cover."""
        total, index = 0, bisect_left(self.ends, begin)
        while index < len(self.spans) and self.spans[index][0] < end:
            total += max(0, min(end, self.spans[index][1]) - max(begin, self.spans[index][0]))
            index += 1
        return total


class Step:
    """`main`: the main stream's kernels in order; `nccl`: all collectives' kernels in order."""

    def __init__(self, kernels: list[Kernel]) -> None:
        busy: dict[int, int] = defaultdict(int)
        for kernel in kernels:
            if not kernel.name.startswith("nccl"):
                busy[kernel.stream] += kernel.length
        stream = max(busy, key=lambda stream: busy[stream])
        self.main = [kernel for kernel in kernels if kernel.stream == stream]
        self.nccl = [kernel for kernel in kernels if kernel.name.startswith("nccl")]
        self.side = [
            kernel
            for kernel in kernels
            if kernel.stream != stream and not kernel.name.startswith("nccl")
        ]
        self.collectives = Spans(self.nccl)
        for kernel in self.main:
            inside = self.collectives.inside(kernel.begin, kernel.end)
            kernel.covered = inside / kernel.length if kernel.length else 0.0
        self.begin = min(kernel.begin for kernel in self.main)
        self.end = max(kernel.end for kernel in self.main)

    @property
    def length(self) -> int:
        return self.end - self.begin

    def pauses(self, waited: Spans | None = None) -> dict[str, int]:
        """`waited`: when the collectives waited for their last rank; then that part of `exposed`
        is `late`."""
        side, waited = Spans(self.side), waited or Spans([])
        found = dict.fromkeys(PAUSES, 0)
        last = self.main[0].end
        for kernel in self.main[1:]:
            begin, end = last, kernel.begin
            last = max(last, kernel.end)
            if end <= begin:
                continue
            ready = min(end, max(begin, begin if kernel.launch is None else kernel.launch))
            exposed = self.collectives.inside(ready, end)
            late = min(exposed, waited.inside(ready, end))
            beside = max(0, min(side.inside(ready, end), end - ready - exposed))
            found["late"] += late
            found["exposed"] += exposed - late
            found["side"] += beside
            found["launch"] += ready - begin
            found["small"] += end - ready - exposed - beside
        return found


def groups_of(part: str, world: int = 4) -> dict[str, list[list[int]]]:
    """Which ranks share a collective: by the word in its kernel's name, "" for all others."""
    shape, gpus = part.split("@")[0], int(part.split("@")[1][0])
    copies = [list(range(i, i + gpus)) for i in range(0, world, gpus)]
    if "fsdp_tp2" in shape and gpus == 4:  # not told apart by their names
        return {}
    return {"": copies}


def waited(steps: list[Step], part: str) -> list[Spans]:
    """Of each rank, when its collectives waited for the last rank of their group."""
    found: list[list[Kernel]] = [[] for _ in steps]
    for copies in groups_of(part, len(steps)).values():
        for ranks in copies:
            order = {r: by_name(steps[r].nccl) for r in ranks}
            for name in order[ranks[0]]:
                rows = [order[r].get(name, []) for r in ranks]
                for kernels in zip(*rows, strict=False):
                    last = max(kernel.begin for kernel in kernels)
                    for rank, kernel in zip(ranks, kernels, strict=True):
                        wait = min(last, kernel.end) - kernel.begin
                        found[rank].append(Kernel(name, 0, kernel.begin, wait, None))
    return [Spans(kernels) for kernels in found]


def by_name(kernels: list[Kernel]) -> dict[str, list[Kernel]]:
    found: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        found[kernel.name].append(kernel)
    return found
