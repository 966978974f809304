"""One rank: runs the parts one after the other and writes each part's rows as soon as it is over.

Why it exists: imports and communicators cost seconds on a machine lent for minutes, so ranks live
through all parts. Ranks that have nothing to do wait in Gloo: a GPU that waits in NCCL draws power.
Rule: a rank that fails ends, and measure.py starts all ranks again with the parts that are left.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from bench.gpus import probes, traces
from bench.gpus.jobs import SHAPES, Job, free

WARM = 3


@dataclass(frozen=True)
class Part:
    """`seconds`: what it is expected to take; it is not begun when less is left."""

    kind: str
    shape: str
    gpus: int
    seconds: float
    alone: bool = False
    again: bool = False

    @property
    def name(self) -> str:
        return f"{self.shape or self.kind}@{self.gpus}{' again' if self.again else ''}"


def step_parts(shape: str, seconds: float, *gpus: int, alone: bool = False) -> list[Part]:
    return [Part("step", shape, n, seconds, alone) for n in gpus]


PARTS = [  # in order of value
    Part("step", "1b-fsdp-4k", 1, 25, alone=True),
    Part("step", "1b-fsdp-4k", 4, 14),
    Part("step", "1b-fsdp-4k", 2, 16, alone=True),
    *step_parts("8b12-fsdp-8k-ac", 22, 1, 4, 2),
    Part("step", "8b12-fsdp-4k", 1, 28, alone=True),
    *step_parts("8b12-fsdp-4k", 15, 4, 2),
    Part("rings", "", 4, 15),
    *step_parts("1b-ddp-4k", 12, 4, 1, 2),
    *step_parts("8b-fsdp-4k", 20, 4),
    Part("beside", "", 4, 14),
    *step_parts("8b12-fsdp_tp2-4k", 18, 4, 2),
    Part("rings", "", 2, 15),
    *step_parts("13b10-tp-4k", 16, 4),
    Part("host_calls", "", 4, 4),
    *step_parts("8b-fsdp-4k", 20, 2),
    *step_parts("13b10-tp-4k", 16, 2),
    *step_parts("160m-fsdp-1k", 8, 1, 4, 2),
    Part("beside", "", 2, 12),
    Part("step", "1b-fsdp-4k", 1, 9, again=True),
    *step_parts("3b14-fsdp-8k-ac", 24, 1, 2),
    *step_parts("1b-fsdp-16k-ac", 18, 1, 2),
]


def parts_of(world: int, only: str | None) -> list[Part]:
    chosen = [part for part in PARTS if part.gpus <= world]
    if only:
        chosen = [part for part in chosen if any(word in part.name for word in only.split(","))]
    return chosen


class Rank:
    def __init__(self, options) -> None:
        self.options = options
        self.folder = Path(options.folder)
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        self.control = dist.new_group(backend="gloo")
        self.scale = probes.Scale(tiny=options.tiny)
        self.deadline = float(os.environ["BENCH_DEADLINE"])  # of time.monotonic

    def meet(self) -> None:
        dist.barrier(group=self.control)

    def agree(self, value: float) -> float:
        """The largest value of all ranks."""
        tensor = torch.tensor(float(value), dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return tensor.item()

    def write(self, line: dict) -> None:
        if self.rank == 0:
            with open(self.folder / "results.jsonl", "a") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def begun(self) -> set[str]:
        path = self.folder / "results.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines]
        return {row["part"] for row in rows if row["row"] == "begin"}

    def run(self) -> None:
        begun = self.begun()
        self.meet()
        for part in parts_of(self.world, self.options.only):
            late = self.deadline - time.monotonic() < part.seconds
            if part.name in begun or self.agree(late):
                continue
            begin = time.monotonic()
            self.write({"row": "begin", "part": part.name, "at": time.time_ns()})
            lines = self.step(part) if part.kind == "step" else self.probe(part)
            found: list = [None] * self.world
            dist.all_gather_object(found, lines, group=self.control)
            for rank, lines in enumerate(found):
                for line in lines:
                    head = {"row": part.kind, "part": part.name, "gpus": part.gpus, "rank": rank}
                    self.write({**head, **line})
            seconds = round(time.monotonic() - begin, 1)
            self.write({"row": "end", "part": part.name, "seconds": seconds})
            if self.rank == 0:
                print(f"{part.name}: {seconds} s", flush=True)

    def probe(self, part: Part) -> list[dict]:
        probe = getattr(probes, part.kind)
        try:
            return probe(part.gpus, self.scale, self.meet, self.agree)
        finally:
            free()

    def phases(self, part: Part) -> list[tuple[str, list[int]]]:
        """(label, ranks that step while the others rest)."""
        everyone = list(range(self.world))
        result = []
        if part.alone:
            groups = [everyone[i : i + part.gpus] for i in range(0, self.world, part.gpus)]
            if len(groups) > 1:
                result = [("alone", group) for group in groups]
        return [*result, ("all", everyone)]

    def step(self, part: Part) -> list[dict]:
        shape = SHAPES[part.shape].tiny() if self.options.tiny else SHAPES[part.shape]
        steps = self.options.steps or shape.steps
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        begin = time.monotonic()
        job = Job(shape, part.gpus)
        torch.cuda.synchronize()
        built = time.monotonic() - begin
        lines = [{"phase": "warm", "steps": [timed(job.step) for _ in range(WARM)]}]
        lines[0]["build_s"] = round(built, 2)
        for label, active in self.phases(part):
            self.meet()
            if self.rank in active:
                lines.append({"phase": label, "steps": [timed(job.step) for _ in range(steps)]})
        self.meet()
        lines.append(
            {
                "phase": "memory",
                "held_before": held,
                "allocated": torch.cuda.max_memory_allocated(),
                "reserved": torch.cuda.max_memory_reserved(),
            }
        )
        if not self.options.no_trace and not part.again:
            line = traces.traced(job.step, self.meet)
            head = {"part": part.name, "gpus": part.gpus, "rank": self.rank}
            traces.append(self.folder, self.rank, {**head, **line})
        del job
        free()
        return lines


def timed(step) -> list:
    """[begin ns, ns until all was issued, ns until all was done, ns by CUDA events]."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin = time.time_ns()
    before.record()
    step()
    after.record()
    issued = time.time_ns()
    torch.cuda.synchronize()
    end = time.time_ns()
    return [begin, issued - begin, end - begin, round(before.elapsed_time(after) * 1e6)]


def main(options) -> None:
    try:
        rank = Rank(options)
        rank.run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(3)  # without NCCL's own shutting down, which waits for the others
    rank.meet()
    sys.stdout.flush()
    os._exit(0)  # communicators that shut down one after the other would take seconds
