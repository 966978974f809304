"""`phantora-ns compile-values`: the values library for a torch that no job's command leads to.

Why it exists: a job may start a Python of which the launcher cannot know. Its ranks then name this
command, with the folder of their torch.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from phantora_ns.launch.errors import LaunchError, UsageError, say
from phantora_ns.launch.machine import values_libraries
from phantora_ns.launch.machine.installation import find_torch
from phantora_ns.launch.machine.values_recipe import (
    CannotCompile,
    CompilationFailed,
    Torch,
    read_torch,
)


def compile_values(named: str) -> int:
    """Compiles for the torch that `named` leads to: a Python, torch's folder, or "" for that of
    torchrun on PATH. Returns 0. Raises UsageError, LaunchError."""
    torch = _choose(named)
    library = values_libraries.find(torch.version)
    if library is None:
        try:
            values_libraries.compile_for(torch, None)
        except CompilationFailed as log:
            raise LaunchError(
                f"the values library for torch {torch.version} does not compile; see {log}; "
                "another compiler may do: CXX=..."
            ) from None
        except (CannotCompile, OSError) as reason:
            raise LaunchError(
                f"no values library for torch {torch.version}: {reason}; in {torch.folder}; "
                "cure that, then try again"
            ) from None
        library = values_libraries.find(torch.version)
    say(f"the values library for torch {torch.version} is {library}")
    return 0


def _choose(named: str) -> Torch:
    if named and os.path.isdir(named):
        folder = Path(named)
    else:
        program = shutil.which(named or "torchrun")
        if named and program is None:
            raise UsageError(
                f"{named} is neither a Python nor torch's folder; in the command; name one"
            )
        found = find_torch(program)
        if found is None:
            raise UsageError(f"{named or 'torchrun'} has no torch; in the command; name its Python")
        folder = found
    torch = read_torch(folder)
    if torch is None:
        raise UsageError(f"there is no torch in {folder}; in the command; name its Python")
    return torch
