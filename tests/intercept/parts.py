"""Compiles parts of the interceptor alone, with stubs for what they call.

Why it exists: a law of one file is tested best without the rest of the library.
"""

import ctypes
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]


def load_part(folder, sources, stubs, flags=()):
    """The library of these `sources` of libintercept and the C text `stubs`, made in `folder`. Each
    folder has a library of its own, with state of its own."""
    (folder / "stubs.c").write_text(stubs)
    include, library = ROOT / "libintercept", folder / "part.so"
    files = [*(include / name for name in sources), folder / "stubs.c"]
    subprocess.run(["cc", *FLAGS, *flags, "-I", include, "-o", library, *files], check=True)
    return ctypes.CDLL(library)
