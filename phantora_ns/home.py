"""The user's home folder.

Why it exists: a container or a batch system may give a process neither HOME nor an entry in the
table of users. There is then nothing to read and nowhere to keep anything, which every user of the
folder can say in its own words.
"""

from __future__ import annotations

from pathlib import Path

NONE = Path("/proc/no-home-folder")
"""Stands for a home that is not there. Nobody can create it, root included."""


def home_folder() -> Path:
    """The home folder, `NONE` when there is none."""
    try:
        return Path.home()
    except RuntimeError:
        return NONE
