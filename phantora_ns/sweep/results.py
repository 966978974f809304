"""The folder of a sweep's results, which outlives it.

Why it exists: a sweep takes hours and may be ended at any moment, by SIGKILL too. Rule: a point is finished
when its result.json is there, and that is written last and whole. Everything else of a point may be half
written and is made again. The folder of a point has its key as name, so a changed point is another one.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phantora_ns.launch.errors import UsageError
from phantora_ns.sweep.judge import Row
from phantora_ns.sweep.point import Point
from phantora_ns.whole_file import replacing

_RESULT = "result.json"
LOG, REPORT = "log.txt", "report.json"


class Results:
    """The results in `path`. One sweep at a time works in it: it holds a lock until it ends."""

    def __init__(self, path: Path) -> None:
        """Makes the folder. Raises UsageError when it cannot be used."""
        self.path = path
        try:
            (path / "points").mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(
                f"the folder of results cannot be used: {error.strerror}; {path}; choose another by -o"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UsageError(
                f"another sweep works in this folder; {path}; wait for its end, or choose another by -o"
            ) from error

    def close(self) -> None:
        """Lets the next sweep in."""
        os.close(self._lock)

    def folder(self, point: Point) -> Path:
        """Where a point's files are."""
        return self.path / "points" / point.key

    def result(self, point: Point) -> dict[str, Any] | None:
        """The result of a finished point; None when it is to be run."""
        try:
            found: dict[str, Any] = json.loads((self.folder(point) / _RESULT).read_text())
        except (OSError, ValueError):
            return None
        return found

    def begin(self, point: Point) -> Path:
        """An empty folder for the run of a point. Raises OSError."""
        folder = self.folder(point)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def keep(self, point: Point, result: Mapping[str, Any]) -> None:
        """The point is finished. Raises OSError."""
        _write(self.folder(point) / _RESULT, json.dumps(result, indent=1) + "\n")

    def write_table(self, sweep: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """results.json and results.csv. Raises OSError."""
        _write(self.path / "results.json", json.dumps(sweep, indent=1) + "\n")
        axes = sweep["axes"]
        columns = [name for name in Row.__dataclass_fields__ if name != "settings"]
        with replacing(self.path / "results.csv") as scratch:
            with open(scratch, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow([*axes, *columns])
                for row in rows:
                    values = [getattr(row, name) for name in columns]
                    writer.writerow([row.settings.get(axis) for axis in axes] + values)

    def write_page(self, text: str, file: Path) -> None:
        """Raises OSError."""
        _write(file, text)


def _write(path: Path, text: str) -> None:
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")
