"""How a measured job is started, and how its log is read.

Why it exists: the jobs come from several places (this bench, ../shared/truth, bench/frameworks), and
the comparison sees one form of them. Rule: the simulated command is the measured one; the only thing
that may differ is the number of steps.
"""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.accuracy.configs import ROOT
from bench.frameworks import jobs
from bench.frameworks.real import make_assets, words

RESULT = re.compile(r"RESULT (\{.*\})")
TITAN_WARM_UP = 3
TITAN_ASSETS = ROOT / "build" / "bench-accuracy" / "titan"


class Outcome(NamedTuple):
    """What the log of a run says: the median step in seconds, the host's part of it (None: not
    recorded), [allocated, reserved] of each rank (None: not to the byte), and each step after the
    warm-up, in seconds."""

    median_s: float
    issue_s: float | None
    peaks: list[list[int]] | None
    times_s: list[float]


class Program(Protocol):
    """`steps`: how many were measured. `folder`: where it runs. `packages`: what it imports beside
    torch."""

    steps: int
    folder: Path
    packages: tuple[str, ...]

    def words(self, steps: int | None) -> list[str]:
        """What follows torchrun's own options; at most `steps` steps, half of them warm-up."""
        ...

    def environment(self) -> Mapping[str, str]: ...

    def prepare(self) -> None:
        """Makes what it reads, once."""
        ...

    def read(self, log: str) -> Outcome:
        """Raises ValueError for the log of a run that did not get to its end."""
        ...


def missing(program: Program) -> list[str]:
    """The packages that are not installed here."""
    return [name for name in program.packages if importlib.util.find_spec(name) is None]


@dataclass(frozen=True)
class Script:
    """A script that takes --steps and --warmup and prints a line `RESULT {...}`. Where a flag is
    given twice, the last one counts."""

    script: tuple[str, ...]
    flags: tuple[str, ...]
    steps: int
    folder: Path = ROOT
    packages: tuple[str, ...] = ()

    def words(self, steps: int | None) -> list[str]:
        given = [*self.script, *self.flags]
        if steps is not None and steps < self.steps:
            given += [f"--steps={steps}", f"--warmup={steps // 2}"]
        return given

    def environment(self) -> Mapping[str, str]:
        return {}

    def prepare(self) -> None:
        pass

    def read(self, log: str) -> Outcome:
        found = RESULT.findall(log)
        if not found:
            raise ValueError("no RESULT in the log")
        result = json.loads(found[-1])
        timed = result["times"][result["warmup"] :]
        return Outcome(result["median_s"], result.get("issue_median_s"), peaks_of(result), timed)


def peaks_of(result: Mapping) -> list[list[int]]:
    """Each rank's peaks as a script printed them, of rank 0 alone if it did not gather them."""
    if "peaks" in result:
        return result["peaks"]
    if "peak_alloc_ranks" in result:
        return [
            list(pair)
            for pair in zip(result["peak_alloc_ranks"], result["peak_reserved_ranks"], strict=True)
        ]
    return [[result["peak_alloc"], result["peak_reserved"]]]


@dataclass(frozen=True)
class Titan:
    """TorchTitan with a configuration file; `tokens`: of a step of one rank. Its log gives memory to
    10 MiB."""

    toml: Path
    tokens: int
    steps: int
    folder: Path = TITAN_ASSETS
    packages: tuple[str, ...] = ("torchtitan",)

    def words(self, steps: int | None) -> list[str]:
        kept = min(steps or self.steps, self.steps)
        return [
            *("-m", "torchtitan.train", "--job.config-file", str(self.toml)),
            *("--training.steps", str(kept)),
        ]

    def environment(self) -> Mapping[str, str]:
        return {"HF_HUB_OFFLINE": "1"}

    def prepare(self) -> None:
        if not (self.folder / "assets" / "tokenizer" / "tokenizer.json").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            script = self.toml.with_name("make_assets.py")
            subprocess.run([sys.executable, str(script)], cwd=self.folder, check=True)

    def read(self, log: str) -> Outcome:
        rates = {
            int(found[1]): int(found[3].replace(",", "")) for found in jobs.TITAN.finditer(log)
        }
        kept = [rates[step] for step in sorted(rates)]
        kept = kept[min(TITAN_WARM_UP, len(kept) // 2) :]
        if not kept:
            raise ValueError("no steps in the log")
        timed = [self.tokens / rate for rate in kept]
        return Outcome(statistics.median(timed), None, None, timed)


@dataclass(frozen=True)
class FrameworkJob:
    """A job of bench/frameworks. It always has as many steps as were measured."""

    job: jobs.Job
    steps: int = jobs.STEPS
    folder: Path = ROOT
    packages: tuple[str, ...] = field(default=())

    def words(self, steps: int | None) -> list[str]:
        return words(self.job)[2:]

    def environment(self) -> Mapping[str, str]:
        return jobs.environment(self.job)

    def prepare(self) -> None:
        make_assets()

    def read(self, log: str) -> Outcome:
        found = self.job.read(log)
        peaks = zip(found["peak_allocated"], found["peak_reserved"], strict=True)
        timed = [time / 1e3 for time in found["step_ms"][jobs.TIMED]]
        return Outcome(found["median_ms"] / 1e3, None, [list(pair) for pair in peaks], timed)


MODULES = {"megatron-core": "megatron.core"}
"""Packages whose module has another name."""


def modules(packages: Sequence[str]) -> tuple[str, ...]:
    """The top modules of packages."""
    return tuple(MODULES.get(name, name).partition(".")[0] for name in packages)
