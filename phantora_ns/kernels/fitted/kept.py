"""Fits that are kept from one run to the next.

Why it exists: to read the shipped database and fit what a job asks for takes seconds, at the start of
every job. The same observations give the same fits, so they are kept in the user's cache folder.
Rules: a folder is named after everything that a fit depends on; what cannot be read is fitted anew, and
what cannot be written is fitted again next time. The files are pickles, so the folder belongs to the user
alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import phantora_ns
from phantora_ns.whole_file import replacing

MOST = 8
"""Folders that are kept: those that were used last."""
_SOURCES = ("kernels", "model")
"""Folders of this package whose code decides a fit."""

Keep = Callable[[str, Callable[[], Any]], Any]
"""(name, make): what is kept under this name, else what `make` returns."""


def make_always(_name: str, make: Callable[[], Any]) -> Any:
    """A `Keep` that keeps nothing."""
    return make()


class KeptFits:
    """Fits of these `databases` in `folder`. `decides`: what else they depend on."""

    def __init__(self, folder: Path, databases: Sequence[Path], *decides: object) -> None:
        self._all, self._databases, self._decides = folder, databases, decides

    def __call__(self, name: str, make: Callable[[], Any]) -> Any:
        """What is kept under this name, else what `make` returns."""
        path = self._folder / (_digest([name]) + ".pickle")
        with contextlib.suppress(Exception):  # unpickling damaged bytes may raise anything
            if self._folder.stat().st_uid == os.getuid():
                found = pickle.loads(path.read_bytes())
                with contextlib.suppress(OSError):  # a folder that may only be read serves as well
                    os.utime(self._folder)
                return found
        made = make()
        with contextlib.suppress(OSError):
            self._make_folder()
            with replacing(path) as scratch:
                scratch.write_bytes(pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
        return made

    @functools.cached_property
    def _folder(self) -> Path:
        import numpy  # the launcher does without

        package = Path(phantora_ns.__file__).parent
        files = [path for name in _SOURCES for path in sorted((package / name).rglob("*.py"))]
        for database in self._databases:  # a recording in progress writes beside it
            files += [database, database.with_name(f"{database.name}-wal")]
        parts = [sys.version, numpy.__version__, *map(repr, self._decides), *map(_identity, files)]
        return self._all / _digest(parts)

    def _make_folder(self) -> None:
        if self._folder.exists():
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = sorted(self._all.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in found[:-MOST]:
            shutil.rmtree(old, ignore_errors=True)


def _identity(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"no {path}"
    return f"{path.resolve()} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]
