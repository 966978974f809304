"""The powers of kernels from the mean clocks of steps, and what they say of other steps' clocks.

    python -m bench.gpus.clocks DIR

Why it exists: `[power]` of the H200's file names it. The law is that of phantora_ns/model/power.py,
with one clock for a step. What a step holds is from its trace: kernels by class, less what
collectives beside them added (`BESIDE`), and the step's length. Fitted to the calibration parts:
the powers of compute-bound and memory-bound kernels. Attention's is `ATTENTION` of the former.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np

from bench.gpus import visit
from bench.gpus.decompose import MS, real_steps
from bench.gpus.law import phase
from bench.gpus.predict import STEPS
from bench.gpus.steps import Step, class_of
from bench.gpus.summary import Samples
from phantora_ns.config import load_gpu

BESIDE = {"gemm": 1.41, "attention": 1.22}  # README.md; the others:
OTHER = 1.22
ATTENTION = 0.5
USUAL_MEMORY = 500.0, 100.0  # W beyond idle (bench/power), and how far the fit may go from it
ERROR = 0.015  # of a clock


def alone_ms(step: Step) -> dict[str, float]:
    """Times without communication beside them: of products, of attention, of the rest."""
    found: dict[str, float] = defaultdict(float)
    for kernel in step.main:
        label = class_of(kernel.name)
        added = (BESIDE.get(label, OTHER) - 1) * kernel.covered
        found[label if label in BESIDE else "memory"] += kernel.length / (1 + added) / MS
    return found


class Part:
    """Means over the ranks. `sent_j`: what links draw in a step."""

    def __init__(self, name: str, steps: list[Step], mhz: float, link: float) -> None:
        shape, gpus = name.split("@")
        gigabytes = 0.0 if gpus == "1" else STEPS[shape][2 if gpus == "2" else 3]
        rows = [alone_ms(step) for step in steps]
        self.ms = {label: mean(row[label] for row in rows) for label in rows[0]}
        self.length_ms = mean(step.length for step in steps) / MS
        self.mhz, self.sent_j, self.name = mhz, gigabytes * link, name

    def clock(self, compute: float, memory: float, power) -> float:
        """MHz at which the step draws what the limit leaves."""
        top = (
            compute * (self.ms["gemm"] + ATTENTION * self.ms["attention"])
            + memory * self.ms["memory"]
        )
        left = (power.limit - power.idle) * self.length_ms - 1e3 * self.sent_j
        return power.clock(max(1.0, top / left))


def fit(parts: list[Part], power) -> np.ndarray:
    """Least squares of the clocks' errors, by Gauss and Newton."""

    def errors(values: np.ndarray) -> np.ndarray:
        found = [np.log(part.clock(*values, power) / part.mhz) / ERROR for part in parts]
        return np.array([*found, (values[1] - USUAL_MEMORY[0]) / USUAL_MEMORY[1]])

    values = np.array([1000.0, 450.0])
    for _ in range(20):
        base = errors(values)
        slopes = np.stack([errors(values + step) - base for step in np.eye(2)], axis=1)
        values = values - np.linalg.lstsq(slopes, base, rcond=None)[0]
    return values


def main() -> None:
    folder, power = Path(sys.argv[1]), load_gpu("h200").power
    rows, samples = visit.results(folder), Samples(folder)
    parts = [
        Part(name, steps, phase(rows, samples, name)[0], power.link)
        for name, steps in real_steps(folder).items()
        if name.split("@")[0] in STEPS
    ]
    compute, memory = fit([p for p in parts if p.name not in visit.EVALUATION], power)
    print(
        f"beyond idle at {power.highest:.0f} MHz: products {compute:.0f} W, attention "
        f"{ATTENTION * compute:.0f} W, bound by memory {memory:.0f} W"
    )
    errors: dict[bool, list[float]] = {True: [], False: []}
    for part in parts:
        clock, held_out = part.clock(compute, memory, power), part.name in visit.EVALUATION
        errors[held_out].append(clock / part.mhz - 1)
        print(f"{part.name:22} {'E' if held_out else 'C'} real {part.mhz:.0f}, law {clock:.0f} MHz")
    for held_out, values in errors.items():
        print(
            f"{'evaluation' if held_out else 'calibration'}: mean error "
            f"{mean(map(abs, values)):.1%}, signed {mean(values):+.1%}"
        )


if __name__ == "__main__":
    main()
