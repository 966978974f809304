"""Prints how much GPU time of one job comes from recorded kernel times under several versions of
PyTorch.

    python -m bench.versions.run [--job 1b-none-4k-mbs2] [--least 0.7] PYTHON...

Why it exists: kernel times are recorded under one version, and people have others. What a version
names otherwise is not found again unless somebody sees to it; this shows what is missing. PYTHON is
a Python, or its environment's folder, with torch and phantora-ns's dependencies; the first one is
what the others are compared with. JOB is a configuration of bench/accuracy. The shares do not
depend on this machine's speed. Exit status: 0 when every job ended well and had at least the share
`--least` of the first one's exact time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.accuracy.configs import ROOT
from bench.accuracy.measured import Measured, own_results

TIMEOUT_SECONDS = 1800
STEPS, WARMUP = 4, 2
# nvidia-cudnn-cu12, nvidia-cudnn-cu13, ...
ABOUT = """
import importlib.metadata, re
found = {}
for one in importlib.metadata.distributions():
    name = re.sub(r"-cu\\d+$", "", (one.name or "").lower().replace("_", "-"))
    found.setdefault(name, one.version)
print(*(found.get(name, "-") for name in ("torch", "nvidia-cudnn", "nvidia-cublas")))
"""


def interpreter(path: Path) -> Path:
    """The Python of an environment's folder, or `path` itself, as an absolute path. A link is not
    followed: it names the environment."""
    python = path / "bin" / "python" if path.is_dir() else path
    return Path(os.path.abspath(python))


def software(python: Path) -> list[str]:
    """Versions of torch, cuDNN and cuBLAS in the environment of a Python."""
    done = subprocess.run([python, "-c", ABOUT], capture_output=True, text=True, cwd="/")
    return done.stdout.split() or ["?"]


def simulate(python: Path, job: Measured) -> dict | str:
    """The run's report, or the end of its log when it failed."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report")
        command = [
            *(python, "-m", "phantora_ns", "--quiet", "--host-time", "none", "--report", report),
            *(python.parent / "torchrun", "--nnodes", "1", "--nproc-per-node", str(job.gpus)),
            *(*job.script, *job.flags, f"--steps={STEPS}", f"--warmup={WARMUP}"),
        ]
        environment = os.environ | {"XDG_DATA_HOME": scratch}  # not this user's own kernel times
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=ROOT,
                env=environment,
                timeout=TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"not ended after {TIMEOUT_SECONDS} s"
        if done.returncode or not report.exists():
            return (done.stdout + done.stderr)[-2000:]
        return json.loads(report.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="+", type=Path, metavar="PYTHON")
    parser.add_argument(
        "--job", default="1b-none-4k-mbs2", help="a configuration of bench/accuracy"
    )
    parser.add_argument(
        "--least",
        type=float,
        default=0.7,
        help="share of the first one's exact time that is enough",
    )
    options = parser.parse_args()
    known = own_results()
    if options.job not in known:
        parser.error(f"there is no job {options.job}; there are {', '.join(known)}")
    first: float | None = None
    good = True
    print(
        f"{options.job}\n{'torch':>10} {'cuDNN':>11} {'cuBLAS':>11}  exact  of first  GPU time by source"
    )
    for path in options.pythons:
        python = interpreter(path)
        versions = software(python)
        report = simulate(python, known[options.job])
        if isinstance(report, str):
            good = False
            print(f"{versions[0]:>10}  failed:\n{report}", flush=True)
            continue
        shares = report["kernel_time_share"]
        exact = shares.get("exact", 0.0)
        first = exact if first is None else first
        good &= exact >= options.least * first
        others = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        torch, cudnn, cublas = [*versions, "-", "-"][:3]
        print(
            f"{torch:>10} {cudnn:>11} {cublas:>11} {exact:>6.1%} {exact / first if first else 0:>9.0%}"
            f"  {others}",
            flush=True,
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
