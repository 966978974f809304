"""Which kernel-time databases a run uses, and how files are merged.

Why it exists: times come from files that the user names, from what the user has profiled, and from
what ships with the project, in this order. The launcher, the hub and the command line follow the
same rules.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from phantora_ns.config import load_gpu
from phantora_ns.home import home_folder
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.records import Run, union
from phantora_ns.kernels.database.schema import DatabaseError, reported
from phantora_ns.kernels.database.writer import save, sweep
from phantora_ns.kernels.rates import scaled_from

SHIPPED = Path(str(resources.files("phantora_ns"))) / "data" / "kernels"
SUFFIX = ".sqlite"


def user_folder() -> Path:
    """Where the user's own databases are: `phantora-ns/kernels` under XDG_DATA_HOME (an absolute
    path, as the XDG Base Directory Specification demands; else ~/.local/share)."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (
        (Path(base) if os.path.isabs(base) else home_folder() / ".local" / "share")
        / "phantora-ns"
        / "kernels"
    )


def user_path(gpu: str) -> Path:
    """The user's own database of a GPU model, whether it exists or not."""
    return user_folder() / (gpu + SUFFIX)


def shipped_path(gpu: str) -> Path:
    """The database of a GPU model that ships with the project, whether there is one or not."""
    return SHIPPED / (gpu + SUFFIX)


def paths(gpu: str, extra: Iterable[Path | str] = ()) -> list[Path]:
    """The files to ask for times of a GPU model, in order: `extra` (named by the user: they must
    exist, which opening them tells), the user's own, the shipped one, where there are any."""
    found = [Path(path) for path in extra]
    return found + [
        path
        for path in (user_path(gpu), shipped_path(gpu))
        if _readable(path) and path not in found
    ]


def alike(gpu: str) -> str | None:
    """The GPU model whose times are scaled for what was never measured on a `gpu` (rates.scaled_from).
    Raises ConfigError for an unknown model."""
    return scaled_from(load_gpu(gpu))


def _readable(path: Path) -> bool:
    """Whether there is a file that may be read. The home folder may be another user's."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def find(gpu: str, extra: Iterable[Path | str] = ()) -> list[Database]:
    """The databases of `paths`, open, and after them those of the model that is `alike`.

    Raises DatabaseError when one cannot be read or is of another GPU.
    """
    other = alike(gpu)
    return open_all(paths(gpu, extra) + (paths(other) if other else []), gpu)


def open_all(files: Iterable[Path | str], gpu: str) -> list[Database]:
    """Opens files that are of `gpu`, or of the model that is `alike`.

    Raises DatabaseError when one cannot be read or is of another GPU.
    """
    opened: list[Database] = []
    try:
        for path in files:
            opened.append(Database.open(path))
        for database in opened:
            if database.gpu not in (gpu, alike(gpu)):
                raise DatabaseError(
                    f"{database.path}: holds times of {database.gpu!r}, not of {gpu!r}; "
                    "choose the simulated GPU's file"
                )
    except DatabaseError:
        for database in opened:
            database.close()
        raise
    return opened


def every_path() -> list[Path]:
    """All files of all GPU models: the user's own, then the shipped ones."""
    return [
        path for folder in (user_folder(), SHIPPED) for path in sorted(folder.glob("*" + SUFFIX))
    ]


def merge(out: Path | str, inputs: Iterable[Path | str]) -> list[Run]:
    """Replaces the content of `out` by the union of all inputs' runs (records.union), and returns
    those runs.

    The same runs always make the same file. `out` may be among the inputs. Raises DatabaseError,
    and leaves `out` as it was then.
    """
    out, gpu, contents = Path(out), None, []
    for path in inputs:
        with Database.open(path) as database:
            if gpu not in (None, database.gpu):
                raise DatabaseError(
                    f"{path}: holds times of {database.gpu!r}, the files before it of {gpu!r}; "
                    "merge each GPU's own"
                )
            gpu = database.gpu
            contents.append(database.runs())
    if gpu is None:
        raise DatabaseError(f"{out}: there is nothing to merge; name at least one database")
    runs = union(contents)
    save(out, gpu, runs)
    return runs


def add(out: Path | str, inputs: Iterable[Path | str]) -> list[Run]:
    """Merges the inputs into `out`, which need not exist, nor its folder. Returns all runs that it
    then holds.

    A second process that does the same waits. What one left that was killed while it wrote is deleted. Raises
    DatabaseError.
    """
    out = Path(out)
    with _alone(out):
        with reported(out, "written"):
            sweep(out)
        return merge(out, [*([out] if out.is_file() else []), *inputs])


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """The file is replaced, not changed, so that the lock is on a file beside it."""
    with reported(out, "written"):
        out.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(
            out.with_name(f".{out.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    try:
        with reported(out, "written"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
