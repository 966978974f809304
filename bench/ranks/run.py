"""What a rank costs to start and to hold: `python -m bench.ranks.run` prints a table over the number
of ranks, with and without a warm start (docs/warm-start.md) and folding (docs/folding.md).

- up s: wall time from the command to the first line that says "step".
- wall s: of the whole run. cpu s: CPU time of all its processes.
- own MiB: memory that one rank alone holds, the mean over the ranks while all of them are there, when it
  was largest: the anonymous pages of /proc/PID/smaps_rollup. (USS counts, beside these, pages of files
  that no other process happens to map at the moment.) PSS GiB: the sum over the ranks, pages that they
  share counted once.
- machine GiB: by how much the machine's available memory fell.
- hub s: CPU time of the hub.

A folded job's processes that only stand by count as ranks.

Rule: the job is started as a user would start it.
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

from bench.rank_processes import looks

ROOT = Path(__file__).resolve().parents[2]
MARK = "BENCH_RANKS_RUN"
POLL_S = 4.0
JOBS = {
    "collective": ["bench/ranks/collective.py"],
    "small": ["examples/train_llama.py", "--size", "debug", "--seq", "512", "--steps", "4"],
    "fsdp": ["examples/train_llama.py", "--size", "1b", "--mode", "fsdp", "--steps", "3"],
    "fsdp-6": ["examples/train_llama.py", "--size", "1b", "--mode", "fsdp", "--steps", "6"],
    "fsdp-8b": ["examples/train_llama.py", "--size", "8b", "--mode", "fsdp", "--steps", "4"],
    "save-8b-dcp": ["bench/ranks/save_8b.py", "--how", "dcp"],
    "save-8b-full": ["bench/ranks/save_8b.py", "--how", "full"],
    "hsdp-8b": ["examples/train_llama.py", "--size", "8b", "--mode", "hsdp", "--steps", "4"],
    "three-d-8b": ["-m", "bench.ranks.three_d", "--steps", "2"],
}


def rollup(pid):
    """Anonymous memory and PSS of a process in bytes."""
    own = pss = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, amount = line.split()[:2]
        own = int(amount) << 10 if name == "Anonymous:" else own
        pss = int(amount) << 10 if name == "Pss:" else pss
    return own, pss


def watch_machine(ended, peaks):
    """Keeps the lowest available memory in `peaks`, until the run has ended."""
    while not ended.wait(0.5):
        peaks["available"] = min(peaks["available"], psutil.virtual_memory().available)


def watch_ranks(ended, mark, ranks, peaks):
    """Keeps the largest mean of the ranks' own memory, and the largest sum of PSS, in `peaks`, until the run has
    ended."""
    for processes in looks(ended, MARK, mark, POLL_S):
        found = []
        for process in processes:
            try:
                found.append(rollup(process.pid))
            except (OSError, ValueError):  # it has ended
                continue
        if len(found) == ranks:  # one that ends writes to all that it frees
            peaks["own"] = max(peaks["own"], sum(own for own, _ in found) / ranks)
        peaks["pss"] = max(peaks["pss"], sum(pss for _, pss in found))


def children_cpu_s(since):
    """CPU time of all child processes that have ended since `since`, an os.times()."""
    now = os.times()
    return now.children_user + now.children_system - since.children_user - since.children_system


def measure(ranks, per_node, job, warm, fold, witnesses):
    """One run as a row of the table. Raises SystemExit when the job fails."""
    nodes = max(1, ranks // per_node)
    with tempfile.NamedTemporaryFile() as report:
        command = [sys.executable, "-m", "phantora_ns.cli", "--quiet", "--warm-start", warm]
        command += ["--host-time", "model", "--fold", fold] if fold else []
        command += ["--fold-witnesses", witnesses] if fold not in ("", "off") else []
        command += ["--report", report.name, "torchrun", "--nnodes", str(nodes)]
        command += ["--nproc-per-node", str(ranks // nodes), *JOBS[job]]
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        before = psutil.virtual_memory().available
        peaks = {"own": 0, "pss": 0, "available": before}
        started, start = os.times(), time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ended = threading.Event()
        watchers = (
            threading.Thread(target=watch_machine, args=(ended, peaks)),
            threading.Thread(target=watch_ranks, args=(ended, mark, ranks, peaks)),
        )
        for watcher in watchers:
            watcher.start()
        up, said = None, []
        for line in process.stdout:
            said.append(line)
            if up is None and line.startswith("step"):
                up = time.monotonic() - start
            if line.startswith("saved"):
                print("#", line, end="", flush=True)
        process.wait()
        wall = time.monotonic() - start
        ended.set()
        for watcher in watchers:
            watcher.join()
        if process.returncode:
            log = Path(tempfile.gettempdir(), f"bench-ranks-{os.getpid()}.log")
            log.write_text(
                "".join(said)
            )  # the first error may be far above the tracebacks of 128 launchers
            raise SystemExit("".join(said[-40:]) + f"all of it: {log}")
        hub_s = json.loads(Path(report.name).read_text())["hub_cpu_ns"] / 1e9
        cpu_s = children_cpu_s(started)
        return (
            f"{ranks:6} {warm:5} {fold or '-':5} {up or 0:7.1f} {wall:7.1f} {cpu_s:7.1f} {peaks['own'] / 2**20:8.0f} "
            f"{peaks['pss'] / 2**30:8.2f} {(before - peaks['available']) / 2**30:11.2f} "
            f"{hub_s:6.1f}"
        )


def main():
    """Prints the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="8,32", help="with commas between them")
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--job", choices=JOBS, default="fsdp")
    parser.add_argument("--warm", default="off,auto", help="with a comma between them")
    parser.add_argument(
        "--fold", default="", help="such as off,auto: with --host-time model and folded so"
    )
    parser.add_argument("--fold-witnesses", default="all", help="with --fold: all or first")
    options = parser.parse_args()
    heads = "ranks warm  fold     up s  wall s   cpu s  own MiB  PSS GiB  machine GiB  hub s"
    print(f"# {options.job}; {heads}")
    for ranks in map(int, options.ranks.split(",")):
        for warm in options.warm.split(","):
            for fold in options.fold.split(","):
                row = measure(
                    ranks, options.per_node, options.job, warm, fold, options.fold_witnesses
                )
                print(row, flush=True)


if __name__ == "__main__":
    main()
