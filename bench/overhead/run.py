"""What a run costs: `python bench/overhead/run.py` prints a table for 2, 8 and 16 ranks of FSDP, Llama 1B.

overhead         wall time x cores / CPU time of the ranks' own host work (1.0: the machine did nothing but the job's Python)
messages         to the hub, per rank and step; the cost of starting (one step's run) is subtracted
hub us/message   CPU time of the hub per message
USS MiB          memory that only one rank holds, largest over ranks, just before the job ends

Rule: the job is examples/train_llama.py as a user would start it; what is measured comes from the report and from /proc.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.5


def unique_memory(process, peak):
    """Keeps in `peak` the largest USS seen of each rank below `process` (PID -> bytes) until it ends."""
    while process.poll() is None:
        try:
            children = psutil.Process(process.pid).children(recursive=True)
        except psutil.Error:
            return
        for child in children:
            try:
                if "train_llama.py" in child.cmdline() and "LOCAL_RANK" in child.environ():
                    peak[child.pid] = max(peak.get(child.pid, 0), child.memory_full_info().uss)
            except psutil.Error:
                continue
        time.sleep(POLL_S)


def measure(nodes, gpus, steps, layers):
    """One run: its report, with `uss` (bytes, largest rank) added. Raises SystemExit when the job fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "phantora_ns.cli", "--quiet", "--report", str(report), "torchrun", f"--nnodes={nodes}",
                   f"--nproc-per-node={gpus}", "examples/train_llama.py", "--mode=fsdp", "--size=1b", f"--steps={steps}"]
        process = subprocess.Popen(command + ([f"--layers={layers}"] if layers else []), cwd=ROOT, stdout=subprocess.DEVNULL)
        peak = {}
        watcher = threading.Thread(target=unique_memory, args=(process, peak))
        watcher.start()
        code = process.wait()
        watcher.join()
        if code != 0:
            raise SystemExit(code)
        return {**json.loads(report.read_text()), "uss": max(peak.values(), default=0)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 8, 16])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, help="fewer layers than the model's own 16, for a quick look")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {options.steps} steps; load before: {os.getloadavg()[0]:.1f}")
    print(f"{'ranks':>5} {'wall s':>7} {'host CPU s':>10} {'overhead':>8} {'step':>8} {'messages':>8} {'hub us/msg':>10} {'USS MiB':>7}")
    for ranks in options.ranks:
        nodes, gpus = (2, ranks // 2) if ranks > 2 else (1, ranks)
        first = measure(nodes, gpus, 1, options.layers)
        run = measure(nodes, gpus, options.steps, options.layers)
        host_s = sum(rank["host_cpu_ns"] for rank in run["ranks"]) / 1e9
        per_step = {key: (run[key] - first[key]) / (options.steps - 1) for key in ("messages", "wall_s")}
        print(f"{ranks:5} {run['wall_s']:7.1f} {host_s:10.1f} {run['wall_s'] * cores / host_s:8.2f} {per_step['wall_s']:6.2f} s "
              f"{per_step['messages'] / ranks:8.0f} {run['hub_cpu_ns'] / run['messages'] / 1e3:10.1f} {run['uss'] / 2**20:7.0f}",
              flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
