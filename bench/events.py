"""Why it exists: several benches time GPU work in the same way, with CUDA events and one
synchronisation after the last call."""

from collections.abc import Callable

import torch


def us_per_call(issue: Callable[[], object], count: int) -> float:
    """Microseconds per call of `issue`, which is called `count` times without a pause."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(count):
        issue()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) / count * 1e3
