"""The real results that simulations are held against: this bench's own (data/) and the earlier ones
of ../shared/truth.

Why it exists: both come from real H200s, but from different scripts, machines and forms of file;
the comparison sees one form.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tomllib
from pathlib import Path

from bench.accuracy.configs import HERE, ROOT, SETS, load

TRUTH = ROOT.parent / "shared" / "truth"
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


@dataclasses.dataclass(frozen=True)
class Measured:
    """One configuration with its real result.

    `every_peaks`: for each measurement, [allocated, reserved] of each rank that was recorded. Where
    real runs differ, each of them is a right answer. (DDP's first bucket lives until NCCL's
    watchdog, which looks every 100 ms, has seen its all-reduce.) `issue_s` is None when it was not
    recorded; `trace` is the real trace, if there is one. `script` is how torchrun starts it: a path,
    or -m and a module.
    """

    name: str
    set: str
    bound: str
    gpus: int
    script: tuple[str, ...]
    flags: tuple[str, ...]
    steps: int
    warmup: int
    median_s: float
    spread: float
    issue_s: float | None
    every_peaks: tuple
    trace: Path | None


def own_results(folder: Path = HERE / "data") -> dict[str, Measured]:
    """name -> the last measurement of it, over all files results*.jsonl in the folder."""
    configured = {c.name: c for c in load()}
    found: dict[str, Measured] = {}
    for path in sorted(folder.glob("results*.jsonl")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            name, result = entry["name"], entry["result"]
            trace = folder / "traces" / f"{name}.json.xz"
            earlier = found[name].every_peaks if name in found else ()
            found[name] = Measured(
                name,
                entry["set"],
                configured[name].bound if name in configured else "gpu",
                entry["gpus"],
                ("-m", "bench.accuracy.workload"),
                tuple(entry["flags"].split()),
                result["steps"],
                result["warmup"],
                result["median_s"],
                result["spread"],
                result["issue_median_s"],
                (*earlier, result["peaks"]),
                trace if trace.exists() else None,
            )
    return found


def truth_results(
    folder: Path = TRUTH, configs: Path = HERE / "configs.toml"
) -> dict[str, Measured]:
    """The runs of train.jsonl that configs.toml lists, by name; empty when the folder is not there.

    Raises ValueError when the list and the file do not fit together: every run listed once, in a
    known set.
    """
    path = folder / "train.jsonl"
    if not path.exists():
        return {}
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    listed = tomllib.loads(configs.read_text()).get("truth", [])
    found: dict[str, Measured] = {}
    taken: set[int] = set()
    for entry in listed:
        fitting = [
            i
            for i, run in enumerate(runs)
            if all(run[key] == value for key, value in entry["match"].items())
        ]
        if len(fitting) != 1 or fitting[0] in taken or entry["set"] not in SETS:
            raise ValueError(
                f"{configs}: {entry['name']}: needs a known set, and one run of {path} that no other entry names"
            )
        taken.add(fitting[0])
        found[entry["name"]] = _truth(entry, runs[fitting[0]], folder)
    if len(taken) != len(runs):
        raise ValueError(f"{configs}: {len(runs) - len(taken)} runs of {path} are in no set")
    return found


def _truth(entry: dict, run: dict, folder: Path) -> Measured:
    flags = [f"--{key}={run[key]}" for key in TRUTH_FLAGS if run[key] is not None]
    flags += [f"--{key}" for key in TRUTH_SWITCHES if run[key]]
    flags += [f"--steps={run['steps']}", f"--warmup={run['warmup']}"]
    kept = run["times"][run["warmup"] :]
    trace = folder / "fsdp8b.trace.json.gz"
    return Measured(
        entry["name"],
        entry["set"],
        entry["bound"],
        run["world"],
        (str(folder / "train.py"),),
        tuple(flags),
        run["steps"],
        run["warmup"],
        run["median_s"],
        statistics.pstdev(kept) / run["median_s"],
        None,
        ([[run["peak_alloc"], run["peak_reserved"]]],),
        trace if (run["world"], run["size"]) == (8, "8b") and trace.exists() else None,
    )
