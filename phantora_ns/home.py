"""The user's home folder, and the folder for what can be made again.

Why it exists: a container or a batch system may give a process neither HOME nor an entry in the
table of users. There is then nothing to read and nowhere to keep anything, which every user of the
folder can say in its own words.
"""

from __future__ import annotations

import os
from pathlib import Path

NONE = Path("/proc/no-home-folder")
"""Stands for a home that is not there. Nobody can create it, root included."""


def home_folder() -> Path:
    """The home folder, `NONE` when there is none. A HOME that is empty or relative names none: files
    would go to the current folder, or to /."""
    if not os.path.isabs(os.environ.get("HOME", "/")):
        return NONE
    try:
        return Path.home()
    except RuntimeError:
        return NONE


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/phantora-ns`, by default `~/.cache/phantora-ns` (XDG Base Directory
    Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else home_folder() / ".cache") / "phantora-ns"
