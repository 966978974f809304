"""Runs jobs for real and simulated on the same machine.

    python -m bench.own_host.visit OUT_DIR --gpus 2 [--budget 500] [--lanes 3] [--only NAME,NAME]
        [--truth FOLDER] [--steps N]

Why it exists: hosts of real machines differ by half, so a simulated step of a host-bound job that is
off against a run on another machine says nothing about the simulator. Here one machine does both: first
every job on its GPUs, alone; then every job simulated, with host time `measured` (this machine's own)
and with `auto` (the shipped table's machine). OUT_DIR/results.jsonl gets a line for each run as it
ends; OUT_DIR/MODE-NAME.tar.xz what a first run with `auto` measured of each call site (host.smp), and
what the table knew of it (host.tbl).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.accuracy.measured import TRUTH, Measured, everything
from bench.frameworks.real import machine, run
from bench.own_host.beside import Beside

NAMES = {
    1: ("160m-none-1k", "deepspeed-zero3", "titan-llama", "megatron-local"),
    2: (
        "truth-megatron-pp2",
        "deepspeed-zero3-2",
        "160m-ddp-1k",
        "160m-tp2-1k",
        "truth-160m-fsdp-mbs4",
        "truth-1b-tp2-2k",
        "titan-llama-fsdp2",
    ),
}
MODES = ("measured", "unobserved", "alternating", "auto")
"""`unobserved`: measured, without the observation of operators (docs/environment.md). `alternating`: measured, every
other step without it, and without hollow tensors, whose observers would stay."""
UNOBSERVED = {"unobserved": "1", "alternating": "steps"}
KEPT = ("host.smp", "host.tbl")
LOG_CHARACTERS = 6000
REAL_S, SIMULATED_S = 75, 150
"""Seconds after which a run counts as hung."""


class Results:
    """Lines of results.jsonl, from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock, self.begin = folder, threading.Lock(), time.monotonic()

    def add(self, name: str, how: str, seconds: float, found: dict, log: str) -> None:
        line = {"name": name, "how": how, "wall_s": round(seconds, 1), **found}
        with self.lock:
            with (self.folder / "results.jsonl").open("a") as stream:
                stream.write(json.dumps(line) + "\n")
            with (self.folder / "logs.txt").open("a") as stream:
                stream.write(f"==== {name} {how}\n{log[-LOG_CHARACTERS:]}\n")
            shown = {key: found[key] for key in ("median_s", "error") if key in found}
            print(f"{time.monotonic() - self.begin:6.1f}  {name:24s} {how:9s} {shown}", flush=True)


def outcome(real: Measured, status: int | str, log: str) -> dict:
    """The median step, or what went wrong."""
    try:
        found = real.program.read(log)
    except (ValueError, KeyError, IndexError) as error:
        return {"status": status, "error": f"{type(error).__name__}: {error}"}
    return {
        "status": status,
        "median_s": found.median_s,
        "issue_s": found.issue_s,
        "times": [round(time, 6) for time in found.times_s],
        "peaks": found.peaks,
    }


def run_real(real: Measured, results: Results, port: int, steps: int | None) -> None:
    real.program.prepare()
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--master-port", str(port)),
        *("--nproc-per-node", str(real.gpus), *real.program.words(steps)),
    ]
    extra = dict(real.program.environment())
    with Beside() as beside:
        status, log, seconds = run(command, extra, REAL_S, real.program.folder)
    results.add(real.name, "real", seconds, outcome(real, status, log) | beside.found(), log)


def simulate(real: Measured, mode: str, results: Results, steps: int | None) -> None:
    """One simulated run, with a data folder of its own: it measures anew. Mode `led`: the machine's
    GPU leads."""
    host_time = "measured" if mode in UNOBSERVED else mode
    ours = ["--leaders", "none", "--host-time", host_time] if mode != "led" else []
    if mode == "alternating":
        ours += ["--host-tensors", "real"]
    with tempfile.TemporaryDirectory(prefix="own") as scratch:
        report = Path(scratch, "report.json")
        command = [
            *(sys.executable, "-m", "phantora_ns", *ours),
            *("--quiet", "--keep-run-dir", "--report", str(report)),
            *("torchrun", "--nnodes", "1", "--nproc-per-node", str(real.gpus)),
            *real.program.words(steps),
        ]
        extra = {"XDG_DATA_HOME": scratch, "TMPDIR": scratch, **real.program.environment()}
        if mode in UNOBSERVED:
            extra["PHANTORA_UNOBSERVED"] = UNOBSERVED[mode]
        status, log, seconds = run(command, extra, SIMULATED_S, real.program.folder)
        found = outcome(real, status, log)
        if report.exists():
            said = json.loads(report.read_text())
            found |= {key: said.get(key) for key in ("host_time", "gpu_clock", "kernel_time_share")}
            found["ranks"] = [
                {key: rank.get(key) for key in ("host_cpu_ns", "gpu_busy_ns", "comm_ns")}
                for rank in said.get("ranks", [])
            ]
        for path in Path(scratch).glob("*/run.json"):
            found["host_time_measures"] = json.loads(path.read_text()).get("host_time_measures")
            kept = [path.with_name(name) for name in KEPT if path.with_name(name).exists()]
            if mode == "auto" and kept:
                with tarfile.open(results.folder / f"{mode}-{real.name}.tar.xz", "w:xz") as tar:
                    for one in kept:
                        tar.add(one, one.name)
        results.add(real.name, mode, seconds, found, log)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, required=True, choices=NAMES)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds in all")
    parser.add_argument("--lanes", type=int, default=3, help="simulated runs at once")
    parser.add_argument("--only", help="these jobs, comma-separated")
    parser.add_argument(
        "--modes", default="measured,auto", help=f"of {', '.join(MODES)}; empty: real runs only"
    )
    parser.add_argument("--led", default="", help="jobs that a GPU leads, comma-separated")
    parser.add_argument("--steps", type=int, help="at most so many steps")
    parser.add_argument("--truth", type=Path, default=TRUTH)
    parser.add_argument("--simulate-only", action="store_true", help="where there is no GPU")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    known = everything(options.truth.resolve(), unmeasured=True)
    results = Results(options.out)
    jobs = [known[n] for n in (options.only.split(",") if options.only else NAMES[options.gpus])]

    def late(needed: float) -> bool:
        return time.monotonic() - results.begin > options.budget - needed

    results.add("", "machine", 0, machine() | {"cpu": cpu_name()}, "")
    for number, real in enumerate(jobs):
        if not options.simulate_only and not late(REAL_S / 2):
            run_real(real, results, 29600 + number, options.steps)

    def one(real: Measured, mode: str) -> None:
        if late(SIMULATED_S / 3):
            print(f"left out, no time: {real.name} {mode}", flush=True)
        else:
            simulate(real, mode, results, options.steps)

    with ThreadPoolExecutor(options.lanes) as pool:
        for future in [
            pool.submit(one, real, mode)
            for mode in filter(None, options.modes.split(","))
            for real in jobs
        ]:
            future.result()
    for real in [known[name] for name in options.led.split(",") if name]:
        if not late(SIMULATED_S / 2):
            simulate(real, "led", results, 8)
    return 0


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return subprocess.run(["uname", "-m"], capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
