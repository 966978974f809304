"""Whether programs run with the interceptor in them.

Why it exists: the dynamic loader skips what it cannot preload with no more than a message, and then
a job runs on this machine's own GPUs and clocks. So a run never counts on it: Python's start-up
hook ends a rank that has no interceptor (startup/sitecustomize.py), the doctor tries it, and the
report says when the job's own program cannot take one. What such a program starts may still be
interposed: the environment is handed on.
"""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine.installation import CUDA_NAMES, INTERCEPTOR
from phantora_ns.launch.machine.scripts import interpreter

_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")  # Elf64_Ehdr, elf(5)
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_PT_INTERP = 3
_LOADED = """
import ctypes, sys
own = ctypes.CDLL(None).phantora_elapsed_ns
for name in sys.argv[1:]:
    assert ctypes.CDLL(name).phantora_elapsed_ns
"""
TRY_S = 60.0


def why_not(program: str) -> str | None:
    """Why no library can be preloaded into `program`, in words; None when it can, as far as its
    file tells."""
    try:
        program = interpreter(program)
        with open(program, "rb") as file, open(INTERCEPTOR, "rb") as own:
            start, ours = file.read(_HEADER.size), own.read(_HEADER.size)
            if len(start) < _HEADER.size or not start.startswith(b"\x7fELF"):
                return None
            header, our_header = _HEADER.unpack(start), _HEADER.unpack(ours)
            if (header[1], header[4]) != (our_header[1], our_header[4]):
                return f"{program} is for another processor than the interceptor"
            file.seek(header[7])
            size, count = header[11], header[12]
            segments = [_SEGMENT.unpack_from(file.read(size)) for _ in range(count)]
            loaders = [segment for segment in segments if segment[0] == _PT_INTERP]
            if not loaders:
                return f"{program} is statically linked"
            file.seek(loaders[0][2])
            loader = os.path.basename(file.read(loaders[0][5]).rstrip(b"\0").decode())
            if not loader.startswith("ld-linux"):
                return f"{program} uses another C library than the interceptor ({loader})"
        if _gains_privileges(program):
            return f"{program} gains privileges when it starts (setuid, setgid or capabilities)"
    except (OSError, struct.error, UnicodeDecodeError):
        pass  # whoever executes it will say what is wrong
    return None


def warnings(program: str) -> list[str]:
    """What the report says of the job's own program."""
    reason = why_not(program)
    if reason is None:
        return []
    return [f"{reason}, so it was not interposed; what it started may have been"]


def _gains_privileges(program: str) -> bool:
    status = os.stat(program)
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        return True
    if status.st_mode & stat.S_ISGID and status.st_gid != os.getegid():
        return True
    try:
        return bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def try_preload(environment: dict[str, str]) -> None:
    """Starts Python as a rank would be, with `environment`. Raises LaunchError unless the
    interceptor is in it, and answers for CUDA's libraries."""
    keep = ("LD_PRELOAD", "LD_LIBRARY_PATH")
    command = [sys.executable, "-I", "-S", "-c", _LOADED, *CUDA_NAMES]
    try:
        done = subprocess.run(
            command,
            env={name: environment[name] for name in keep},
            capture_output=True,
            text=True,
            timeout=TRY_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"Python cannot be started with it: {error}; {INTERCEPTOR}") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it failed"])[0]
        raise LaunchError(
            f"the dynamic loader does not load it into {Path(sys.executable).name}: {reason}; "
            f"{environment['LD_PRELOAD']}; run make build, or install phantora-ns again"
        )
