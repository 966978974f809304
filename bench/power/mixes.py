"""Training steps of very different mixes of work on one GPU: their times, clocks and kernels by class.

    python3 -m bench.power.mixes OUT_DIR [--seconds 300] [--only NAME,NAME]      # on a GPU
    phantora-ns torchrun --nproc-per-node 1 -m bench.power.mixes OUT_DIR --simulated
    python -m bench.power.mixes --compare REAL_DIR SIMULATED_DIR

Why it exists: under its power limit a GPU's clock is what the mix of its work leaves. Fitted to few steps that
are alike, the powers of products, attention and kernels bound by memory cannot be told apart. Here their shares
differ as far as training steps allow: much recomputation, long sequences, few tokens for many parameters. `set`
says what constants may be fitted to. One process runs all shapes, so they have the same GPU, and each runs
long enough for the limiter to settle. OUT_DIR/mixes.jsonl gets a line per shape, OUT_DIR/samples.csv clock and
power (bench/gpus/sampler.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

WARM_S, TIMED_S = 2.0, 3.0
STEPS = 6
"""Simulated steps; the clock of a simulated GPU is settled after half of them."""


@dataclass(frozen=True)
class Shape:
    name: str
    set: str
    size: str
    layers: int | None
    seq: int
    mbs: int
    ac: bool = False
    optimizer: str = "fused"
    compile: bool = False


C, E = "calibration", "evaluation"
SHAPES = (
    Shape("8b16-4k-mbs2-ac", C, "8b", 16, 4096, 2, True),
    Shape("1b-4k-mbs2", C, "1b", None, 4096, 2),
    Shape("1b8-32k-ac", C, "1b", 8, 32768, 1, True),
    Shape("13b6-4k-mbs4-ac", C, "13b", 6, 4096, 4, True),
    Shape("8b8-1k", C, "8b", 8, 1024, 1),
    Shape("13b6-2k", C, "13b", 6, 2048, 1),
    Shape("3b14-2k-mbs4", C, "3b", 14, 2048, 4),
    Shape("160m-16k", C, "160m", None, 16384, 1),
    Shape("1b-4k-mbs2-sgd", C, "1b", None, 4096, 2, optimizer="sgd"),
    Shape("3b14-8k-mbs2-ac", C, "3b", 14, 8192, 2, True),
    Shape("160m-2k-mbs16", C, "160m", None, 2048, 16),
    Shape("8b8-2k-mbs4", C, "8b", 8, 2048, 4),
    Shape("8b12-8k-ac", E, "8b", 12, 8192, 1, True),
    Shape("13b8-1k-mbs2", E, "13b", 8, 1024, 2),
    Shape("3b12-16k-ac", E, "3b", 12, 16384, 1, True),
    Shape("1b-2k-mbs8-ac", E, "1b", None, 2048, 8, True),
    Shape("8b10-4k", E, "8b", 10, 4096, 1),
    Shape("1b12-8k", E, "1b", 12, 8192, 1),
)
"""The same steps with every layer compiled: what Triton's fused kernels draw."""
COMPILED = tuple(
    replace(shape, name=f"{shape.name}-compile", set=kind, compile=True)
    for name, kind in (
        ("1b-4k-mbs2", C),
        ("8b8-2k-mbs4", C),
        ("3b14-2k-mbs4", C),
        ("160m-16k", C),
        ("8b16-4k-mbs2-ac", C),
        ("1b8-32k-ac", C),
        ("8b10-4k", E),
        ("1b12-8k", E),
        ("1b-2k-mbs8-ac", E),
    )
    for shape in SHAPES
    if shape.name == name
)


def measure(shape: Shape, simulated: bool) -> dict:
    import torch

    from bench.accuracy.workload import OPTIMIZERS, build_llama, llama_step
    from bench.gpus.steps import class_of
    from bench.gpus.traces import traced

    options = Namespace(**vars(shape), mode="none", precision="bf16", accum=1)
    model, vocabulary = build_llama(options, 0, 1)
    step = llama_step(options, model, vocabulary, OPTIMIZERS[shape.optimizer](model.parameters()))
    times: list[float] = []

    def run(seconds: float, least: int) -> tuple[int, int]:
        begin = time.time_ns()
        while len(times) < least or (not simulated and time.time_ns() - begin < seconds * 1e9):
            torch.cuda.synchronize()
            start = time.perf_counter()
            kept = step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            del kept
        return begin, time.time_ns()

    run(WARM_S, STEPS // 2)
    times.clear()
    begin, end = run(TIMED_S, STEPS - STEPS // 2)
    line = {"median_ms": statistics.median(times) * 1e3, "steps": len(times)}
    line |= {"begin_ns": begin, "end_ns": end}
    trace = traced(step, torch.cuda.synchronize)
    found: dict[str, float] = defaultdict(float)
    for name, _, _, duration, _ in trace.get("rows", ()):
        kernel = trace["names"][name]
        found["triton" if kernel.startswith("triton") else class_of(kernel)] += duration / 1e6
    line |= {"traced_ms": trace["end_ns"] / 1e6, "classes_ms": dict(found)}
    return vars(shape) | line


def run_all(options) -> None:
    import torch

    out, begin = options.out.resolve(), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    simulated = options.simulated
    sampler = None
    if not simulated:
        command = [sys.executable, "-m", "bench.gpus.sampler", str(out / "samples.csv"), "10"]
        sampler = subprocess.Popen(command)
    torch.cuda.set_device(0)
    try:
        for shape in SHAPES + COMPILED:
            if options.only and shape.name not in options.only.split(","):
                continue
            if time.monotonic() - begin > options.seconds:
                print(f"no time left for {shape.name}", flush=True)
                continue
            line = measure(shape, simulated)
            with (out / "mixes.jsonl").open("a") as stream:
                stream.write(json.dumps(line) + "\n")
            print(f"{shape.name:18s} {line['median_ms']:9.2f} ms", flush=True)
            gc.collect()
            torch.cuda.empty_cache()
    finally:
        if sampler:
            sampler.terminate()
            sampler.wait()


def lines(folder: Path) -> dict[str, dict]:
    content = (folder / "mixes.jsonl").read_text().splitlines()
    return {line["name"]: line for line in map(json.loads, content)}


def compare(real_folder: Path, simulated_folder: Path) -> None:
    from bench.gpus.summary import Samples

    real, simulated = lines(real_folder), lines(simulated_folder)
    samples = Samples(real_folder)
    errors: dict[str, list[float]] = defaultdict(list)
    print("shape                set  share of products, attention   MHz      W   real ms    error")
    for name, line in real.items():
        told = simulated.get(name)
        if told is None:
            continue
        found = samples.between(0, line["begin_ns"], line["end_ns"])
        mhz, watts = found["mhz"], found["watts"]
        error = told["median_ms"] / line["median_ms"] - 1
        errors[line["set"]].append(error)
        shares = [line["classes_ms"].get(k, 0) / line["traced_ms"] for k in ("gemm", "attention")]
        parts = ", ".join(
            f"{k} {told['classes_ms'].get(k, 0) / v - 1:+.1%}"
            for k, v in sorted(line["classes_ms"].items(), key=lambda item: -item[1])[:4]
        )
        print(
            f"{name:20s} {line['set'][0].upper()}    {shares[0]:6.0%} {shares[1]:6.0%}   {mhz:14.0f} {watts:6.0f} "
            f"{line['median_ms']:9.2f} {error:+8.1%}   {parts}"
        )
    for kind, values in errors.items():
        mean = statistics.mean(map(abs, values))
        print(f"{kind}: mean {mean:.1%}, signed {statistics.mean(values):+.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no shape after that")
    parser.add_argument("--only", help="these shapes, comma-separated")
    parser.add_argument("--simulated", action="store_true", help="few steps, no samples")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("REAL", "SIMULATED"))
    options = parser.parse_args()
    if options.compare:
        compare(*options.compare)
    elif options.out is None:
        parser.error("a folder for the results, or --compare")
    else:
        run_all(options)


if __name__ == "__main__":
    main()
