"""`phantora-ns sweep` from words to an exit code.

Why it exists: the command line has no logic of its own. Everything is checked before a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.machine.software import own_version
from phantora_ns.sweep.point import Parse, points_of
from phantora_ns.sweep.spec import Given, read_spec
from phantora_ns.sweep.sweep_run import SweepOptions, run_sweep

DASK = "dask"
SUFFIX = ".toml"
UNNAMED = Path("sweep")


@dataclass(frozen=True)
class SweepWords:
    """What the user typed, by the options' names. `words`: a file, or a command."""

    words: tuple[str, ...]
    output: Path | None
    grid: tuple[str, ...]
    where: tuple[str, ...]
    work: str | None
    price: str | None
    jobs: int | None
    again: bool
    html: Path | None
    engine: str
    scheduler: str | None
    quiet: bool = False


def sweep_command(asked: SweepWords, options: Mapping[str, Any], parse: Parse) -> int:
    """Runs it; returns the exit code. `options`: those of a run, by name, as far as they were given.
    Raises UsageError, LaunchError."""
    if (asked.engine == DASK) != (asked.scheduler is not None):
        raise UsageError(
            f"--engine {DASK} and --scheduler belong together; on the command line; give both or neither"
        )
    if not asked.words:
        raise UsageError(
            "nothing to sweep; on the command line; give a TOML file, or --grid and a command"
        )
    file = Path(asked.words[0]) if asked.words[0].endswith(SUFFIX) else None
    command = asked.words if file is None else asked.words[1:]
    if file is None and not asked.grid:
        raise UsageError(
            f"there is nothing to vary; on the command line; add --grid, or give a file (*{SUFFIX})"
        )
    given = Given(command, asked.grid, asked.where, asked.work, asked.price, options)
    spec = read_spec(file, given)
    points = points_of(spec, parse, own_version())
    folder = asked.output or (UNNAMED if file is None else file.with_suffix(""))
    chosen = SweepOptions(folder, asked.html, asked.jobs, asked.again, asked.scheduler, asked.quiet)
    return run_sweep(spec, points, chosen, parse)
