"""How much slower a process's code gets while others run beside it on the same host.

    python -m bench.own_host.crowd OUT.jsonl [--most 16] [--rounds 6] [--seconds 2.5]

Why it exists: a job of eight ranks keeps eight cores of a host busy, which share its last-level cache, memory and
power. The reference machine of host time (`launch/record/host_speed.py`) was measured beside jobs of one and two ranks.
Each worker is a process that trains a small model on its CPU with one thread: a framework's code, and hardly any
arithmetic. In a round 1, 2, 4, ... of them run at once, drawn at random. A line of OUT is a worker's round: the
median and mean time of a step, its mean CPU time, and the mean of the probe, in ns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

LAYERS, WIDTH, TOKENS = 12, 16, 4
STEPS_PER_PROBE = 4


def work() -> None:
    """A worker: each line of standard input says for how many seconds to train, and gets a line of results."""
    import torch

    from phantora_ns.launch.record.host_probe import probe

    torch.set_num_threads(1)
    layers = [torch.nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.0) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.randn(1, TOKENS, WIDTH)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(20):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        until = time.monotonic() + float(line)
        wall, cpu, probes = [], [], []
        while time.monotonic() < until:
            for _ in range(STEPS_PER_PROBE):
                begin, begin_cpu = time.perf_counter_ns(), time.thread_time_ns()
                step()
                cpu.append(time.thread_time_ns() - begin_cpu)
                wall.append(time.perf_counter_ns() - begin)
            probes.append(probe().second_ns)
        found = {
            "steps": len(wall),
            "median_ns": round(statistics.median(wall)),
            "mean_ns": round(statistics.mean(wall)),
            "cpu_ns": round(statistics.mean(cpu)),
            "probe_ns": round(statistics.mean(probes)),
        }
        print(json.dumps(found), flush=True)


class Worker:
    """A process that runs `work`."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "from bench.own_host.crowd import work; work()"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._in, self._out = self._process.stdin, self._process.stdout

    def told(self, seconds: float) -> None:
        assert self._in is not None
        self._in.write(f"{seconds}\n")
        self._in.flush()

    def says(self) -> str:
        """The next line that it prints; empty if it has ended."""
        assert self._out is not None
        return self._out.readline()

    def ended(self) -> None:
        self._process.communicate()


def show(rows: list[dict]) -> None:
    """By how many run at once: the mean over workers, and the slowest of a round, over the mean of one alone."""
    alone = {
        key: statistics.mean(row[key] for row in rows if row["beside"] == 1)
        for key in ("median_ns", "cpu_ns", "probe_ns")
    }
    print("at once   a step, its CPU time, the probe over those of one alone; the slowest's step")
    for count in sorted({row["beside"] for row in rows}):
        of = [row for row in rows if row["beside"] == count]
        ratios = [statistics.mean(row[key] for row in of) / one for key, one in alone.items()]
        slowest = statistics.mean(
            max(row["median_ns"] for row in of if row["round"] == number)
            for number in {row["round"] for row in of}
        )
        shown = "  ".join(f"{ratio:5.2f}" for ratio in ratios)
        print(f"{count:7}   {shown}   {slowest / alone['median_ns']:5.2f}")
    print({key: round(one) for key, one in alone.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.5)
    options = parser.parse_args()
    counts = [1 << n for n in range(options.most.bit_length()) if 1 << n <= options.most]
    workers = [Worker() for _ in range(options.most)]
    for worker in workers:
        if worker.says() != "ready\n":
            raise SystemExit("a worker did not start; its reason is above")
    rows, number = [], 0
    with options.out.open("a") as stream:
        for _ in range(options.rounds):
            for count in random.sample(counts, len(counts)):
                number += 1
                drawn = random.sample(workers, count)
                for worker in drawn:
                    worker.told(options.seconds)
                for worker in drawn:
                    row = {"round": number, "beside": count, **json.loads(worker.says())}
                    rows.append(row)
                    stream.write(json.dumps(row) + "\n")
    for worker in workers:
        worker.ended()
    show(rows)


if __name__ == "__main__":
    main()
