"""How long a batch of text takes to tokenize, beside the probe of a machine's speed: what long work costs a host.

    python -m bench.own_host.long_work ASSETS OUT.jsonl [--seconds 60]

Why it exists: a first run brings all long work to the speed of the reference machine by the probe
(launch/record/host_probe.py). That is right if both slow down alike from one machine to another. TorchTitan's batch is
such work: 12 to 26 ms of its main thread, while the GPU waits. This is what its loader does, without TorchTitan:
documents are tokenized, joined and cut into rows. Each round sleeps as long as a step's GPU work takes, makes a batch,
and runs the probe. ASSETS: what examples/frameworks/torchtitan/make_assets.py writes. A line of OUT is a round:
microseconds of CPU time of the batch and of the probe.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer

from phantora_ns.launch.record.host_probe import probe

STEP_S = 0.2
ROWS, TOKENS = 2, 4096


def rows(assets: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    tokenizer = Tokenizer.from_file(str(assets / "tokenizer" / "tokenizer.json"))
    (texts,) = (assets / "c4_test").glob("data.json*")
    lines = texts.read_text().splitlines()
    waiting: list[int] = []
    while True:
        for line in lines:
            waiting.extend([0, *tokenizer.encode(json.loads(line)["text"]).ids, 1])
            while len(waiting) > TOKENS:
                row = torch.LongTensor(waiting[: TOKENS + 1])
                waiting = waiting[TOKENS + 1 :]
                yield row[:-1], row[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("assets", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    made, found = rows(options.assets), []
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        time.sleep(STEP_S)
        begin = time.thread_time_ns()
        torch.stack([next(made)[0] for _ in range(ROWS)])
        batch_us = (time.thread_time_ns() - begin) / 1000
        passes = probe()
        found.append((batch_us, passes.second_ns / 1000))
    with options.out.open("a") as stream:
        for batch_us, probe_us in found:
            stream.write(
                json.dumps({"batch_us": round(batch_us), "probe_us": round(probe_us)}) + "\n"
            )
    batches, probes = (sorted(column) for column in zip(*found, strict=True))
    for name, values in (("batch", batches), ("probe", probes)):
        tenths = [values[len(values) * tenth // 10] for tenth in (1, 5, 9)]
        print(
            f"{name}: mean {statistics.mean(values):.0f} us; 10, 50, 90 %: {[round(v) for v in tenths]}"
        )
    print(f"batch / probe: {statistics.mean(batches) / statistics.mean(probes):.2f}")


if __name__ == "__main__":
    main()
