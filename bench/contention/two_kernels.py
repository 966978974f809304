"""Two compute kernels at once on one GPU: how much each takes longer.

    python -m bench.contention.two_kernels OUT.jsonl
    python -m bench.contention.two_kernels --show bench/accuracy/data/two_kernels.jsonl.xz

Why it exists: FSDP2 lays out and casts gradients on a stream of high priority while products of the backward pass
run on another. In a real step on two GPUs such a product was 44 % longer. Here products run one after another on one
stream; once they do, another kernel begins on a second stream, of normal or high priority. Each line of OUT is a
pair: both alone, and every kernel's begin and duration together, in us, as PyTorch's profiler saw them.
--show prints how much later the last kernel ends than the products would alone, over what the other takes alone: 0 if
both run at once at no cost, 1 if one waits for the other.
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

HALF, FLOAT = torch.bfloat16, torch.float32
PRODUCTS = ((4096, 4096, 4096), (4096, 14336, 4096), (8192, 8192, 2048), (2048, 1024, 8192))
"""Tokens, columns and the length of sums."""
NUMBERS = (4 << 20, 32 << 20, 128 << 20)
BEFORE, AFTER = 3, 5
"""Products before the other kernel is issued, and after it."""
REPEATS = 5
ALONE = 4
"""How often the other kernel runs by itself."""
REST_CYCLES = 20_000_000
"""Of the GPU, between two repeats: its clock stays high."""

Run = Callable[[], object]


def products() -> Iterator[tuple[str, Run]]:
    for rows, columns, inner in PRODUCTS:
        a = torch.randn(rows, inner, device="cuda", dtype=HALF)
        b = torch.randn(columns, inner, device="cuda", dtype=HALF)
        yield f"product {rows} {columns} {inner}", lambda a=a, b=b: a @ b.t()


def others() -> Iterator[tuple[str, Run]]:
    for numbers in NUMBERS:
        half = torch.randn(numbers, device="cuda").to(HALF)
        whole = torch.empty(numbers, device="cuda")
        parts = half.split(numbers // 8)
        copies = whole.split(numbers // 8)
        same = torch.empty_like(half).split(numbers // 8)
        yield f"cast {numbers}", lambda h=half: h.to(FLOAT)
        yield f"divide {numbers}", lambda w=whole: w.div_(2.0)
        yield f"foreach cast {numbers}", lambda c=copies, p=parts: torch._foreach_copy_(c, p)
        yield f"foreach copy {numbers}", lambda c=same, p=parts: torch._foreach_copy_(c, p)
    a = torch.randn(2048, 2048, device="cuda", dtype=HALF)
    yield "product 2048 2048 2048", lambda: a @ a


def kernels(run: Run) -> list[tuple[int, float, float]]:
    """(stream, begin, duration) of each kernel that `run` issues, sorted by begin; us since the first began."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    events = [
        event
        for event in recorded.profiler.kineto_results.events()
        if "cuda" in str(event.device_type()).lower() and "spin" not in event.name().lower()
    ]
    begin = min(event.start_ns() for event in events)
    found = [
        (event.device_resource_id(), (event.start_ns() - begin) / 1000, event.duration_ns() / 1000)
        for event in events
        if "Memset" not in event.name()
    ]
    return sorted(found, key=lambda one: one[1])


def measured(product: Run, other: Run | None, priority: int) -> list[list[list[float]]]:
    """Of each repeat: [0 for the products and 1 for the other, begin, duration] of every kernel."""
    second = torch.cuda.Stream(priority=priority)

    def run() -> None:
        for _ in range(REPEATS):
            torch.cuda._sleep(REST_CYCLES)
            for _ in range(BEFORE):
                product()
            reached = torch.cuda.current_stream().record_event()
            for _ in range(AFTER):
                product()
            if other is not None:
                second.wait_event(reached)
                with torch.cuda.stream(second):
                    other()
                torch.cuda.current_stream().wait_stream(second)
            torch.cuda.synchronize()

    run()  # libraries load, and memory is there
    found = kernels(run)
    streams = [stream for stream, _, _ in found]
    own = max(set(streams), key=streams.count)
    rows = [[float(stream != own), begin, took] for stream, begin, took in found]
    of_each = len(rows) // REPEATS
    return [rows[at : at + of_each] for at in range(0, of_each * REPEATS, of_each)]


def measure(path: Path) -> None:
    with open(path, "w") as out:
        for name, product in products():
            alone = measured(product, None, 0)
            for second, other in others():
                by_itself = kernels(lambda run=other: [run() for _ in range(ALONE)])
                for priority in (0, -1):
                    line = {
                        "gpu": torch.cuda.get_device_name(),
                        "product": name,
                        "other": second,
                        "priority": priority,
                        "product_alone_us": [took for repeat in alone for _, _, took in repeat],
                        "other_alone_us": [took for _, _, took in by_itself],
                        "together": measured(product, other, priority),
                    }
                    out.write(json.dumps(line) + "\n")
            print(name, flush=True)


def cost(line: dict) -> tuple[float, float]:
    """(what the other's work takes alone, us; how much later all of it ends than the products would alone, as a share
    of that). The pauses between products are those of the first, which run alone."""
    product = statistics.median(line["product_alone_us"])
    other = sum(line["other_alone_us"]) / ALONE
    later = []
    for repeat in line["together"]:
        first = [(begin, took) for of, begin, took in repeat if of == 0][:BEFORE]
        pause = statistics.median(b[0] - a[0] - a[1] for a, b in zip(first, first[1:]))
        end = max(begin + took for _, begin, took in repeat)
        count = BEFORE + AFTER
        later.append(end - first[0][0] - count * product - (count - 1) * pause)
    return other, statistics.median(later) / other


def show(path: Path) -> None:
    found = defaultdict(list)
    for line in map(json.loads, lzma.open(path, "rt")):
        what = (
            "product" if line["other"].startswith("product") else line["other"].rpartition(" ")[0]
        )
        found[line["gpu"], what].append(cost(line))
    print("other            pairs   later by (median, least, most)   from 50 us on")
    for (gpu, what), rows in sorted(found.items()):
        later = [share for _, share in rows]
        long = [share for other, share in rows if other >= 50]
        print(
            f"{what:16s} {len(rows):5d} {statistics.median(later):9.2f} {min(later):7.2f} {max(later):7.2f} "
            f"{statistics.median(long) if long else float('nan'):16.2f}   {gpu}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--show", action="store_true", help="print what FILE says")
    options = parser.parse_args()
    (show if options.show else measure)(options.file)


if __name__ == "__main__":
    main()
