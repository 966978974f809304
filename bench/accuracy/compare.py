"""Runs every measured job under the emulator, without a GPU, and says how far the simulation is from
the truth.

    make accuracy    # the whole list, and the table in docs/accuracy.md
    python -m bench.accuracy.compare [--only NAME,NAME] [--set evaluation] [--gpus 1,2]
        [--host-time none] [--steps 6] [--jobs 2]

Why it exists: this is the table that says how accurate the simulator is, on our own scripts and on
released frameworks alike. Each job runs with the flags that were measured. Step time is the median
over the steps after the warm-up, real and simulated alike. Rows are kept as they are made (store.py),
so a run that was stopped goes on where it was. Exit status: 0 when every run gave a result, 1
otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from bench.accuracy import store
from bench.accuracy.breakdown import of_trace
from bench.accuracy.configs import HERE, ROOT, SETS
from bench.accuracy.moved import since_the_last
from bench.accuracy.measured import TRUTH, Measured, everything
from bench.accuracy.programs import Outcome, missing
from bench.accuracy.rows import held_again, row_of
from bench.accuracy.tables import (
    HEADER,
    LEGEND,
    markdown,
    replace_section,
    row_text,
    summary,
)
from phantora_ns.launch.record.host_time import MODES
from phantora_ns.trace.diff import diff
from phantora_ns.trace.kineto import Trace, TraceError, read_trace

TIMEOUT_SECONDS = 1800
DOCS = ROOT / "docs" / "accuracy.md"


def command_of(real: Measured, ours: list[str], steps: int | None, report: Path) -> list[str]:
    """The command that simulates the job: our own flags, then the job as it was measured."""
    return [
        *(sys.executable, "-m", "phantora_ns", "--leaders", "none", *ours, "--quiet"),
        *("--report", str(report)),
        *("torchrun", "--nnodes", "1", "--nproc-per-node", str(real.gpus)),
        *real.program.words(steps),
    ]


def simulate(
    real: Measured, ours: list[str], steps: int | None, traces: Path | None
) -> tuple[Outcome, dict, Trace | None]:
    """(what the job's log says, our report, rank 0's trace of the last timed steps if `traces` is a
    folder).

    Raises RuntimeError, with the end of the log, if there was no result; TraceError for a trace
    that cannot be read.
    """
    program = real.program
    program.prepare()
    with tempfile.TemporaryDirectory() as scratch:
        log, report = Path(scratch, "log"), Path(scratch, "report")
        if traces is not None:
            # Trace the last step but one. Where work outlasts its launches, only the next step
            # tells where this one ends (trace/kineto.py).
            first = max(0, min(steps or real.steps, real.steps) - 2)
            ours = [
                *ours,
                *("--trace", str(traces), "--trace-ranks", "0", "--trace-steps", f"{first}:"),
            ]
        # Hide kernel times that this user has recorded: with them, only this user gets the table.
        environment = os.environ | {"XDG_DATA_HOME": scratch} | program.environment()
        with log.open("w") as stream:
            try:
                status = subprocess.run(
                    command_of(real, ours, steps, report),
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    cwd=program.folder,
                    env=environment,
                    timeout=TIMEOUT_SECONDS,
                ).returncode
            except subprocess.TimeoutExpired:
                status = f"none after {TIMEOUT_SECONDS} s"
        text = log.read_text(errors="replace")
        try:
            result = program.read(text)
        except (ValueError, KeyError, IndexError) as error:
            raise RuntimeError(f"status {status}: {error}: {text[-2000:]}") from None
        if status != 0:
            raise RuntimeError(f"status {status}: {text[-2000:]}")
        files = sorted(traces.glob("*.json*")) if traces is not None else []
        if traces is not None and len(files) != 1:
            raise TraceError(f"{traces}: {len(files)} traces instead of rank 0's")
        return result, json.loads(report.read_text()), read_trace(files[0]) if files else None


def explain(row: dict, real: Path | None, simulated: Trace | None) -> None:
    """Adds the parts of a step by the traces (ns), and where they differ by kernel family, as far
    as there are traces."""

    def parts(trace: Trace) -> dict:
        total, steps = of_trace(trace)
        return {name: value / steps for name, value in asdict(total).items()}

    truth = read_trace(real) if real else None
    row["real_parts"] = parts(truth) if truth else None
    row["simulated_parts"] = parts(simulated) if simulated else None
    if truth and simulated:
        found = diff(truth, simulated, by="family")
        row["difference"] = {
            "real_step_ns": found.real.step_ns,
            "simulated_step_ns": found.simulated.step_ns,
            "total": found.difference_ns / found.real.step_ns,
            "paired_by": found.paired_by,
            "rows": [
                {
                    "label": ("only on one side: " if r.unmatched else "") + r.label,
                    "contribution": r.contribution_ns / found.real.step_ns,
                    "real_ns": r.real.gpu_ns,
                    "simulated_ns": r.simulated.gpu_ns,
                }
                for r in found.rows
            ],
        }


def compare(real: Measured, ours: list[str], options: argparse.Namespace) -> dict:
    """One row of the table. Raises what simulate() does."""
    with tempfile.TemporaryDirectory() as scratch:
        traces = None
        if not options.no_traces:
            traces = Path(options.keep_traces or scratch, real.name)
            traces.mkdir(parents=True, exist_ok=True)
        result, report, trace = simulate(real, ours, options.steps, traces)
    row = row_of(real, result, report, options.steps is None or options.steps >= real.steps)
    explain(row, real.trace, trace)
    return row


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="these configurations, comma-separated")
    parser.add_argument("--set", choices=SETS)
    parser.add_argument("--gpus", help="only runs on these numbers of GPUs, comma-separated")
    parser.add_argument("--host-time", default="auto", choices=MODES)
    parser.add_argument("--host-scale", help="passed to phantora-ns: multiplies measured host time")
    parser.add_argument("--kernels", type=Path, help="kernel-time database, passed to phantora-ns")
    parser.add_argument(
        "--steps",
        type=int,
        help="at most so many steps, half of them warm-up: simulated steps repeat",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=2,
        help="GPU-bound jobs that run at once; host-bound ones run alone",
    )
    parser.add_argument(
        "--no-traces", action="store_true", help="no breakdown of the simulated step"
    )
    parser.add_argument(
        "--keep-traces",
        type=Path,
        help="keep the simulated traces in this folder, one folder per configuration",
    )
    parser.add_argument("--fresh", action="store_true", help="run all anew, finished rows too")
    parser.add_argument(
        "--results", type=Path, default=HERE / "results", help="folder of the results"
    )
    parser.add_argument(
        "--docs",
        nargs="?",
        const="now",
        metavar="SECTION",
        help="write the table into this section of docs/accuracy.md",
    )
    parser.add_argument(
        "--nightly", action="store_true", help="say what moved since the last such run, and why"
    )
    parser.add_argument(
        "--truth", type=Path, default=TRUTH, help="folder with train.py and train.jsonl"
    )
    options = parser.parse_args()
    if options.steps is not None and options.steps < 4:
        parser.error(
            "--steps must be at least 4: DDP replaces its buckets in the third step, and half of them are warm-up"
        )
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    try:
        known = everything(options.truth)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"the measured results cannot be read: {error}")
    if not any(name.startswith("truth-") for name in known):
        print(f"left out: the earlier runs of {options.truth}, which is not there", flush=True)
    options.wanted, options.order = list(known.values()), list(known)
    if options.only:
        unknown = [name for name in options.only.split(",") if name not in known]
        if unknown:
            parser.error(f"not measured: {', '.join(unknown)}; measured: {', '.join(known)}")
        options.wanted = [known[name] for name in options.only.split(",")]
    if options.gpus:
        options.wanted = [m for m in options.wanted if str(m.gpus) in options.gpus.split(",")]
    options.wanted = [m for m in options.wanted if options.set in (None, m.set)]
    options.wanted, lacking = _runnable(options.wanted)
    for name, packages in lacking.items():
        print(f"left out: {name}, without {', '.join(packages)} (make frameworks)", flush=True)
    if not options.wanted:
        parser.error("no measured configuration fits --only, --set and --gpus")
    return options


def _runnable(wanted: list[Measured]) -> tuple[list[Measured], dict[str, list[str]]]:
    """(what can run here, what cannot with what it lacks)."""
    lacking = {real.name: missing(real.program) for real in wanted}
    return (
        [real for real in wanted if not lacking[real.name]],
        {name: packages for name, packages in lacking.items() if packages},
    )


def list_sets(wanted: list[Measured]) -> list[str]:
    """One line for each set: the jobs in it."""
    return [
        f"{kept} ({len(names)}): {', '.join(names)}"
        for kept in SETS
        if (names := [real.name for real in wanted if real.set == kept])
    ]


def _rows(
    wanted: list[Measured], ours: list[str], options: argparse.Namespace
) -> Iterator[tuple[Measured, dict | Exception]]:
    """Each job with its row, or with why there is none, as they end. Host-bound jobs come last, one at
    a time: what is measured of the host should not depend on what runs beside it."""
    alone = [real for real in wanted if real.bound == "host"]
    beside = [real for real in wanted if real.bound != "host"]
    for jobs, batch in ((options.jobs, beside), (1, alone)):
        with ThreadPoolExecutor(jobs) as pool:
            waiting = {pool.submit(compare, real, ours, options): real for real in batch}
            try:
                for done in as_completed(waiting):
                    try:
                        yield waiting[done], done.result()
                    except (RuntimeError, TraceError) as error:
                        yield waiting[done], error
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def main() -> int:
    options = parse()
    print("\n".join(list_sets(options.wanted)), flush=True)
    ours = ["--host-time", options.host_time] + (
        ["--host-scale", options.host_scale] if options.host_scale else []
    )
    kernels = None
    if options.kernels:
        ours += ["--kernels", str(options.kernels)]
        kernels = f"{options.kernels.name} {hashlib.sha256(options.kernels.read_bytes()).hexdigest()[:12]}"
    run = store.new_run(
        {
            "host-time": options.host_time,
            "host-scale": options.host_scale,
            "kernels": kernels,
            "steps": options.steps,
            "traces": None if not options.no_traces else "none",
        }
    )
    earlier = {} if options.fresh else store.finished(options.results, run)
    for real in options.wanted:
        if real.name in earlier:
            earlier[real.name] = held_again(earlier[real.name], real)
    run["rows"] = list(earlier.values())
    print(HEADER, flush=True)
    failed = 0
    todo = []
    for real in options.wanted:
        if real.name in earlier:
            print(row_text(earlier[real.name]), flush=True)
        else:
            todo.append(real)
    for real, result in _rows(todo, ours, options):
        if isinstance(result, Exception):
            failed += 1
            print(f"{real.name:24s} {real.gpus}  failed: {result}", flush=True)
            continue
        run["rows"].append(result)
        store.keep(options.results, run)
        print(row_text(result), flush=True)
    names = {real.name for real in options.wanted}
    run["rows"].sort(key=lambda row: options.order.index(row["name"]))
    print("\n".join([LEGEND, *summary([row for row in run["rows"] if row["name"] in names])]))
    if run["rows"]:
        print(f"kept in {store.keep(options.results, run)}")
        if options.docs:
            replace_section(DOCS, options.docs, markdown(run))
        if options.nightly:
            print("\n".join(since_the_last(options.results, run)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
