"""Runs the jobs of jobs.py simulated, and says how far that is from what real.py measured.

    python -m bench.frameworks.compare [--gpu h100] [--only NAME,NAME] [--gpus 1,2] [--host-time auto]
    [--out FILE] [-- PHANTORA-NS OPTIONS]

Why it exists: this says how accurate the simulation of an unmodified framework is. Real
runs: h200.jsonl and h100.jsonl, the lines that real.py wrote (of a job measured twice, the last). Both are medians
over the same steps of the same command line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench.frameworks.jobs import HERE, JOBS, Job, environment, summary
from bench.frameworks.real import make_assets, run, words
from phantora_ns.launch.record.host_time import MODES

REAL = HERE / "h200.jsonl"
SECONDS = 1800
HEADER = (
    f"{'job':28s} GPUs  {'real ms':>9s}  spread simulated   error  "
    "simulated less real bytes: allocated, reserved"
)


def real_runs(path: Path = REAL) -> dict[str, dict]:
    """name -> the last good line of each job, over the steps that are timed now; empty where
    nothing was measured."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    good = (line for line in lines if "median_ms" in line and "led" not in line)
    return {line["job"]: line | summary(line["step_ms"]) for line in good}


def simulate(job: Job, ours: list[str]) -> dict:
    """What the log of the simulated job says, with the run's `report`.

    Raises RuntimeError, with the end of the log, when it failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        # Hide kernel times that this user has recorded: with them, only this user gets the table.
        extra = environment(job) | {"XDG_DATA_HOME": scratch}
        command = [
            sys.executable,
            "-m",
            "phantora_ns",
            "--leaders",
            "none",
            "--quiet",
            *ours,
            "--report",
            str(report),
        ]
        status, text, seconds = run([*command, "torchrun", *words(job)], extra, SECONDS)
        try:
            found = job.read(text) | {"job": job.name, "wall_s": round(seconds, 1)}
        except (ValueError, KeyError, IndexError) as error:
            raise RuntimeError(f"status {status}: {error}: {text[-3000:]}") from None
        found["report"] = json.loads(report.read_text())
        return found


def row(job: Job, real: dict | None, found: dict) -> str:
    """A line of the table; peaks are compared to the byte, on the rank that differs most."""

    def peak(key: str) -> str:
        if real is None:
            return f"{max(found[key]):,}"
        difference = max(
            (ours - theirs for ours, theirs in zip(found[key], real[key], strict=True)), key=abs
        )
        return f"{difference:+,}" if difference else "equal"

    truth = f"{'-':>9s} {'-':>7s} {found['median_ms']:9.2f} {'-':>7s}"
    if real is not None:
        truth = (
            f"{real['median_ms']:9.2f} {real['spread']:7.1%} {found['median_ms']:9.2f} "
            f"{found['median_ms'] / real['median_ms'] - 1:+7.1%}"
        )
    return (
        f"{job.name:28s} {job.gpus:4d}  {truth}  {peak('peak_allocated')}, {peak('peak_reserved')}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="What follows -- is passed to phantora-ns."
    )
    parser.add_argument("--gpu", default="h200", choices=("h200", "h100"))
    parser.add_argument("--only", help="these jobs, comma-separated")
    parser.add_argument("--gpus", default="1,2")
    parser.add_argument("--host-time", default="auto", choices=MODES)
    parser.add_argument("--out", type=Path, help="the simulated results, one JSON line each")
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    options, ours = parser.parse_args(given[:split]), given[split + 1 :]
    ours = ["--host-time", options.host_time, "--set", f"gpu={options.gpu}", *ours]
    truth, failed = real_runs(HERE / f"{options.gpu}.jsonl"), 0
    make_assets()
    print(HEADER, flush=True)
    for job in JOBS:
        if (options.only and job.name not in options.only.split(",")) or str(
            job.gpus
        ) not in options.gpus.split(","):
            continue
        try:
            found = simulate(job, ours)
        except RuntimeError as error:
            failed += 1
            print(f"{job.name}: {error}", flush=True)
            continue
        print(row(job, truth.get(job.name), found), flush=True)
        if options.out:
            with options.out.open("a") as stream:
                stream.write(json.dumps(found) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
