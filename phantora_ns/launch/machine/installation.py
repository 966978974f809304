"""What this installation and the job's torch consist of: our C parts, libzmq, torch's libraries.

Why it exists: the launcher and the doctor look for the same files and give the same cure when one
is missing. Rule: nothing is imported in order to be found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from phantora_ns.cures import cure_of
from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine.own_python import own_path
from phantora_ns.launch.machine.scripts import interpreter

PACKAGE = Path(__file__).resolve().parents[2]
LIBRARIES = PACKAGE / "lib"
SANDBOX = LIBRARIES / "phantora-sandbox"
INTERCEPTOR = LIBRARIES / "libphantora.so"
LEADER_LIBRARY = LIBRARIES / "libphantora-leader.so"
CUDA_NAMES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so")
_WHERE = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin or '' if s else '')"
_ASK_S = 20.0  # for Python to start on a busy machine


def find_libzmq() -> Path:
    """The libzmq that the pyzmq wheel carries. Raises LaunchError when there is none."""
    found = PathFinder.find_spec("zmq", own_path())  # not imported: only where it lies matters
    if found is None or found.origin is None:
        raise LaunchError(f"pyzmq is not installed; for {sys.executable}; pip install pyzmq")
    folder = Path(found.origin).resolve().parent
    for pattern in (folder.parent / "pyzmq.libs", folder / ".libs", folder):
        for candidate in sorted(pattern.glob("libzmq*.so*")):
            return candidate
    raise LaunchError(
        f"the pyzmq in {folder} carries no libzmq; beside it; install the wheel: pip install --force-reinstall "
        "--only-binary :all: pyzmq"
    )


def find_torch(program: str | None, words: Sequence[str] = ()) -> Path | None:
    """The torch package that a job imports, as far as its command tells. None without any.

    It is that of the Python environment of `program`, or of a program among the other `words` of
    the command (numactl python ...); else that of PYTHONPATH; else, for a shell script, that of
    torchrun or Python on PATH; and last ours.
    """
    others = (shutil.which(word) for word in words[1:])
    for named in filter(None, [program, *others]):
        if found := _torch_of(os.path.abspath(named)):
            return found
    theirs = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if found := _search(list(theirs)):
        return found
    for named in filter(None, map(shutil.which, ("torchrun", "python3", "python"))):
        if found := _torch_beside(named):
            return found
    return _search(sys.path)


def _search(path: list[str]) -> Path | None:
    found = PathFinder.find_spec("torch", path)
    return None if found is None or found.origin is None else Path(found.origin).parent


def _torch_beside(program: str) -> Path | None:
    """That of the environment in whose bin/ the program lies."""
    found = Path(program).parent.parent.glob("lib*/python3*/site-packages/torch")
    return next(iter(sorted(found)), None)


def _torch_of(program: str) -> Path | None:
    """That of the environment of a Python or of a Python script. A Python outside of environments
    (the system's) has several folders of packages, so it is asked."""
    if found := _torch_beside(program):
        return found
    try:
        python = interpreter(program)
    except (OSError, IndexError):
        return None
    if not re.fullmatch(r"python(\d+(\.\d+)*)?t?", os.path.basename(python)):
        return None
    return _torch_beside(python) or _ask(python)


def _ask(python: str) -> Path | None:
    try:
        done = subprocess.run(
            [python, "-c", _WHERE], capture_output=True, text=True, timeout=_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(done.stdout.strip()).parent if done.stdout.strip() else None


def find_kernel_info(torch: Path | None, arch: int, run_dir: Path) -> Path | None:
    """The file that tells the interceptor about the parameters of torch's kernels; None without
    torch, or with a torch that has no kernels for NVIDIA's GPUs.

    `arch`: 90 for sm_90. It is made from torch's libraries the first time (seconds) and kept in a
    cache; for a user whose home cannot be written it is made in `run_dir` each time. Raises
    LaunchError when the libraries cannot be read.
    """
    from phantora_ns.kernels.binary.fatbin import (
        TORCH_LIBRARIES,
        FatbinError,
        ensure_kernel_info,
        write_kernel_info,
    )

    if torch is None or not (torch / "lib" / TORCH_LIBRARIES[0]).exists():
        return None
    folder = torch / "lib"
    try:
        try:
            return ensure_kernel_info(folder, arch)
        except OSError:
            path = run_dir / "kernels.bin"
            write_kernel_info(
                [folder / name for name in TORCH_LIBRARIES if (folder / name).exists()], arch, path
            )
            return path
    except (FatbinError, OSError) as error:
        raise LaunchError(
            f"torch's kernels cannot be read: {error}; in {folder}; estimates replace their times"
        ) from None


def cannot_start(what: str, error: OSError) -> str:
    """The line about a process of ours that SANDBOX was to start."""
    cure = cure_of(error, "run make build")
    return f"cannot start {what}: {error.strerror}; {SANDBOX}; {cure}"


def require_built() -> None:
    """Raises LaunchError when the C parts are not there."""
    for path in (SANDBOX, INTERCEPTOR):
        if not path.is_file():
            raise LaunchError(
                f"{path.name} is not built; in {LIBRARIES}; run make build, or pip install . again"
            )


def link_installation(run_dir: Path) -> None:
    """Makes `run_dir` name what the job's processes load: in lib/ our libraries, and the interceptor
    under the names of CUDA's; in startup/ the hook for Python.

    The loader splits LD_PRELOAD at spaces and colons, and Python splits PYTHONPATH at colons. The
    path of an installation may have them, that of a run directory never has (run/rundir.py).
    """
    folder = run_dir / "lib"
    folder.mkdir()
    for name in CUDA_NAMES:
        (folder / name).symlink_to(INTERCEPTOR)
    for library in (INTERCEPTOR, LEADER_LIBRARY):
        (folder / library.name).symlink_to(library)
    (run_dir / "startup").symlink_to(PACKAGE / "startup")
