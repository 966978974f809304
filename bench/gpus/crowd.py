"""How far kernels that follow each other are apart while other streams have work that waits.

    python3 -m bench.gpus.crowd

Why it exists: steps of FSDP on several GPUs have 1.0 us more between kernels than the same steps on one GPU, also
where no collective runs. This says what does it. All calls are made while a spinning kernel holds the stream, so the
host is ahead; the work of the other streams waits for an event that follows the last kernel. Printed: us from the
begin of one kernel to that of the next, by what waits on how many streams. Rule: one GPU, no NCCL.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

KERNELS, SETTLE, REPEATS = 700, 20, 9
SPIN_CYCLES = 40_000_000  # 20 ms: until all has been issued
Work = Callable[[], object]


def period_us(kernel: Work, waiting: list[torch.cuda.Stream], work: Work | None) -> float:
    """`work` (None: a wait alone) waits on each of the streams."""
    found = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        torch.cuda._sleep(SPIN_CYCLES)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(SETTLE):
            kernel()
        begin.record()
        for _ in range(KERNELS):
            kernel()
        end.record()
        for stream in waiting:
            stream.wait_event(end)
            with torch.cuda.stream(stream):
                if work:
                    work()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / KERNELS)
    return median(found)


def main() -> None:
    tensor = torch.ones(1 << 18, device="cuda")
    small, pinned = torch.ones(1024, device="cuda"), torch.ones(1024).pin_memory()
    works: dict[str, Work | None] = {
        "a kernel": lambda: small.add_(0),
        "a copy from the host": lambda: small.copy_(pinned, non_blocking=True),
        "nothing but the wait": None,
    }

    def kernel() -> object:
        return tensor.mul_(1.0)

    for _ in range(3):
        period_us(kernel, [], None)
    print(f"alone: {period_us(kernel, [], None):.2f} us")
    for priority in (0, -1):
        for name, work in works.items():
            for count in (1, 2, 3, 4, 8):
                streams = [torch.cuda.Stream(priority=priority) for _ in range(count)]
                told = f"{period_us(kernel, streams, work):.2f} us"
                print(f"{name} waits on {count} streams of priority {priority}: {told}")


if __name__ == "__main__":
    main()
