"""Why it exists: sweeps of single calls keep the GPU cool by resting for as long as each call took."""

import time
from collections.abc import Callable

import torch

REPEATS = 4


def rested(run: Callable[[], object]) -> None:
    """Runs a call four times, each followed by a pause as long as the call and its kernels took."""
    for _ in range(REPEATS):
        begin = time.monotonic()
        run()
        torch.cuda.synchronize()
        until = 2 * time.monotonic() - begin
        while time.monotonic() < until:
            pass
