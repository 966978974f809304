"""Runs the measured configurations under the emulator, without a GPU, and says how far the simulation is from the truth.

    python bench/accuracy/compare.py [--only NAME,NAME] [--set evaluation] [--gpus 1,2] [--host-time measured] [--out FILE]

Why it exists: the one table that says what the simulator is worth. Real results come from data/results*.jsonl; each
configuration runs with the very flags that were measured. Step time is the median over the steps after the warm-up, real
and simulated alike. Runs whose real steps vary by 3 % or more (standard deviation over median) are summed up apart from the
steady ones. Memory is compared to the byte. Exit status: 0 when every run gave a result, 1 otherwise.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from configs import HERE, SETS, load

STEADY = 0.03  # a real run is steady when its steps' standard deviation is below this part of their median
TIMEOUT_SECONDS = 1800


def real_results(folder: Path) -> dict[str, dict]:
    """name -> the last measurement of it, over all files results*.jsonl in the folder.

    `every_peaks` of an entry lists the peaks of all its measurements: where real runs differ (DDP's first bucket lives until
    NCCL's watchdog, which looks every 100 ms, has seen its all-reduce), each of them is a right answer.
    """
    found: dict[str, dict] = {}
    for path in sorted(folder.glob("results*.jsonl")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            earlier = found.get(entry["name"], {"every_peaks": []})["every_peaks"]
            found[entry["name"]] = {**entry, "every_peaks": [*earlier, entry["result"]["peaks"]]}
    return found


def unequal(measured: list[list[list[int]]], simulated: list[list[int]], index: int) -> tuple[int, int] | None:
    """(rank, bytes too many) of the first rank whose peak no measurement shows; index 0: allocated, 1: reserved."""
    for rank, peaks in enumerate(simulated):
        if peaks[index] not in [peaks_of_run[rank][index] for peaks_of_run in measured]:
            return rank, peaks[index] - measured[-1][rank][index]
    return None


def simulate(entry: dict, flags: list[str], report: Path) -> dict:
    """The workload's own result under the emulator, started with `flags`.

    Raises RuntimeError, with the end of the log, if it gave none.
    """
    with tempfile.TemporaryDirectory() as scratch:
        out, log = Path(scratch, "result"), Path(scratch, "log")
        command = [str(Path(sys.executable).with_name("phantora-ns")), *flags, "--report", str(report),
                   "torchrun", "--nproc-per-node", str(entry["gpus"]), str(HERE / "workload.py"), *entry["flags"].split(),
                   "--out", str(out)]
        with log.open("w") as stream:
            try:
                status = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS).returncode
            except subprocess.TimeoutExpired:
                status = f"none after {TIMEOUT_SECONDS} s"
        if status != 0 or not out.exists():
            raise RuntimeError(f"status {status}: {log.read_text(errors='replace')[-2000:]}")
        return json.loads(out.read_text().splitlines()[-1])


def steady(result: dict) -> bool:
    """True when the real run's steps repeat well enough to be held against a simulation."""
    return result["spread"] < STEADY


def compared(entry: dict, simulated: dict, report: dict) -> dict:
    """One row of the table: times in seconds, error as a part of the real time, memory in bytes of every rank."""
    real = entry["result"]
    return {
        "name": entry["name"], "set": entry["set"], "gpus": entry["gpus"], "real_s": real["median_s"],
        "spread": real["spread"], "simulated_s": simulated["median_s"],
        "error": simulated["median_s"] / real["median_s"] - 1, "steady": steady(real),
        "real_issue_s": real["issue_median_s"], "simulated_issue_s": simulated["issue_median_s"],
        "real_peaks": real["peaks"], "simulated_peaks": simulated["peaks"],
        "allocated_unequal": unequal(entry["every_peaks"], simulated["peaks"], 0),
        "reserved_unequal": unequal(entry["every_peaks"], simulated["peaks"], 1),
        "kernel_time_share": report.get("kernel_time_share"), "wall_s": report.get("wall_s"),
    }


COLUMNS = "{:24s} {:>1s} {:4s} {:>9s} {:>6s} {:>9s} {:>7s} {:>6s} {:>6s} {:>17s} {:>17s}"
HEADER = COLUMNS.format("configuration", "n", "set", "real ms", "spread", "sim. ms", "error", "issue", "error", "peak allocated",
                        "peak reserved")
LEGEND = ("spread: standard deviation of the real steps over their median; issue: the part of the real step that passed until "
          "the host\nhad issued it, and how far the simulated host is from that; peaks: simulated minus real on the first rank "
          "that differs")


def memory_text(difference: tuple[int, int] | None) -> str:
    """"equal", or the first difference and, unless it is rank 0's, its rank."""
    if difference is None:
        return "equal"
    return f"{difference[1]:+,}" + (f" r{difference[0]}" if difference[0] else "")


def row_text(row: dict) -> str:
    """The row for a terminal: real, simulated and error first, then memory."""
    return COLUMNS.format(
        row["name"], str(row["gpus"]), row["set"][:4], f"{row['real_s'] * 1e3:.2f}", f"{row['spread']:.1%}",
        f"{row['simulated_s'] * 1e3:.2f}", f"{row['error']:+.1%}", f"{row['real_issue_s'] / row['real_s']:.0%}",
        f"{row['simulated_issue_s'] / row['real_issue_s'] - 1:+.0%}", memory_text(row["allocated_unequal"]),
        memory_text(row["reserved_unequal"]))


def summary(rows: list[dict]) -> list[str]:
    """Mean and worst error, by set, of the steady runs and of the others; and how many peaks are equal."""
    lines = []
    for name in SETS:
        for word, kept in (("steady", [r for r in rows if r["set"] == name and r["steady"]]),
                           ("varying", [r for r in rows if r["set"] == name and not r["steady"]])):
            if kept:
                errors = [abs(r["error"]) for r in kept]
                lines.append(f"{name}, {word} runs ({len(kept)}): mean absolute error {statistics.mean(errors):.1%}, "
                             f"worst {max(errors):.1%}")
    if rows:
        allocated, reserved = (sum(r[f"{kind}_unequal"] is None for r in rows) for kind in ("allocated", "reserved"))
        lines.append(f"peak memory equal on every rank: allocated {allocated} of {len(rows)}, reserved {reserved} of {len(rows)}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="these configurations, comma-separated")
    parser.add_argument("--set", choices=SETS)
    parser.add_argument("--gpus", help="only runs on these numbers of GPUs, comma-separated")
    parser.add_argument("--host-time", default="measured", choices=["measured", "model", "none"])
    parser.add_argument("--host-scale", help="passed to phantora-ns: multiplies measured host time")
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--out", type=Path, help="append each row to this file as one line of JSON")
    options = parser.parse_args()
    real = real_results(options.data)
    wanted = [c.name for c in load() if c.name in real]
    if options.only:
        wanted = options.only.split(",")
        unknown = [name for name in wanted if name not in real]
        if unknown:
            parser.error(f"not measured: {', '.join(unknown)}; measured: {', '.join(real)}")
    sizes = {int(n) for n in options.gpus.split(",")} if options.gpus else None
    entries = [real[name] for name in wanted if (options.set in (None, real[name]["set"])) and
               (sizes is None or real[name]["gpus"] in sizes)]
    flags = ["--host-time", options.host_time] + (["--host-scale", options.host_scale] if options.host_scale else [])
    rows, failed = [], 0
    print(HEADER, flush=True)
    for entry in entries:
        handle, path = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        try:
            simulated = simulate(entry, flags, Path(path))
            row = compared(entry, simulated, json.loads(Path(path).read_text()))
        except RuntimeError as error:
            failed += 1
            print(f"{entry['name']:24s} {entry['gpus']}  failed: {error}", flush=True)
            continue
        finally:
            os.unlink(path)
        rows.append(row)
        print(row_text(row), flush=True)
        if options.out:
            with options.out.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
    print("\n".join([LEGEND, *summary(rows)]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
