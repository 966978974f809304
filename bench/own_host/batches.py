"""Times how long TorchTitan's main thread needs for a batch, within its steps and outside of them.

    torchrun --nproc-per-node 1 bench/own_host/batches.py -m torchtitan.train ARGUMENTS...

Why it exists: a TorchTitan step begins with tokenizing its batch, while the GPU waits. How long that takes
differs between servers, and from what the same call takes in a loop. Each rank prints one line,
`BATCHES {...}`: for each batch its real time, the thread's CPU time (both in us), page faults and context
switches. `steps`: within the job's steps. The others come after the job, from the same loader: `loop`, one
after another; `slept`, each after 0.2 s of sleep; `spun`, each after 0.2 s of an empty loop; `streamed`, each
after 64 MiB of memory was written. `probe_us` is what the probe of the machine's speed takes then
(phantora_ns/launch/record/host_probe.py), in the same four ways. Runs for real and under phantora-ns.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import sys
import time
from collections.abc import Callable, Iterator

from phantora_ns.launch.record.host_probe import probe

AFTER = 12
"""Batches of each way."""
COLUMNS = ("real_us", "cpu_us", "faults", "waits", "preempted")


class Timed:
    """The loader's iterator; `rows` has COLUMNS of each batch."""

    def __init__(self, inner: Iterator) -> None:
        self.inner, self.rows = inner, []

    def __iter__(self) -> Timed:
        return self

    def __next__(self) -> object:
        before, cpu, real = (
            resource.getrusage(resource.RUSAGE_THREAD),
            time.thread_time_ns(),
            time.monotonic_ns(),
        )
        batch = next(self.inner)
        real, cpu = time.monotonic_ns() - real, time.thread_time_ns() - cpu
        after = resource.getrusage(resource.RUSAGE_THREAD)
        counts = (
            (getattr(after, n) - getattr(before, n)) for n in ("ru_minflt", "ru_nvcsw", "ru_nivcsw")
        )
        self.rows.append([real // 1000, cpu // 1000, *counts])
        return batch


def _spin() -> None:
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass


def _stream() -> None:
    memory = bytearray(64 << 20)
    memory[:] = bytes(64 << 20)


WAYS: dict[str, Callable[[], None]] = {
    "loop": lambda: None,
    "slept": lambda: time.sleep(0.2),
    "spun": _spin,
    "streamed": _stream,
}


def main() -> None:
    sys.argv = sys.argv[2:]
    sys.path[0] = os.getcwd()
    # only now: TorchTitan reads sys.argv as it is imported
    from torchtitan.components.dataloader import ParallelAwareDataloader as Loader

    made: list[Timed] = []
    plain = Loader.__iter__

    def timed(loader: Loader) -> Timed:
        made.append(Timed(plain(loader)))
        return made[-1]

    Loader.__iter__ = timed
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    batches = made[0]
    found: dict[str, object] = {"columns": COLUMNS, "steps": batches.rows}
    probes = {}
    for name, before in WAYS.items():
        batches.rows, probes[name] = [], []
        for _ in range(AFTER):
            before()
            next(batches)
        for _ in range(AFTER):
            before()
            probes[name].append(probe().second_ns // 1000)
        found[name] = batches.rows
    os.write(1, f"\nBATCHES {json.dumps(found | {'probe_us': probes})}\n".encode())


if __name__ == "__main__":
    main()
