"""Why it exists: memory that grows by a little in every step ends a job after a day. Runs a long job
and says what hub and ranks hold, and how many messages a step takes, from mark to mark; and runs many
jobs, one after another and at once.

    .venv/bin/python -m tests.reliability.soak long [--steps 10000] [--bytes N] [--set KEY=VALUE...]
    .venv/bin/python -m tests.reliability.soak many [--jobs 64] [--at-once 4]
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.leftovers import MARK, assert_nothing_left, interfaces, marked_processes
from tests.reliability.runs import HERE, REPEATING, ROOT, repeating

NODES, RANKS_PER_NODE = 2, 8


@dataclass(frozen=True)
class Mark:
    """What a long job holds and has done by `step`. `messages`: since the mark before, per rank and step."""

    step: int
    hub_kib: int
    most_of_a_rank_kib: int
    messages: float
    simulated_ns: int


def hub_of(mark: str) -> int:
    """The hub's process."""
    hubs = [pid for pid, words in marked_processes(mark).items() if "phantora_ns.hub " in words]
    return min(hubs)


def environment(folder: Path, mark: str) -> dict[str, str]:
    """Of a run whose files are in `folder`."""
    folders = {name: str(folder) for name in ("TMPDIR", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "HOME")}
    return {**os.environ, MARK: mark, **folders}


def long(
    folder: Path, steps: int, marks: int, size: int, options: Sequence[str] = ()
) -> list[Mark]:
    """The marks of a job of 16 ranks on two nodes. Raises RuntimeError when it fails."""
    mark = f"soak-{os.getpid()}-{time.monotonic_ns()}"
    job = ["--", sys.executable, str(HERE / "soak_job.py"), str(steps), str(marks), str(size)]
    shape = ["--nnodes", str(NODES), "--gpus-per-node", str(RANKS_PER_NODE)]
    ranks: dict[int, list[list[int]]] = defaultdict(list)
    hub_kib: dict[int, int] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "phantora_ns", *REPEATING, *shape, *options, *job],
        cwd=ROOT,
        env=environment(folder, mark),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            step, *said = map(int, line.split()[1:])
            hub_kib.setdefault(step, 0)
            if not ranks[step]:
                hub_kib[step] = psutil.Process(hub_of(mark)).memory_info().rss // 1024
            ranks[step].append(said)
    if process.returncode or {len(said) for said in ranks.values()} != {NODES * RANKS_PER_NODE}:
        raise RuntimeError(f"exit code {process.returncode}, {len(ranks)} marks")
    made: list[Mark] = []
    before, sent_before = 0, 0
    for step in sorted(ranks):
        sent = sum(messages for _, _, messages, _ in ranks[step])
        made.append(
            Mark(
                step,
                hub_kib[step],
                max(kib for _, kib, _, _ in ranks[step]),
                (sent - sent_before) / (step - before) / len(ranks[step]),
                max(ns for _, _, _, ns in ranks[step]),
            )
        )
        before, sent_before = step, sent
    return made


def many(folder: Path, jobs: int, at_once: int) -> list[str]:
    """What is wrong with `jobs` cheap jobs, `at_once` of them at a time, all equal; and what they leave."""
    mark, wrong = f"soak-{os.getpid()}-{time.monotonic_ns()}", []
    before, results = interfaces(), set()
    running: dict[int, subprocess.Popen] = {}
    for number in range(jobs + at_once):
        oldest = number - at_once
        if oldest in running:
            process = running.pop(oldest)
            out, err = process.communicate()
            report = folder / f"{oldest}.json"
            if process.returncode:
                wrong.append(f"job {oldest}: exit code {process.returncode}: {err}")
                continue
            kept = repeating(json.loads(report.read_text()))
            results.add((tuple(sorted(out.splitlines())), json.dumps(kept)))
            report.unlink()
        if number < jobs:
            words = ["--quiet", *REPEATING, "--gpus-per-node", "2"]
            report = folder / f"{number}.json"
            job = ["--", sys.executable, str(HERE / "job.py"), "8"]
            running[number] = subprocess.Popen(
                [sys.executable, "-m", "phantora_ns", *words, "--report", str(report), *job],
                cwd=ROOT,
                env=environment(folder, mark),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
    if len(results) > 1:
        wrong.append(f"{len(results)} different outputs or reports")
    try:
        assert_nothing_left(mark, folder, before)
    except AssertionError as error:
        wrong.append(f"left: {error}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Long jobs, and many.")
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("long")
    one.add_argument("--steps", type=int, default=10_000)
    one.add_argument("--marks", type=int, default=10)
    one.add_argument("--bytes", type=int, default=8 << 20, help="of each collective")
    one.add_argument("--set", action="append", default=[], help="changes the cluster")
    some = commands.add_parser("many")
    some.add_argument("--jobs", type=int, default=64)
    some.add_argument("--at-once", type=int, default=1)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp")))
        begin = time.monotonic()
        if options.what == "many":
            wrong = many(folder, options.jobs, options.at_once)
            print(*wrong, sep="\n")
            print(f"{options.jobs} jobs, {options.at_once} at once, {len(wrong)} things wrong")
        else:
            words = [word for value in options.set for word in ("--set", value)]
            marks = long(folder, options.steps, options.marks, options.bytes, words)
            print("step  hub MiB  most of a rank MiB  messages per rank and step  simulated s")
            for mark in marks:
                print(
                    f"{mark.step:5}  {mark.hub_kib / 1024:7.1f}  {mark.most_of_a_rank_kib / 1024:18.1f}"
                    f"  {mark.messages:26.3f}  {mark.simulated_ns / 1e9:11.1f}"
                )
            wrong = []
        print(f"{time.monotonic() - begin:.0f} s, load {os.getloadavg()[0]:.1f}")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
