"""What runs a script.

Why it exists: the job's program is often a script (torchrun), and what matters of it is the binary
that the kernel starts: whether a library can be preloaded into it, and which Python it is.
"""

from __future__ import annotations

import os
import shutil

_MAX_SCRIPTS = 4  # as the kernel's BINPRM limit


def interpreter(program: str) -> str:
    """The binary that runs a script; `program` itself when it is none. Raises
    OSError."""
    for _ in range(_MAX_SCRIPTS):
        with open(program, "rb") as file:
            line = file.readline(256)
        if not line.startswith(b"#!"):
            break
        words = os.fsdecode(line[2:]).split()
        program = words[0]
        if os.path.basename(program) == "env":
            named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            program = shutil.which(named[0]) or program if named else program
    return program
