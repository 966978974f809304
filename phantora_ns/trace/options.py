"""The values of `--trace`, `--trace-steps` and `--trace-ranks`, checked; and what `--html` traces.

Why it exists: a run may take hours before its traces are written. So these options are checked before
it starts, by rules that can be tested alone. Errors are `TraceOptionError`; the command line turns
them into usage errors.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "rank-{}.json.gz"
"""One rank's trace. Holistic Trace Analysis needs .json or .gz, and finds the rank inside."""
PAGE_TRACES = "kineto"
"""In the run directory: traces that nobody asked for but the page."""
PAGE_STEPS = 12
PAGE_RANKS = 32
"""What a page (`--html`) traces when nothing else is asked for: so many first steps, and so many
ranks, spread evenly."""
_OURS = re.compile(r"rank-\d+\.json\.gz")


class TraceOptionError(ValueError):
    """An option that makes no sense; the text is WHAT; WHERE; WHAT TO DO."""


@dataclass(frozen=True)
class TraceOptions:
    """Traces go to `folder`; None: they serve the page alone, and go to the run directory. `steps` is
    [first, end); an end of None means all that follow. `ranks` holds inclusive ranges; None means
    all."""

    folder: Path | None
    steps: tuple[int, int | None] | None = None
    ranks: tuple[tuple[int, int], ...] | None = None

    def environment(self) -> dict[str, str]:
        """Environment variables for the job's processes (libintercept/trace/trace_log.c)."""
        env = {"PHANTORA_TRACE": "1"}
        if self.steps is not None:
            env["PHANTORA_TRACE_STEPS"] = (
                f"{self.steps[0]}:{'' if self.steps[1] is None else self.steps[1]}"
            )
        if self.ranks is not None:
            env["PHANTORA_TRACE_RANKS"] = ",".join(f"{first}-{last}" for first, last in self.ranks)
        return env

    def describe(self, run_dir: Path) -> dict:
        """The entry in run.json, for the hub and the writers."""
        folder = self.folder or run_dir / PAGE_TRACES
        return {"folder": str(folder), "steps": self.steps, "ranks": self.ranks}


def parse_steps(text: str) -> tuple[int, int | None]:
    """`3:5` is steps 3 and 4, as a Python slice. `3:` is all from 3 on, `:5` the first five, `3` only
    step 3."""
    match = re.fullmatch(r"(\d{0,9})(:?)(\d{0,9})", text)
    if match is None or not (match[1] or match[3]) or (match[3] and not match[2]):
        raise TraceOptionError(
            f"--trace-steps {text}: not of the form 3:5; on the command line; give FIRST:END, where END is "
            "the first step that is not traced"
        )
    first = int(match[1] or 0)
    end = int(match[3]) if match[3] else None if match[2] else first + 1
    if end is not None and end <= first:
        raise TraceOptionError(
            f"--trace-steps {text} means no step: {end} is not above {first}; on the command line; give "
            "FIRST:END, where END is the first step that is not traced"
        )
    return first, end


def parse_ranks(text: str, world_size: int) -> tuple[tuple[int, int], ...]:
    """`0,8-11` of a job of `world_size` ranks: inclusive ranges in order, overlaps merged."""
    ranges = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None:
            raise TraceOptionError(
                f"--trace-ranks {text}: {part.strip()!r} is no rank; on the command line; give numbers and "
                "ranges, such as 0,8-11"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise TraceOptionError(
                f"--trace-ranks {text}: {part.strip()} is an empty range; on the command line; give the lower "
                "rank first"
            )
        if last >= world_size:
            raise TraceOptionError(
                f"--trace-ranks {text}: there is no rank {last}; the job has ranks 0 to {world_size - 1}; "
                "correct the list"
            )
        ranges.append((first, last))
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def check_options(
    folder: Path | None, steps: str | None, ranks: str | None, world_size: int, page: bool = False
) -> TraceOptions | None:
    """The options as given on the command line; None when nothing is to be traced. `page`: a page
    needs traces as well. Creates no folder. Raises TraceOptionError."""
    if folder is None and page:
        return TraceOptions(
            None,
            (0, PAGE_STEPS) if steps is None else parse_steps(steps),
            _page_ranks(world_size) if ranks is None else parse_ranks(ranks, world_size),
        )
    if folder is None:
        for name, value in (("--trace-steps", steps), ("--trace-ranks", ranks)):
            if value is not None:
                raise TraceOptionError(
                    f"{name} without --trace; on the command line; add --trace DIR, or --html FILE"
                )
        return None
    return TraceOptions(
        _check_folder(folder),
        None if steps is None else parse_steps(steps),
        None if ranks is None else parse_ranks(ranks, world_size),
    )


def _page_ranks(world_size: int) -> tuple[tuple[int, int], ...] | None:
    if world_size <= PAGE_RANKS:
        return None
    ranks = [number * world_size // PAGE_RANKS for number in range(PAGE_RANKS)]
    return tuple((rank, rank) for rank in ranks)


def _check_folder(folder: Path) -> Path:
    folder = Path(os.path.abspath(folder))
    if folder.is_dir():
        if not os.access(folder, os.W_OK | os.X_OK):
            raise TraceOptionError(
                f"--trace: the folder {folder} cannot be written; on the command line; choose another"
            )
        old = next((path for path in sorted(folder.iterdir()) if _OURS.fullmatch(path.name)), None)
        if old is not None:
            raise TraceOptionError(
                f"--trace: there are traces of another run, such as {old.name}; in {folder}; delete them, or "
                "choose another folder"
            )
    elif folder.exists():
        raise TraceOptionError(
            f"--trace: {folder} is not a folder; on the command line; choose another"
        )
    elif not folder.parent.is_dir():
        raise TraceOptionError(
            f"--trace: the folder {folder.parent} does not exist; on the command line; create it or choose "
            "another"
        )
    elif not os.access(folder.parent, os.W_OK | os.X_OK):
        raise TraceOptionError(
            f"--trace: nothing can be made in the folder {folder.parent}; on the command line; choose another"
        )
    return folder
