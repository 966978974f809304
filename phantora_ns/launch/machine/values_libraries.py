"""The values libraries of this installation and of this user: one for each version of torch.

Why it exists: which torch a rank runs is known only in the rank, so a run gives it a folder with all
libraries that there are (RUN_DIR/lib). They come from the package (`make values`), and from a cache
in which the launcher compiles the one that a job lacks. What is loaded into a job must be the user's
own: a cached library counts only if it belongs to the user and nobody else can write it.

As a program this compiles the library for one torch into the cache; the launcher runs it so, because
it takes long, and a Ctrl-C must end it at any moment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from phantora_ns import home
from phantora_ns.launch.machine import installation
from phantora_ns.launch.machine.values_recipe import (
    CannotCompile,
    CompilationFailed,
    Torch,
    cache_key,
    check,
    compile_library,
    library_name,
    read_torch,
)

OFF = "PHANTORA_COMPILE_VALUES"
"""The variable by which a user turns compilation off: 0."""
_PATTERN = library_name("*")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Where this version's libraries are cached; it need not exist. Raises CannotCompile."""
    return home.cache_folder() / "values" / cache_key()


def _make_cache() -> Path:
    """`cache_folder()`, made and checked. Raises OSError, CannotCompile."""
    folder = cache_folder()
    folder.parents[1].mkdir(parents=True, exist_ok=True)
    for part in (folder.parent, folder):
        part.mkdir(mode=0o700, exist_ok=True)
        status = part.lstat()
        if not stat.S_ISDIR(status.st_mode) or not _is_ours(status):
            raise PermissionError(f"{part} belongs to another user, or others can write it")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written")
    return folder


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _read_ours(path: Path) -> bytes | None:
    """The contents of a cached library; None when there is none, or not one of ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        return file.read() if stat.S_ISREG(status.st_mode) and _is_ours(status) else None


def find(version: str) -> Path | None:
    """The library for a version of torch: the package's, else the cache's; None without any."""
    name = library_name(version)
    if (installation.LIBRARIES / name).is_file():
        return installation.LIBRARIES / name
    try:
        cached = cache_folder() / name
    except CannotCompile:
        return None
    return cached if _read_ours(cached) is not None else None


def obstacle(torch: Torch) -> str | None:
    """Why no library can be compiled for `torch`, in words; None when it can, as far as is known."""
    if os.environ.get(OFF) == "0":
        return f"{OFF}=0 forbids its compilation; `phantora-ns compile-values {torch.folder}` makes one"
    try:
        check(torch, os.environ.get("CXX"))
        log = _failure_log(torch)
    except (CannotCompile, OSError) as reason:
        return str(reason)
    if log.exists():
        return f"its compilation failed ({log}); `phantora-ns compile-values {torch.folder}` tries again"
    return None


def provide(run_dir: Path) -> None:
    """Puts every library into the lib/ of a run, unless it is there. Cached ones are copied: nodes
    need not see the user's cache, and what was checked cannot be exchanged."""
    folder = run_dir / "lib"
    for library in installation.LIBRARIES.glob(_PATTERN):
        with contextlib.suppress(FileExistsError):
            (folder / library.name).symlink_to(library)
    try:
        cached = sorted(cache_folder().glob(_PATTERN))
    except (CannotCompile, OSError):  # no home folder, or one that this user cannot enter
        return
    for library in cached:
        there, contents = folder / library.name, _read_ours(library)
        if contents is not None and not there.exists():
            there.write_bytes(contents)


def serves(run_dir: Path, torch: Torch | None) -> bool:
    """Whether a run has a library for `torch`; of an unknown torch: whether it has any."""
    folder = run_dir / "lib"
    if torch is None:
        return any(folder.glob(_PATTERN))
    return (folder / library_name(torch.version)).exists()


def explain(run_dir: Path, torch: Torch, reason: str) -> None:
    """Leaves for the ranks why they find no library for `torch`."""
    path = run_dir / "lib" / library_name(torch.version)
    path.with_suffix(".txt").write_text(reason + "\n")


def compile_for(torch: Torch, run_dir: Path | None) -> str:
    """Compiles the library for `torch` into the cache; if that cannot be used, into the lib/ of
    `run_dir`. Returns what else is to be said of it. Raises CannotCompile, OSError, and
    CompilationFailed with the path of the compiler's messages."""
    note = ""
    try:
        into = _make_cache()
    except OSError as error:
        if run_dir is None:
            raise
        into, note = run_dir / "lib", f" (for this run only: {_words(error)})"
    with tempfile.TemporaryDirectory(dir=run_dir) as work, open(Path(work) / "log", "w+") as log:
        try:
            compile_library(
                torch,
                into,
                Path(work),
                current=lambda library, _: _read_ours(library) is not None,
                compiler=os.environ.get("CXX"),
                log=log,
            )
        except CompilationFailed:
            kept = _failure_log(torch)
            if note:
                kept = Path(tempfile.mkstemp(prefix="phantora-values-", suffix=".log")[1])
            shutil.copyfile(log.name, kept)
            raise CompilationFailed(kept) from None
    if not note:
        _failure_log(torch).unlink(missing_ok=True)
    return note


def _failure_log(torch: Torch) -> Path:
    """The messages of the compiler that failed; while they are in the cache, no run tries again."""
    return cache_folder() / f"{library_name(torch.version)}.log"


def _words(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def main(arguments: list[str]) -> int:
    """Compiles for the torch in the folder `arguments[0]`, for the run in `arguments[1]`. Prints what
    is to be said of it."""
    torch = read_torch(Path(arguments[0]))
    assert torch is not None
    try:
        print(compile_for(torch, Path(arguments[1])))
    except CannotCompile as reason:
        print(reason)
        return 1
    except CompilationFailed as log:
        print(f"its compilation failed ({log})")
        return 1
    except OSError as error:
        print(_words(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
