"""What a run costs: `python -m bench.overhead.run` prints a table for 2, 8 and 16 ranks of FSDP,
Llama 1B.

- overhead: wall time x cores, divided by the CPU time of the ranks' own host work. 1.0 means that
  the machine did nothing but the job's Python. A run of one step is subtracted, so this is about
  steps alone. "whole" includes the start, whose CPU time is not the job's.
- messages: sent to the hub, per rank and step, a run of one step subtracted as well.
- hub us/message: CPU time of the hub per message.
- USS MiB: memory that only one rank holds, the largest over the ranks.

Rule: the job is examples/train_llama.py as a user would start it. Figures come from the report and
from /proc.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil

from bench.rank_processes import looks

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 1.0
MARK = "BENCH_OVERHEAD_RUN"


def unique_memory(ended, mark, peak):
    """Keeps the largest USS seen of each rank in `peak` (PID -> bytes), until the run has ended."""
    for processes in looks(ended, MARK, mark, POLL_S):
        for process in processes:
            try:
                uss = process.memory_full_info().uss
            except psutil.Error:  # it has ended
                continue
            peak[process.pid] = max(peak.get(process.pid, 0), uss)


def measure(nodes, gpus, steps, layers, warm):
    """One run: its report, with `uss` (bytes, largest rank) added. Raises SystemExit when the job
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "phantora_ns.cli",
            "--quiet",
            "--host-time",
            "measured",  # else a rank is charged what a record says, and not its CPU time
            "--warm-start",
            warm,
            "--report",
            str(report),
            "torchrun",
            f"--nnodes={nodes}",
            f"--nproc-per-node={gpus}",
            "examples/train_llama.py",
            "--mode=fsdp",
            "--size=1b",
            f"--steps={steps}",
        ]
        process = subprocess.Popen(
            command + ([f"--layers={layers}"] if layers else []),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            env={**os.environ, MARK: folder, "OMP_NUM_THREADS": "1"},
        )
        peak, ended = {}, threading.Event()
        watcher = threading.Thread(target=unique_memory, args=(ended, folder, peak))
        watcher.start()
        code = process.wait()
        ended.set()
        watcher.join()
        if code != 0:
            raise SystemExit(code)
        return {**json.loads(report.read_text()), "uss": max(peak.values(), default=0)}


def figures(report):
    """Seconds, and counts over all ranks."""
    return {
        "wall": report["wall_s"],
        "host": sum(rank["host_cpu_ns"] for rank in report["ranks"]) / 1e9,
        "messages": report["messages"],
        "hub": report["hub_cpu_ns"] / 1e9,
        "uss": report["uss"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 8, 16])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--layers", type=int, help="fewer layers than the model's own 16, for a quick look"
    )
    parser.add_argument("--warm", choices=("off", "auto"), default="off")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(f"{cores} cores, {options.steps} steps; load before: {load:.1f}")
    if load > cores / 4:
        print(
            "warning: others use this machine; the wall times below say more of them than of us",
            file=sys.stderr,
        )
    print(
        "ranks  wall s  wall s/step  host CPU s/step  overhead  whole  messages  hub us/message  USS MiB"
    )
    for ranks in options.ranks:
        nodes = max(2, ranks // 8) if ranks > 2 else 1
        first, run = (
            figures(measure(nodes, ranks // nodes, steps, options.layers, options.warm))
            for steps in (1, options.steps)
        )
        wall, host, messages, hub = (
            (run[key] - first[key]) / (options.steps - 1)
            for key in ("wall", "host", "messages", "hub")
        )
        print(
            f"{ranks:5} {run['wall']:7.1f} {wall:12.2f} {host:16.2f} {wall * cores / host:9.2f} "
            f"{run['wall'] * cores / run['host']:6.2f} {messages / ranks:9.0f} {hub / messages * 1e6:15.1f} "
            f"{run['uss'] / 2**20:8.0f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
