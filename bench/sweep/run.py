"""How long a sweep takes that is killed in its midst: `python -m bench.sweep.run` runs the twelve layouts of
layouts.toml, ends the launcher with SIGKILL while a run is under way, and gives the same command again.

It checks that nothing of the killed sweep is left on the machine, that no finished point was run again, and that
all points are in the result and ended well; and prints the wall time of both parts.

Rule: the sweep is started as a user would start it. Figures come from its folder of results and from /proc.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("layouts.toml")
MARK = "BENCH_SWEEP_RUN"
POLL_S, GONE_S = 0.2, 30.0


def alive(mark):
    """How many processes have `mark` in their environment. Ranks live in namespaces of their own and are not
    our descendants."""
    count = 0
    for process in psutil.process_iter():
        try:
            count += process.environ().get(MARK) == mark
        except psutil.Error:
            continue
    return count


def finished(folder):
    """When each finished point was written, in ns, by its folder's name."""
    return {
        path.parent.name: path.stat().st_mtime_ns for path in folder.glob("points/*/result.json")
    }


def in_the_midst(folder):
    """Whether a point that has no result yet has logged a step."""
    done = finished(folder)
    logs = [log for log in folder.glob("points/*/log.txt") if log.parent.name not in done]
    return any("step   2" in log.read_text(errors="replace") for log in logs)


def start(file, folder, mark):
    return subprocess.Popen(
        [sys.executable, "-m", "phantora_ns.cli", "sweep", str(file), "-o", str(folder)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env={**os.environ, MARK: mark},
    )


def kill_in_the_midst(process, folder, mark, points):
    """Ends the launcher when `points` have a result and a further one is in its steps. Returns the finished
    points."""
    while len(finished(folder)) < points or not in_the_midst(folder):
        if process.poll() is not None:
            raise SystemExit("the sweep ended before it was to be killed")
        time.sleep(POLL_S)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + GONE_S
    while left := alive(mark):
        if time.monotonic() > deadline:
            raise SystemExit(f"{left} processes of the killed sweep are left after {GONE_S:.0f} s")
        time.sleep(POLL_S)
    return finished(folder)


def measure(file, folder, points):
    """Seconds of the killed part and of the rest, the points that had finished when it was killed, and all
    rows. Raises SystemExit when a check fails."""
    mark, begin = uuid.uuid4().hex, time.monotonic()
    kept = kill_in_the_midst(start(file, folder, mark), folder, mark, points)
    killed = time.monotonic()
    code = start(file, folder, mark).wait()
    end = time.monotonic()
    rows = json.loads((folder / "results.json").read_text())
    again = [name for name, at in kept.items() if finished(folder).get(name) != at]
    bad = [row["settings"] for row in rows["points"] if row["state"] != "ok"]
    if code or again or bad or len(rows["points"]) != rows["total"]:
        raise SystemExit(
            f"exit code {code}; run again: {again}; not well: {bad}; {len(rows['points'])} of {rows['total']} rows"
        )
    return killed - begin, end - killed, len(kept), rows["points"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--kill-after", type=int, default=6, metavar="POINTS")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{len(os.sched_getaffinity(0))} cores; load before: {load:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        killed, rest, kept, rows = measure(options.file.resolve(), Path(folder), options.kill_after)
    for row in sorted(rows, key=lambda row: row["number"]):
        print(
            f"{str(row['settings']):32} step {row['step_ns'] / 1e6:7.1f} ms  {row['peak_bytes'] / 2**30:6.2f} GiB  "
            f"took {row['wall_s']:5.1f} s"
        )
    print(
        f"{len(rows)} points: killed after {killed:.0f} s with {kept} finished, none of them run again; the rest took "
        f"{rest:.0f} s; {(killed + rest) / 60:.1f} min in all; load at the end: {os.getloadavg()[0]:.1f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
