"""The real results that simulations are held against: this bench's own (data/), those of
../shared/truth, those of bench/frameworks and those of bench/zoo.

Why it exists: all come from real H200s, but from different scripts, machines and forms of file; the
comparison sees one form. Rule: every real run is in exactly one set, and a job that was measured more
than once is one row, whose band holds the steps of all of its runs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.accuracy.configs import HERE, ROOT, SETS, load
from bench.accuracy.programs import (
    FrameworkJob,
    Program,
    Script,
    Titan,
    modules,
    peaks_of,
)
from bench.frameworks.compare import REAL
from bench.frameworks.jobs import JOBS, TIMED
from bench.zoo.visit import jobs as zoo_jobs

TRUTH = ROOT.parent / "shared" / "truth"
ZOO = ROOT / "bench" / "zoo" / "data" / "h200.jsonl"
HOSTS = ROOT / "bench" / "own_host" / "data" / "hosts.jsonl"
"""Jobs on further machines."""
FILES = ("train.jsonl", "frameworks.jsonl", "two_gpus.jsonl", "one_two.jsonl")
"""The files of real runs there."""
# options of its train.py that take a value
TRUTH_FLAGS = (
    "size",
    "mode",
    "tp",
    "seq",
    "mbs",
    "accum",
    "layers",
)
TRUTH_SWITCHES = ("ac", "compile")
DEEPSPEED_FLAGS = ("zero", "size", "arch", "seq", "mbs", "accum", "clip")
MEGATRON_FLAGS = (
    *("tp", "pp", "vpp", "mbs", "seq", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab"),
    *("num_microbatches", "attn"),
)
FRAMEWORK_SWITCHES = ("ac", "no_overlap", "recompute")


@dataclasses.dataclass(frozen=True)
class Measured:
    """One job with its real result.

    `median_s` is of the last run, or over machines (on_other_hosts); `least_s` and `most_s` are the
    shortest and longest timed step of all of its runs; `spread` is the standard deviation of steps, or of machines,
    over the median. `every_peaks`: for each measurement,
    [allocated, reserved] of each rank that was recorded; empty where peaks were not recorded to the
    byte. Where real runs differ, each of them is a right answer. (DDP's first bucket lives until
    NCCL's watchdog, which looks every 100 ms, has seen its all-reduce.) `issue_s` is None when it was
    not recorded; `trace` is the real trace, if there is one. `runs` are single runs: the median step in seconds, and
    the CPU score in ns that was measured beside it, None where it was not. Empty stands for one run of `median_s`.
    """

    name: str
    set: str
    bound: str
    gpus: int
    program: Program
    median_s: float
    least_s: float
    most_s: float
    spread: float
    issue_s: float | None
    every_peaks: tuple
    trace: Path | None
    runs: tuple[tuple[float, int | None], ...] = ()

    @property
    def steps(self) -> int:
        """How many steps were measured."""
        return self.program.steps


def everything(truth: Path = TRUTH, unmeasured: bool = False) -> dict[str, Measured]:
    """All jobs by name. `unmeasured`: also those under `further` that did not run yet, with NaN as times. Raises
    OSError, ValueError, KeyError."""
    found = own_results() | truth_results(truth) | framework_results() | zoo_results()
    return on_other_hosts(found) | further_results(truth, unmeasured=unmeasured)


def further_results(
    truth: Path = TRUTH,
    results: Path = HOSTS,
    configs: Path = HERE / "configs.toml",
    unmeasured: bool = False,
) -> dict[str, Measured]:
    """The jobs under `further` of configs.toml, all of whose runs are on further machines. Each machine counts once.
    Jobs that did not run yet are left out, or have NaN as times. Raises ValueError for an unknown set."""
    runs = _real_runs(results)
    found = {}
    for entry in tomllib.loads(configs.read_text())["further"]:
        mine = runs.get(entry["name"], [])
        if entry["set"] not in SETS:
            raise ValueError(
                f"{configs}: {entry['name']}: set {entry['set']!r} is not one of {SETS}"
            )
        if not mine and not unmeasured:
            continue
        each = _each_machine(mine) or [math.nan]
        timed = _every_step(mine) or [math.nan]
        flags = tuple(entry["flags"].split())
        script = (*entry["script"][:-1], _below(entry["script"][-1], truth))
        found[entry["name"]] = Measured(
            entry["name"],
            entry["set"],
            entry["bound"],
            entry["gpus"],
            Script(
                script,
                flags,
                int(flags[flags.index("--steps") + 1]),
                packages=tuple(entry.get("packages", ())),
            ),
            statistics.median(each),
            min(timed),
            max(timed),
            statistics.pstdev(each) / statistics.median(each) if mine else 0.0,
            None,
            _peaks(mine),
            None,
            _single(mine),
        )
    return found


def _below(script: str, truth: Path) -> str:
    """A script's path, of one in the folder of real runs."""
    return str(truth / script.removeprefix("truth/")) if script.startswith("truth/") else script


def on_other_hosts(jobs: dict[str, Measured], results: Path = HOSTS) -> dict[str, Measured]:
    """The jobs, with what they took on further machines (bench/own_host). Chips and hosts differ, so a job has
    the median over machines, each of which counts once, a band from the shortest to the longest step on any of
    them, and the peaks of all of them. Its spread is that of its steps on one machine or of the machines' medians,
    whichever is wider."""
    found = dict(jobs)
    for name, runs in _real_runs(results).items():
        if name not in found:
            continue
        real, timed = found[name], _every_step(runs)
        each = [real.median_s, *_each_machine(runs)]
        middle = statistics.median(each)
        found[name] = dataclasses.replace(
            real,
            median_s=middle,
            least_s=min(real.least_s, *timed),
            most_s=max(real.most_s, *timed),
            spread=max(real.spread, statistics.pstdev(each) / middle),
            every_peaks=real.every_peaks and (*real.every_peaks, *_peaks(runs)),
            runs=((real.median_s, None), *_single(runs)),
        )
    return found


def _real_runs(results: Path) -> dict[str, list[dict]]:
    """Those on further machines, by name."""
    found: dict[str, list[dict]] = {}
    for line in results.read_text().splitlines():
        run = json.loads(line)
        if run["how"] == "real":
            found.setdefault(run["name"], []).append(run)
    return found


def _each_machine(runs: Iterable[Mapping]) -> list[float]:
    """The median step of each machine, in seconds."""
    machines: dict[str, list[float]] = {}
    for run in runs:
        machines.setdefault(run["machine"], []).append(run["median_s"])
    return [statistics.median(medians) for medians in machines.values()]


def _single(runs: Iterable[Mapping]) -> tuple[tuple[float, int | None], ...]:
    """Of each run its median step in seconds, and the CPU score beside it."""
    return tuple((run["median_s"], run.get("score_ns")) for run in runs)


def _every_step(runs: Iterable[Mapping]) -> list[float]:
    return [time for run in runs for time in run["times"] or [run["median_s"]]]


def _peaks(runs: Iterable[Mapping]) -> tuple:
    return tuple(run["peaks"] for run in runs if run.get("peaks"))


def own_results(folder: Path = HERE / "data") -> dict[str, Measured]:
    """name -> the last measurement of it, over all files results*.jsonl in the folder."""
    configured = {c.name: c for c in load()}
    found: dict[str, Measured] = {}
    for path in sorted(folder.glob("results*.jsonl")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            name, result = entry["name"], entry["result"]
            trace = folder / "traces" / f"{name}.json.xz"
            earlier = found.get(name)
            timed = result["times"][result["warmup"] :]
            found[name] = Measured(
                name,
                entry["set"],
                configured[name].bound if name in configured else "gpu",
                entry["gpus"],
                Script(
                    ("-m", "bench.accuracy.workload"),
                    tuple(entry["flags"].split()),
                    result["steps"],
                ),
                result["median_s"],
                min([*timed, earlier.least_s] if earlier else timed),
                max([*timed, earlier.most_s] if earlier else timed),
                result["spread"],
                result["issue_median_s"],
                (*(earlier.every_peaks if earlier else ()), result["peaks"]),
                trace if trace.exists() else None,
            )
    return found


def truth_results(
    folder: Path = TRUTH, configs: Path = HERE / "configs.toml"
) -> dict[str, Measured]:
    """The runs of FILES that configs.toml lists, by name; empty when the folder is not there.

    Raises ValueError when the list and the files do not fit together: every run in one entry, every
    entry in a known set and of equal runs.
    """
    paths = [folder / name for name in FILES if (folder / name).exists()]
    runs = [
        json.loads(line) | {"file": path.name}
        for path in paths
        for line in path.read_text().splitlines()
    ]
    listed = tomllib.loads(configs.read_text()).get("truth", []) if runs else []
    found: dict[str, Measured] = {}
    taken: set[int] = set()
    for entry in listed:
        fitting = [i for i, run in enumerate(runs) if _fits(run, entry)]
        if len(fitting) != entry.get("runs", 1) or taken & set(fitting) or entry["set"] not in SETS:
            raise ValueError(
                f"{configs}: {entry['name']}: needs a known set, and as many runs of {folder} as it "
                "says, which no other entry names"
            )
        taken.update(fitting)
        found[entry["name"]] = _truth(entry, [runs[i] for i in fitting], folder)
    if len(taken) != len(runs):
        raise ValueError(f"{configs}: {len(runs) - len(taken)} runs of {folder} are in no set")
    return found


def _fits(run: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Whether a run is of an entry: of its file, with each of its values (or one of a list)."""
    if run["file"] != entry.get("file", FILES[0]):
        return False
    return all(
        run[key] in value if isinstance(value, list) else run[key] == value
        for key, value in entry["match"].items()
    )


def _truth(entry: Mapping[str, Any], runs: list[dict], folder: Path) -> Measured:
    run = runs[-1]
    medians = [one["median_s"] for one in runs]
    timed = [time for one in runs for time in one["times"][one["warmup"] :]]
    peaks = tuple(peaks_of(one) for one in runs if "peak_alloc" in one)
    trace = folder / "fsdp8b.trace.json.gz"
    return Measured(
        entry["name"],
        entry["set"],
        entry["bound"],
        run["world"],
        _program(run, folder),
        statistics.median(medians),
        min(timed),
        max(timed),
        max(statistics.pstdev(one["times"][one["warmup"] :]) / one["median_s"] for one in runs),
        None,
        peaks,
        trace
        if (run["file"], run["world"], run.get("size")) == (FILES[0], 8, "8b") and trace.exists()
        else None,
    )


def _program(run: Mapping[str, Any], folder: Path) -> Program:
    """What was run: the script beside the results, with the flags that they name."""
    frameworks, steps = folder / "frameworks", len(run["times"])
    kind = run.get("framework")
    ending = (f"--steps={steps}", f"--warmup={run['warmup']}")
    if kind == "torchtitan":
        tokens = run["seq"] * run["local_batch_size"] // (run["tp"] * run["pp"])
        return Titan(frameworks / "titan" / run["toml"], tokens, steps)
    if kind == "deepspeed":
        flags = _flags(run, DEEPSPEED_FLAGS, FRAMEWORK_SWITCHES)
        script, packages = "deepspeed_lm.py", ("deepspeed", "transformers")
        return Script((str(frameworks / script),), (*flags, *ending), steps, packages=packages)
    if kind == "megatron-core":
        flags = _flags(run, MEGATRON_FLAGS, FRAMEWORK_SWITCHES)
        return Script(
            (str(frameworks / "megatron_gpt.py"),), (*flags, *ending), steps, packages=("megatron",)
        )
    flags = (
        tuple(run["args"].split()) if "args" in run else _flags(run, TRUTH_FLAGS, TRUTH_SWITCHES)
    )
    return Script((str(folder / "train.py"),), (*flags, *ending), steps)


def _flags(
    run: Mapping[str, Any], named: Iterable[str], switches: Iterable[str]
) -> tuple[str, ...]:
    values = (f"--{key.replace('_', '-')}={run[key]}" for key in named if run[key] is not None)
    return (*values, *(f"--{key.replace('_', '-')}" for key in switches if run.get(key)))


def framework_results(path: Path = REAL) -> dict[str, Measured]:
    """The jobs of bench/frameworks that were measured, by name. All of them are evaluation."""
    by_name = {job.name: job for job in JOBS}
    runs: dict[str, list[dict]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        if "median_ms" in entry:
            runs.setdefault(entry["job"], []).append(entry)
    found = {}
    for name, entries in runs.items():
        job, last = by_name[name], entries[-1]["step_ms"][TIMED]
        every = [time / 1e3 for entry in entries for time in entry["step_ms"][TIMED]]
        peaks = tuple(
            [
                list(pair)
                for pair in zip(entry["peak_allocated"], entry["peak_reserved"], strict=True)
            ]
            for entry in entries
        )
        found[name] = Measured(
            name,
            "evaluation",
            job.bound,
            job.gpus,
            FrameworkJob(job, packages=modules(job.packages)),
            statistics.median(last) / 1e3,
            min(every),
            max(every),
            statistics.pstdev(last) / statistics.median(last),
            None,
            peaks,
            None,
        )
    return found


def zoo_results(path: Path = ZOO) -> dict[str, Measured]:
    """The jobs of bench/zoo that were measured, by name. Those that ran on two machines have the mean of
    the medians, and both as right answers."""
    runs: dict[str, list[dict]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry["how"] == "real":
            runs.setdefault(entry["name"], []).append(entry)
    listed = {job["name"]: job for job in zoo_jobs()}
    found = {}
    for name, entries in runs.items():
        results = [entry["result"] for entry in entries]
        every = [time for one in results for time in one["times"][one["warmup"] :]]
        steps = results[0]["steps"]
        ending = (f"--steps={steps}", f"--warmup={results[0]['warmup']}")
        found[name] = Measured(
            name,
            listed[name]["set"],
            "gpu",
            1,
            Script(
                ("-m", "bench.zoo.train"),
                (*listed[name]["flags"].split(), *ending),
                steps,
                packages=("torchvision", "transformers"),
            ),
            statistics.fmean(one["median_s"] for one in results),
            min(every),
            max(every),
            max(one["spread"] for one in results),
            None,
            tuple(one["peaks"] for one in results),
            None,
        )
    return found
