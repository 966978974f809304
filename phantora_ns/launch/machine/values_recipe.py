"""Compiles the values library (libintercept/values) for one torch.

Why it exists: the library is C++ against torch's headers, so each version of torch needs its own.
`make values` compiles it for the torch of a Python, and the launcher for the torch of a job that has
none. Both run this file, so there is one recipe. Rule: it imports only the standard library, because
make runs it with a Python that may have nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PACKAGE = Path(__file__).resolve().parents[2]
_COMPILERS = ("c++", "g++", "clang++")
_UNIT = "values/unity.cpp"
# of the core, beside the values library's own sources
_HEADERS = ("base/protocol.gen.h", "work/values_start.h")
_VERSION = re.compile(r"^__version__ = '([^'/\s]+)'", re.MULTILINE)
# what ATen's own check asks for: 201703, 202002
_ASKED = re.compile(r"__cplusplus < 20(\d\d)\d\dL")
_NEWEST_STANDARD = "20"
# AT_PER_OPERATOR_HEADERS: a header for each operator instead of one for all. torch's headers are
# system headers, so that their warnings are not shown. No -g: it doubles the time, and makes 11 MB
# of half a megabyte.
_FLAGS = "-DNDEBUG -DAT_PER_OPERATOR_HEADERS -fPIC -fvisibility=hidden -pthread -iquote .".split()
OPTIMISED = ("-O2",)


class CannotCompile(Exception):
    """Something that the compilation needs is missing; says what."""


class CompilationFailed(Exception):
    """The compiler failed; its messages went to the log."""


@dataclass(frozen=True)
class Torch:
    """An installed torch: its package's folder, and its version with the tag of its build
    ("2.11.0+cu130")."""

    folder: Path
    version: str


def read_torch(folder: Path) -> Torch | None:
    """The torch in the package folder `folder`; None when it states no version."""
    try:
        found = _VERSION.search((folder / "version.py").read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return Torch(folder.absolute(), found[1]) if found else None


def own_torch() -> Torch | None:
    """The torch that this Python would import. It is not imported: that takes seconds."""
    spec = importlib.util.find_spec("torch")
    return read_torch(Path(spec.origin).parent) if spec and spec.origin else None


def library_name(version: str) -> str:
    """The file name of the library for a torch, as libintercept/work/values_library.c forms it."""
    return f"libphantora-values-{version}.so"


def sources() -> Path:
    """The folder libintercept: in the package when it is installed, beside it in a checkout. Raises
    CannotCompile."""
    for parent in (_PACKAGE, _PACKAGE.parent):
        if (parent / "libintercept" / _UNIT).is_file():
            return parent / "libintercept"
    raise CannotCompile(f"the sources of the values library are not in {_PACKAGE}")


def _source_files() -> list[Path]:
    folder = sources()
    own = [*(folder / "values").glob("*.cpp"), *(folder / "values").glob("*.h")]
    return sorted([*own, *(folder / name for name in _HEADERS)])


def cache_key() -> str:
    """Differs between processors, and between versions of the sources and of this recipe. Raises
    CannotCompile."""
    digest = hashlib.sha256()
    for path in (*_source_files(), Path(__file__)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{platform.machine()}-{digest.hexdigest()[:16]}"


def find_compiler(named: str | None) -> list[str]:
    """The C++ compiler as words: `named` (CXX) or else the usual ones. Raises CannotCompile."""
    words = shlex.split(named or "")
    candidates = [words] if words else [[name] for name in _COMPILERS]
    for candidate in candidates:
        if shutil.which(candidate[0]):
            return candidate
    raise CannotCompile(
        f"no C++ compiler: {shlex.join(candidates[0])} was not found; install g++, or name one in CXX"
    )


def standard(torch: Torch) -> str:
    """The C++ standard that torch's headers ask for, "c++17". Raises CannotCompile without
    headers."""
    try:
        text = (torch.folder / "include" / "ATen" / "ATen.h").read_text()
    except OSError:
        raise CannotCompile(f"torch {torch.version} has no headers in {torch.folder}") from None
    found = _ASKED.search(text)
    return f"c++{found[1] if found else _NEWEST_STANDARD}"


def check(torch: Torch, named: str | None) -> tuple[list[str], str]:
    """The compiler and the standard for `torch`. Raises CannotCompile when one is missing or too
    old for the other."""
    compiler, needed = find_compiler(named), standard(torch)
    sources()
    done = subprocess.run(
        [*compiler, f"-std={needed}", "-fsyntax-only", "-xc++", os.devnull],
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if done.returncode != 0:
        raise CannotCompile(
            f"{shlex.join(compiler)} does not know -std={needed}, which torch {torch.version} "
            "asks for"
        )
    return compiler, needed


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One compilation at a time into `folder`. Where the file system has no locks, two may do the
    same work; the last one stays."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_newest(library: Path, torch: Torch) -> bool:
    """Whether `library` is newer than all that it is made of."""
    inputs = [*_source_files(), Path(__file__), torch.folder / "version.py"]
    try:
        made = library.stat().st_mtime_ns
        return all(path.stat().st_mtime_ns < made for path in inputs)
    except OSError:
        return False


def compile_library(
    torch: Torch,
    into: Path,
    work: Path,
    *,
    current: Callable[[Path, Torch], bool] = is_newest,
    compiler: str | None = None,
    flags: Sequence[str] = OPTIMISED,
    link_flags: Sequence[str] = (),
    log: IO[str] | None = None,
    shown: int = 0,
) -> Path:
    """Compiles the library for `torch` into the folder `into`, and returns its path. Does nothing
    when the one that is there is `current`.

    `work`: a folder for the object. `log` gets the compiler's messages; None: stderr. `shown`: 1
    prints what is made, 2 the commands. The library appears whole or not at all. Raises
    CannotCompile, CompilationFailed, OSError.
    """
    words, needed = check(torch, compiler)
    library = into / library_name(torch.version)
    with _locked(into):
        if current(library, torch):
            return library
        unit, new = work / f"{library.stem}.o", into / f".{library.name}.{os.getpid()}"
        include = torch.folder / "include"
        headers = [f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}"]
        steps = (
            ("CXX", unit, [f"-std={needed}", *flags, *_FLAGS, *headers, "-c", _UNIT]),
            ("LINK", library, [*link_flags, "-shared", "-pthread", str(unit.absolute())]
             + [f"-L{torch.folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ldl"]),
        )  # fmt: skip
        try:
            for (what, result, arguments), output in zip(steps, (unit, new)):
                command = [*words, *arguments, "-o", str(output.absolute())]
                if shown:
                    print(shlex.join(command) if shown > 1 else f"  {what:7} {result}", flush=True)
                if subprocess.run(command, cwd=sources(), stdout=log, stderr=log).returncode != 0:
                    raise CompilationFailed
            new.chmod(0o755)  # whatever the umask: what others can write is not used
            os.replace(new, library)
        finally:
            with contextlib.suppress(OSError):
                new.unlink()
    return library


def _left_out(reason: object) -> None:
    print(f"phantora-ns: the values library is left out ({reason}).", file=sys.stderr)
    print(
        "phantora-ns: jobs run, but what GPU operators compute reads as zero; object collectives "
        "will fail.",
        file=sys.stderr,
    )


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compiles the values library for one torch.")
    parser.add_argument("--torch", type=Path, help="the package's folder [default: this Python's]")
    parser.add_argument("--into", type=Path, required=True, help="the folder for the library")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the object")
    parser.add_argument("--cxx", help="the C++ compiler [default: c++, g++ or clang++]")
    parser.add_argument("--flags", default=shlex.join(OPTIMISED))
    parser.add_argument("--link-flags", default="")
    parser.add_argument("--shown", type=int, default=1)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """What make runs: a missing compiler or torch is a notice, a failed compilation an error."""
    options = _parse(arguments)
    torch = read_torch(options.torch) if options.torch else own_torch()
    try:
        if torch is None:
            raise CannotCompile(f"no torch in the environment of {sys.executable}")
        compile_library(
            torch,
            options.into,
            options.work,
            compiler=options.cxx,
            flags=shlex.split(options.flags),
            link_flags=shlex.split(options.link_flags),
            shown=options.shown,
        )
    except CannotCompile as reason:
        _left_out(reason)
    except CompilationFailed:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
