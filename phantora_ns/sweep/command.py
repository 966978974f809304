"""`phantora-ns sweep` from words to an exit code.

Why it exists: the command line has no logic of its own. Everything is checked before a run starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora_ns.launch.command.options import RunOptions
from phantora_ns.launch.errors import UsageError
from phantora_ns.sweep.point import points_of
from phantora_ns.sweep.spec import Given, read_spec
from phantora_ns.sweep.sweep_run import SweepOptions, run_sweep

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


def sweep_command(
    asked: SweepWords,
    options: Mapping[str, Any],
    parse: Callable[[Sequence[str]], RunOptions],
    version: str,
) -> int:
    """Runs it; returns the exit code. `options`: those of a run, by name, as far as they were given.
    Raises UsageError, LaunchError."""
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
    points = points_of(spec, parse, version)
    folder = asked.output or (UNNAMED if file is None else file.with_suffix(""))
    return run_sweep(spec, points, SweepOptions(folder, asked.html, asked.jobs, asked.again))
