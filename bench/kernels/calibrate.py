"""Records the runs of a list (calibration.toml by default) on the one real GPU of this machine into
a kernel-time database.

    python -m bench.kernels.calibrate OUT.sqlite [--list FILE] [--only NAME,NAME] [--seconds 540]
    [-- PHANTORA-NS OPTIONS]
    python -m bench.kernels.calibrate OUT.sqlite --evaluation ...

Why it exists: the database that ships must be reproducible from a list that anyone can read. Each
run is `phantora-ns profile` of bench/accuracy/workload.py. What is recorded already is skipped,
what fails is reported and left out, and no run is started that would not end before --seconds. With
--evaluation it records, into a file that does not ship, the very jobs that accuracy is judged on:
what a user with one GPU gets for his own job.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE.parent / "accuracy"
ROOT = HERE.parent.parent
# seconds from the start of a run to its entry in the database; a run that would end later than the
# limit is not started
NEEDED_S = 35


@dataclass(frozen=True)
class Run:
    """One job to record: `flags` for workload.py on `gpus` simulated GPUs, led by each of `leaders`
    in turn. `record` as profile's."""

    name: str
    gpus: int
    flags: str
    leaders: str = "0"
    record: str = "kernels"


def identity(gpus: int, flags: str) -> tuple:
    """A key that is equal for equal jobs, whatever their number of steps."""
    words = flags.split()
    options = {
        word: words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else ""
        for i, word in enumerate(words)
        if word.startswith("--")
    }
    for name in ("--steps", "--warmup"):
        options.pop(name, None)
    return gpus, tuple(sorted(options.items()))


def load(path: Path) -> list[Run]:
    """The runs of a list. Raises ValueError for a name used twice."""
    runs = [Run(**entry) for entry in tomllib.loads(path.read_text())["run"]]
    if len({run.name for run in runs}) != len(runs):
        raise ValueError(f"{path}: a name is used twice")
    return runs


def evaluation() -> list[Run]:
    """The jobs that accuracy is judged on. Of a pipeline the first and last stages lead; the
    others are like their neighbours."""
    entries = tomllib.loads((BENCH / "configs.toml").read_text())["config"]
    return [
        Run(
            e["name"],
            e["gpus"],
            e["flags"],
            f"0,1,{e['gpus'] - 1}" if "--mode pp" in e["flags"] else "0",
        )
        for e in entries
        if e["set"] == "evaluation"
    ]


def refuse_evaluation(runs: list[Run]) -> None:
    """Raises ValueError when a run is one of those that accuracy is judged on."""
    judged = {identity(run.gpus, run.flags): run.name for run in evaluation()}
    for run in runs:
        if identity(run.gpus, run.flags) in judged:
            raise ValueError(
                f"{run.name} is {judged[identity(run.gpus, run.flags)]}, which accuracy is judged on"
            )


def recorded(out: Path) -> set[str]:
    """The names of the runs that the database holds."""
    from phantora_ns.kernels.database.database import Database

    if not out.exists():
        return set()
    with Database.open(out) as database:
        return {run.configuration for run in database.runs()}


def record(run: Run, out: Path, extra: list[str]) -> bool:
    """Runs one job; False when it failed, with the end of its output shown."""
    command = [
        sys.executable,
        "-m",
        "phantora_ns",
        "profile",
        *extra,
        "--record",
        run.record,
        "--leaders",
        run.leaders,
        "--name",
        run.name,
        "-o",
        str(out),
        "torchrun",
        "--nproc-per-node",
        str(run.gpus),
        "-m",
        "bench.accuracy.workload",
        *run.flags.split(),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    (out.parent / f"{run.name}.log").write_text(done.stdout)
    if done.returncode != 0:
        print("\n".join(done.stdout.splitlines()[-12:]), flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="What follows -- is passed to phantora-ns profile.",
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--list", type=Path, default=HERE / "calibration.toml")
    parser.add_argument("--only", help="these runs, comma-separated")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="end before this much time has passed"
    )
    parser.add_argument(
        "--evaluation",
        action="store_true",
        help="the jobs that accuracy is judged on, in place of a list",
    )
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    options, extra = parser.parse_args(words[:split]), words[split + 1 :]
    start, failed = time.monotonic(), []
    runs = evaluation() if options.evaluation else load(options.list)
    if not options.evaluation:
        refuse_evaluation(runs)
    done = recorded(options.out)
    for run in runs:
        if run.name in done or (options.only and run.name not in options.only.split(",")):
            continue
        before = time.monotonic()
        if before - start + NEEDED_S > options.seconds:
            print(f"no time left for {run.name}", flush=True)
            continue
        good = record(run, options.out, extra)
        print(
            f"{run.name}: {'recorded' if good else 'FAILED'} in {time.monotonic() - before:.1f} s",
            flush=True,
        )
        if not good:
            failed.append(run.name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
