"""Why it exists: real time that a job loses may change no byte of what it prints and reports. Runs
jobs/unsteady.py many times, whose processes sleep, compute and are stopped at random moments, on a
machine that other processes keep busy, and compares each run with an undisturbed one.

    .venv/bin/python -m tests.reliability.unsteady --runs 50
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from phantora_ns.report.host_part import repeatable
from tests.leftovers import MARK, marked_processes
from tests.reliability.runs import REPEATING

ROOT = Path(__file__).resolve().parents[2]
RANKS, LINES = 3, 27
TIME_OUT_S = 280


class Stopper(threading.Thread):
    """Stops random processes of a job, each for a moment of real time, until `end`."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark
        self._over = threading.Event()
        self.stops = 0

    def run(self) -> None:
        chance = random.Random()
        while not self._over.wait(chance.random() * 0.4):
            ranks = marked_processes(self._mark, "RANK=")
            if not ranks:
                continue
            pid = chance.choice(list(ranks))
            try:
                os.kill(pid, signal.SIGSTOP)
                self._over.wait(chance.random() ** 2 * 0.3)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
            self.stops += 1

    def end(self) -> None:
        self._over.set()
        self.join()


def once(folder: Path, disturbed: bool) -> tuple[list[str], str, int]:
    """(the job's lines, what of the report repeats, how often a process was stopped) of one run.

    Raises RuntimeError when the run failed, or an answer went past a rank that slept.
    """
    report, mark = folder / "report.json", f"{os.getpid()}-{time.monotonic_ns()}"
    stopper = Stopper(mark)
    with tempfile.TemporaryDirectory(dir=folder) as checkpoints:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "phantora_ns.cli", *REPEATING),
                *("--report", str(report), "torchrun", "--nproc-per-node", str(RANKS)),
                *(str(ROOT / "tests/torch/jobs/unsteady.py"), checkpoints),
            ],
            cwd=ROOT,
            env={**os.environ, "DISTURB": str(int(disturbed)), MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if disturbed:
            stopper.start()
        try:
            out, err = process.communicate(timeout=TIME_OUT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
            raise RuntimeError(f"no end within {TIME_OUT_S} s: {err}") from None
        finally:
            if disturbed:
                stopper.end()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {err}")
    told = json.loads(report.read_text())
    if told["answers_past_sleepers"]:
        raise RuntimeError(f"{told['answers_past_sleepers']} answers went past a rank that slept")
    lines = sorted(line for line in out.splitlines() if line.startswith("RESULT "))
    if len(lines) != LINES:
        raise RuntimeError(f"{len(lines)} lines: {out}")
    return lines, json.dumps(repeatable(told)), stopper.stops


def burn() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps `processes` processors busy meanwhile."""
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(processes)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="disturbed runs")
    parser.add_argument("--busy", type=int, default=os.cpu_count(), help="processors kept busy")
    options = parser.parse_args()
    failed = stops = 0
    with tempfile.TemporaryDirectory(prefix="unsteady-") as name:
        folder = Path(name)
        os.environ["XDG_DATA_HOME"] = name  # what the user has measured must not matter
        peaceful = once(folder, disturbed=False)[:2]
        with busy(options.busy):
            for number in range(1, options.runs + 1):
                begin = time.monotonic()
                try:
                    lines, report, stopped = once(folder, disturbed=True)
                except RuntimeError as error:
                    failed += 1
                    print(f"run {number}: {error}", flush=True)
                    continue
                stops += stopped
                equal = (lines, report) == peaceful
                failed += not equal
                print(
                    f"run {number}: {'equal' if equal else 'DIFFERS'}, {stopped} stops, "
                    f"{time.monotonic() - begin:.0f} s, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
                if not equal:
                    print(f"{peaceful}\n{(lines, report)}", flush=True)
    print(f"{options.runs} disturbed runs, {stops} stops: {failed} not equal")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
