"""Weak scaling against published figures: `python -m bench.ranks.weak_scaling` prints the table of
docs/accuracy.md ("Weak scaling").

Why it exists: nothing was measured between servers for this project. Others have published throughput
per GPU of one job at several sizes. What a larger size leaves of it, the ratio, depends little on the
GPU and its kernels, and much on communication between servers. All of it is evaluation: nothing is
fitted to these figures.

Jobs of five nodes and more are folded. A finished run is kept in --out, and is not run again while it is
there. Runs need up to 12 GB and several minutes each; PyTorch 2.11 has the recorded kernel times.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.ranks.run import ROOT, children_cpu_s

ASSETS = ROOT / "build" / "weak_scaling"
TITAN = "examples/frameworks/torchtitan"


@dataclass(frozen=True)
class Series:
    """One published job. `published`: by the number of GPUs, what one GPU does in a second, or how long a step
    takes when `unit` is "s". `job`: the arguments of torchrun. `within`: the bar, how many points the ratio to
    the smallest size may be off."""

    title: str
    cluster: str
    per_node: int
    published: dict[int, float]
    unit: str
    job: tuple[str, ...]
    within: float

    def kept(self, figures: dict[int, float]) -> dict[int, float]:
        """Percent of the smallest size's throughput per GPU that each size keeps."""
        least = min(figures)
        if self.unit == "s":
            return {size: 100 * figures[least] / figure for size, figure in figures.items()}
        return {size: 100 * figure / figures[least] for size, figure in figures.items()}


TITAN_JOB = (
    *("-m", "torchtitan.train", "--job.config-file", f"{TITAN}/llama3_8b.toml"),
    *("--model.hf-assets-path", str(ASSETS / "tokenizer")),
    *("--training.dataset-path", str(ASSETS / "c4_test"), "--job.dump-folder", str(ASSETS)),
    *("--training.local-batch-size", "2", "--training.steps", "4"),
)
TP4_JOB = ("-m", "bench.ranks.tp_fsdp")
SERIES = {
    # pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3
    "titan": Series(
        *("TorchTitan, Llama 3.1 8B, FSDP", "h200-rail", 8, {8: 5762, 128: 5605}, "tokens/s"),
        *(TITAN_JOB, 2),
    ),
    # mosaicml/llm-foundry, scripts/train/benchmarking/README.md, H100 80GB BF16
    "mpt": Series(
        *("MPT 7B, FSDP", "h100-rail", 8, {8: 10643, 128: 10475, 512: 9670}, "tokens/s"),
        *(("bench/ranks/gpt.py",), 2),
    ),
    # KempnerInstitute/KempnerForge, benchmarks/mfu_scaling/mfu_scaling_2026-04-05.md, rows 5, 7, 10, 12
    "tp4": Series(
        *("Llama 8B, TP 4 x FSDP", "h200-switch", 4, {4: 1.30, 8: 1.48, 16: 1.58, 32: 1.68}, "s"),
        *(TP4_JOB, 5),
    ),
}


def run(series, size):
    """One simulated run: seconds of a step, how much of it communication holds up, and what the run
    cost. Raises SystemExit when it fails."""
    if series.job is TITAN_JOB and not (ASSETS / "tokenizer").exists():
        # enough rows that no rank begins its part anew, which it would log
        make = [sys.executable, f"{TITAN}/make_assets.py", "--documents", "40000", str(ASSETS)]
        subprocess.run(make, cwd=ROOT, check=True)
    with tempfile.NamedTemporaryFile() as report:
        command = [sys.executable, "-m", "phantora_ns.cli", "--quiet", "--cluster", series.cluster]
        command += ["--host-time", "model", "--warm-start", "auto", "--fold", "auto"]
        command += ["--report", report.name, str(Path(sys.executable).with_name("torchrun"))]
        command += ["--nnodes", str(size // series.per_node)]
        command += ["--nproc-per-node", str(series.per_node), *series.job]
        start, before = time.monotonic(), os.times()
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise SystemExit(done.stdout[-6000:])
        said = json.loads(Path(report.name).read_text())
    step = said["step"]
    return {
        "step_s": step["mean_ns"] / 1e9,
        "exposed_s": step["exposed_ns"] / 1e9,
        "wall_s": time.monotonic() - start,
        "cpu_s": children_cpu_s(before),
        "hub_s": said["hub_cpu_ns"] / 1e9,
    }


def rows(series, found):
    """The lines of the table for one series, for the sizes that were run."""
    measured = series.kept({size: series.published[size] for size in found})
    figures = {size: row["step_s"] for size, row in found.items()}
    if series.unit != "s":
        figures = {size: 1 / step_s for size, step_s in figures.items()}
    simulated = series.kept(figures)
    for size, row in found.items():
        apart = simulated[size] - measured[size]
        figure = series.published[size]
        said = f"{figure:.2f} s" if series.unit == "s" else f"{figure:,} {series.unit}"
        met = "" if size == min(found) else "yes" if abs(apart) <= series.within else "no"
        yield (
            f"| {series.title} | {size} | {said} | {measured[size]:.1f} % "
            f"| {row['step_s']:.3f} s | {simulated[size]:.1f} % | {apart:+.1f} | {series.within} | {met} "
            f"| {row['exposed_s'] / row['step_s']:.1%} |"
        )


def main():
    """Runs what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SERIES), help="series, with commas between them")
    parser.add_argument("--most", type=int, default=512, help="no run of more GPUs than this")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "weak_scaling.json")
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    lines = [
        "| Job | GPUs | published | ratio | simulated step | ratio | points apart | bar | met "
        "| held up by communication |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in options.only.split(","):
        series, found = SERIES[name], {}
        for size in series.published:
            key = f"{name}-{size}"
            if key not in known and size <= options.most:
                known[key] = run(series, size)
                options.out.parent.mkdir(exist_ok=True)
                options.out.write_text(json.dumps(known, indent=1) + "\n")
                print(key, known[key], file=sys.stderr, flush=True)
            if key in known:
                found[size] = known[key]
        lines += rows(series, found)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
