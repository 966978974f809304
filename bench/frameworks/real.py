"""Runs the jobs of jobs.py on the real GPUs of this machine, one after another, and keeps what
their logs say.

    python -m bench.frameworks.real OUT_DIR --gpus 1 [--budget 400] [--only NAME,NAME] [--no-traces] [--led h100]

Why it exists: that a framework's run is simulated well can only be said against a real one.
OUT_DIR/real.jsonl gets one line per job as it ends (compare.py says what it must hold),
OUT_DIR/real.log the end of every log, OUT_DIR/traces.tar a Kineto trace of the last step of each
on every rank (the GPU's activity only). A job that fails, or takes longer than it may, is recorded as
that, and the next one starts; none is started that would not end within the budget (seconds). With --led
each job runs a second time, right after the first: simulated on this machine, led by its first GPU, for the model
named. Then both have the same host and the same chip.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib import metadata
from pathlib import Path

from bench.frameworks.jobs import ASSETS, HERE, JOBS, ROOT, STEPS, Job, environment

KEPT_LOG = 6000  # characters
LED_LONGER = 2.5  # by what a led job may take longer


def run(
    command: list[str], extra: dict, seconds: float, folder: Path = ROOT
) -> tuple[int | str, str, float]:
    """(exit status or what ended it, all that was printed, seconds) of a command in a process group
    of its own, started in `folder`."""
    start = time.monotonic()
    surroundings = os.environ | extra
    surroundings["PYTHONPATH"] = os.pathsep.join(
        filter(None, (extra.get("PYTHONPATH"), os.environ.get("PYTHONPATH")))
    )
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=surroundings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"killed after {seconds:.0f} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # data loaders may outlive their rank
            except ProcessLookupError:
                pass
            process.wait()
        log.seek(0)
        return status, log.read(), time.monotonic() - start


def make_assets() -> None:
    """TorchTitan's tokenizer and dataset, once."""
    if not (ROOT / ASSETS / "c4_test" / "data.jsonl").exists():
        subprocess.run(
            [
                sys.executable,
                str(ROOT / "examples/frameworks/torchtitan/make_assets.py"),
                str(ROOT / ASSETS),
                "--documents",
                "400",
            ],
            check=True,
        )


def words(job: Job) -> list[str]:
    """What follows torchrun: the number of ranks, job.py and the job."""
    return ["--nproc-per-node", str(job.gpus), str(HERE / "job.py"), *job.words]


def versions(job: Job) -> dict:
    return {name: metadata.version(name) for name in ("torch", "triton", *job.packages)}


def machine() -> dict:
    """GPU, driver, CPU; empty fields where there is no nvidia-smi."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,power.limit,clocks.max.sm",
        "--format=csv,noheader",
    ]
    try:
        found = subprocess.run(
            query, capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        found = ",,,"
    name, driver, limit, clock = (field.strip() for field in found.split(","))
    return {
        "gpu": name,
        "driver": driver,
        "power_limit": limit,
        "sm_clock": clock,
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
    }


def launcher(job: Job, port: int, led: str | None) -> list[str]:
    """torchrun, or phantora-ns with rank 0 leading and a GPU of the model `led`."""
    if led is None:
        return [sys.executable, "-m", "torch.distributed.run", "--master-port", str(port)]
    options = ["--set", f"gpu={led}", "--leaders", "0", "--gpus-per-node", str(job.gpus)]
    return [sys.executable, "-m", "phantora_ns", *options, "torchrun"]


def measure(job: Job, trace: Path | None, port: int, led: str | None = None) -> tuple[dict, str]:
    """(the line of real.jsonl, the job's log)."""
    extra = environment(job)
    if trace is not None:
        extra |= {
            "BENCH_TRACE": str(trace),
            "BENCH_TRACE_FROM": str((STEPS - 1) * job.updates),
            "BENCH_TRACE_TO": str(STEPS * job.updates),
        }
    command = [*launcher(job, port, led), *words(job)]
    status, text, seconds = run(command, extra, job.seconds * (LED_LONGER if led else 1))
    entry = {
        "job": job.name,
        "framework": job.framework,
        "gpus": job.gpus,
        "status": status,
        "wall_s": round(seconds, 1),
        "versions": versions(job),
        "words": list(job.words),
    } | ({"led": led} if led else {})
    try:
        entry |= job.read(text)
    except (ValueError, KeyError, IndexError) as error:
        entry["error"] = f"{type(error).__name__}: {error}; {text[-800:]}"
    return entry, text


def name(entry: dict) -> str:
    return entry["job"] + (", led" if "led" in entry else "")


def show(entry: dict, elapsed: float) -> None:
    if "error" in entry:
        print(
            f"{elapsed:6.1f}  {name(entry):28s} FAILED ({entry['status']}) in {entry['wall_s']} "
            f"s: {entry['error'][-700:]}",
            flush=True,
        )
        return
    print(
        f"{elapsed:6.1f}  {name(entry):28s} {entry['median_ms']:9.2f} ms  spread {entry['spread']:6.2%}  "
        f"peak {entry['peak_allocated'][0]:,} / {entry['peak_reserved'][0]:,}  in {entry['wall_s']} s, "
        f"{entry['update_count']} updates",
        flush=True,
    )


def keep_traces(job: Job, folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "a") as tar:
        for trace in sorted(folder.iterdir()):
            packed = trace.with_suffix(".json.gz")
            packed.write_bytes(gzip.compress(trace.read_bytes(), 6))
            tar.add(packed, f"{job.name}-{packed.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, required=True, help="jobs for exactly so many GPUs")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds in all")
    parser.add_argument("--only", help="these jobs, comma-separated, in this order")
    parser.add_argument("--no-traces", action="store_true")
    parser.add_argument("--led", metavar="MODEL", help="and each once more, led by the first GPU")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the job's processes end with this one
    begin, where, failed = time.monotonic(), machine(), 0
    make_assets()
    chosen = [job for job in JOBS if job.gpus == options.gpus]
    if options.only:
        by_name = {job.name: job for job in chosen}
        chosen = [by_name[name] for name in options.only.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        for number, job in enumerate(chosen):
            left = options.budget - (time.monotonic() - begin)
            if left < job.seconds / 2:  # `seconds` is about twice what a job takes
                print(f"left out, no time: {job.name}", flush=True)
                continue
            trace = None if options.no_traces else Path(scratch, job.name)
            if trace is not None:
                trace.mkdir()
            for led in (None, options.led) if options.led else (None,):
                entry, text = measure(job, None if led else trace, 29500 + number, led)
                with (options.out / "real.jsonl").open("a") as stream:
                    stream.write(json.dumps(entry | where) + "\n")
                with (options.out / "real.log").open("a") as stream:
                    stream.write(f"==== {name(entry)}\n{text[-KEPT_LOG:]}\n")
                show(entry, time.monotonic() - begin)
                failed += "error" in entry
            if trace is not None:
                keep_traces(job, trace, options.out / "traces.tar")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
