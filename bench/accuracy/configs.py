"""Reads configs.toml: one list of configurations for the measurement (collect.py) and the
comparison (compare.py).

Why it exists: both sides must run the same flags under the same name, and neither may mix up the
two sets.
"""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETS = ("calibration", "evaluation")


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One training run: `flags` for workload.py on `gpus` GPUs. `seconds`: wall time to set aside
    on real GPUs."""

    name: str
    gpus: int
    flags: str
    set: str
    why: str
    bound: str
    seconds: int
    trace: bool = False

    def arguments(self) -> list[str]:
        """The flags, split as a shell would."""
        return shlex.split(self.flags)


def load(path: Path = HERE / "configs.toml") -> list[Configuration]:
    """All configurations in the file's order. Raises ValueError on an unknown set or bound, or a
    name or step used twice."""
    entries = [Configuration(**entry) for entry in tomllib.loads(path.read_text())["config"]]
    seen: dict[object, str] = {}
    for entry in entries:
        if entry.set not in SETS:
            raise ValueError(f"{path}: {entry.name}: set {entry.set!r} is not one of {SETS}")
        if entry.bound not in ("gpu", "host"):
            raise ValueError(
                f"{path}: {entry.name}: bound {entry.bound!r} is neither 'gpu' nor 'host'"
            )
        for key in (entry.name, (entry.gpus, entry.flags)):
            if key in seen:
                raise ValueError(f"{path}: {entry.name} repeats {seen[key]}")
            seen[key] = entry.name
    return entries
