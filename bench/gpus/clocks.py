"""The mean clocks of real steps beside those that the law of power gives them.

    python -m bench.gpus.clocks DIR... [--mixes GPU=DIR]...

Why it exists: `[power]` of a GPU's file holds few numbers, and this says how well they hold. The law is that of
phantora_ns/model/power.py, with one clock for a step: products and attention take an energy per FLOP, by the
model's sizes; attention and the rest, of which the step's trace tells the time, a power; links an energy per
byte. Of kernels that a collective covers, the time that it added is left out, as in the simulator. DIR: visits,
such as bench/gpus/data; GPU=DIR: what bench/power/mixes.py measured on such a GPU. Parts that were seen when the
numbers were chosen are marked C.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from bench.accuracy.models import LLAMAS
from bench.gpus import visit
from bench.gpus.decompose import MS, medians, real_steps
from bench.gpus.jobs import SHAPES
from bench.gpus.law import phase
from bench.gpus.predict import STEPS
from bench.gpus.steps import Step, class_of
from bench.gpus.summary import SETTLED_NS, Samples
from bench.power import mixes
from phantora_ns.config import load_gpu
from phantora_ns.model.power import Power
from phantora_ns.protocol import BoundBy, Precision

PER_FLOP = "gemm", "attention"
BESIDE = 1.22
"""How much longer the other kernels take beside a ring (README.md)."""
BACKWARD = 2.5  # FLOP of attention's backward pass over those of its forward pass
SENT_GB = {shape: row[2:] for shape, row in STEPS.items()} | {
    "3b14-fsdp-8k-ac": (8.8, 13.2),
    "1b-fsdp-16k-ac": (6.0, 9.0),
}
"""A GPU sends so much in a step on two, and on four, GPUs."""


def attention_ms(step: Step) -> float:
    return sum(kernel.length for kernel in step.main if class_of(kernel.name) == "attention") / MS


def memory_ms(step: Step) -> float:
    """The time that kernels other than products and attention would take without communication beside them."""
    rest = (kernel for kernel in step.main if class_of(kernel.name) not in PER_FLOP)
    return sum(kernel.length / (1 + (BESIDE - 1) * kernel.covered) for kernel in rest) / MS


def teraflop(
    size: str, layers: int | None, seq: int, batch: int, recompute: bool
) -> tuple[float, float]:
    """1e12 FLOP of a step: of products, and of attention under its causal mask."""
    vocabulary, width, all_layers, heads, kv_heads, inner = LLAMAS[size]
    tokens, layers, head = seq * batch, layers or all_layers, width // heads
    layer = 2 * tokens * width * (2 * width + 2 * kv_heads * head + 3 * inner)
    products = layer * layers * (3 + recompute) + 3 * 2 * tokens * width * vocabulary
    forward = layers * batch * heads * 2 * seq**2 * head
    return products / 1e12, forward * (1 + BACKWARD + recompute) / 1e12


@dataclass
class Part:
    """A step on one of equal GPUs: its `length_ms` without a trace, `attention_ms` of attention, `memory_ms` of
    kernels bound by memory, `fused_ms` of Inductor's, `sent_gb` to other GPUs."""

    name: str
    seen: bool
    gpu: str
    mhz: float
    length_ms: float
    attention_ms: float
    memory_ms: float
    products_tf: float
    attention_tf: float
    sent_gb: float = 0.0
    fused_ms: float = 0.0

    def drawn_w(self, mhz: float, power: Power) -> float:
        """The mean power beyond idle at a clock, the times of products as one over the clock. 1e12 FLOP of a
        pJ, and 1e9 bytes of a nJ, are a joule."""
        ratio = mhz / power.highest
        joules = (
            self.products_tf * power.per_flop[Precision.BF16]
            + self.attention_tf * power.attention_per_flop
        ) * (ratio / (self.mhz / power.highest))
        at_one = joules * 1e3 * ratio ** (power.exponent - 1)
        timed = (
            power.attention_base * self.attention_ms
            + power.drawn[BoundBy.MEMORY] * self.memory_ms
            + power.drawn[BoundBy.FUSED] * self.fused_ms
        )
        awake = power.awake if self.sent_gb else 0.0
        at_one += timed * ratio**power.exponent
        return (at_one + 1e3 * self.sent_gb * power.link) / self.length_ms + awake

    def clock(self, power: Power) -> float:
        """The highest clock at which the step stays within the limit."""
        low, high = 0.3 * power.highest, power.highest
        for _ in range(40):
            middle = (low + high) / 2
            within = self.drawn_w(middle, power) <= power.limit - power.idle
            low, high = (middle, high) if within else (low, middle)
        return low


def steps(folder: Path) -> list[Part]:
    """Of bench/gpus, means over the ranks."""
    rows, samples, untraced, found = visit.results(folder), Samples(folder), medians(folder), []
    gpu = next(row["gpus"][0]["name"].split()[1].lower() for row in rows if row["row"] == "machine")
    for name, ranks in real_steps(folder).items():
        shape, gpus = name.split("@")
        if shape not in SENT_GB:
            continue
        job = SHAPES[shape]
        split = {"fsdp_tp": job.tp, "tp": int(gpus)}.get(job.mode, 1)
        products, attention = teraflop(job.size, job.layers, job.seq, job.batch, job.recompute)
        found.append(
            Part(
                name,
                name not in visit.EVALUATION,
                gpu,
                phase(rows, samples, name)[0],
                untraced[name],
                mean(map(attention_ms, ranks)),
                mean(map(memory_ms, ranks)),
                products / split,
                attention / split,
                0.0 if gpus == "1" else SENT_GB[shape][gpus == "4"],
            )
        )
    return found


def mixed(folder: Path, gpu: str) -> list[Part]:
    """Of bench/power/mixes.py; those whose clock no limit held are left out."""
    samples, highest, found = Samples(folder), load_gpu(gpu).power.highest, []
    for name, line in mixes.lines(folder).items():
        begin = line["begin_ns"] + SETTLED_NS
        mhz = samples.between(0, begin, line["end_ns"])["mhz"]
        if mhz > 0.98 * highest:
            continue
        classes = line["classes_ms"]
        fused = classes.get("triton", 0.0)
        memory = sum(ms for kind, ms in classes.items() if kind not in PER_FLOP) - fused
        work = teraflop(line["size"], line["layers"], line["seq"], line["mbs"], line["ac"])
        seen = line["set"] == "calibration"
        times = line["traced_ms"], classes["attention"], memory
        found.append(Part(name, seen, gpu, mhz, *times, *work, fused_ms=fused))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--mixes", metavar="GPU=DIR", action="append", default=[])
    options = parser.parse_args()
    parts = [part for folder in options.folders for part in steps(folder)]
    for given in options.mixes:
        gpu, _, folder = given.partition("=")
        parts += mixed(Path(folder), gpu)
    errors: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for part in parts:
        clock = part.clock(load_gpu(part.gpu).power)
        errors[part.gpu, part.seen].append(clock / part.mhz - 1)
        told = f"real {part.mhz:.0f}, law {clock:.0f} MHz, {clock / part.mhz - 1:+.1%}"
        print(f"{part.gpu} {part.name:22} {'C' if part.seen else 'E'} {told}")
    for (gpu, seen), values in errors.items():
        print(
            f"{gpu}, {'calibration' if seen else 'evaluation'}: mean error "
            f"{mean(map(abs, values)):.1%}, signed {mean(values):+.1%}"
        )


if __name__ == "__main__":
    main()
