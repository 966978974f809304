"""Runs a training script or module as python would, and says at its end what the log of few
frameworks says.

    torchrun --nproc-per-node N bench/frameworks/job.py [-m MODULE | SCRIPT] ARGUMENTS...

Why it exists: peaks of memory in bytes and the times of optimizer steps must be had of every
framework alike, on a GPU as under the simulator, from jobs whose scripts know of neither. Each rank
prints one line, `BENCH {...}`: the peaks of its allocator (also where the job resets them), the
simulated or real clock at each optimizer step, and how many of those there were.

BENCH_TRACE=FOLDER, BENCH_TRACE_FROM=N: each rank writes the GPU's activity between its N-th optimizer
step and its last (BENCH_TRACE_TO) there, as a Kineto trace, rank-0.json and so on; that step's own time is
then worth nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

RANK = int(os.environ.get("RANK", "0"))


class Watch:
    """What this process' allocator held at most, and when its optimizers stepped."""

    def __init__(self) -> None:
        self.allocated = self.reserved = 0
        self.updates: list[float] = []
        self.profiler = None
        self.reset = torch.cuda.reset_peak_memory_stats
        torch.cuda.reset_peak_memory_stats = torch.cuda.memory.reset_peak_memory_stats = (
            self.before_reset
        )
        register_optimizer_step_post_hook(self.stepped)
        atexit.register(self.say)

    def look(self) -> None:
        if torch.cuda.is_initialized():
            self.allocated = max(self.allocated, torch.cuda.max_memory_allocated())
            self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())

    def before_reset(self, device=None) -> None:
        self.look()
        self.reset(device)

    def stepped(self, optimizer, _args, _kwargs) -> None:
        """Called after each optimizer step. Wrappers (TorchTitan's, accelerate's) are not counted
        again."""
        if getattr(optimizer, "optimizers", None) or hasattr(optimizer, "accelerator_state"):
            return
        self.updates.append(time.perf_counter())
        trace = os.environ.get("BENCH_TRACE")
        if trace and len(self.updates) == int(os.environ["BENCH_TRACE_FROM"]):
            torch.cuda.synchronize()
            self.profiler = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CUDA]
            )
            self.profiler.start()
        if self.profiler is not None and len(self.updates) == int(os.environ["BENCH_TRACE_TO"]):
            torch.cuda.synchronize()
            self.profiler.stop()
            self.profiler.export_chrome_trace(os.path.join(trace, f"rank-{RANK}.json"))
            self.profiler = None

    def say(self) -> None:
        self.look()
        line = {
            "rank": RANK,
            "peak_allocated": self.allocated,
            "peak_reserved": self.reserved,
            "update_count": len(self.updates),
            "updates": [round(at - self.updates[0], 6) for at in self.updates],
            "device": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,
        }
        os.write(1, f"\nBENCH {json.dumps(line)}\n".encode())


def main() -> None:
    words = sys.argv[1:]
    if not words:
        sys.exit(__doc__)
    Watch()
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
