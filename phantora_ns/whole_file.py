"""Replaces a file whole or not at all.

Why it exists: a reader never sees half a file, and a full disk leaves the old one. The scratch file
beside it has a name of its own: two runs may write one file, and a link that waits under a known
name would be followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The scratch file to write; it takes the place of `path` when the block ends well. Raises
    OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        os.fchmod(handle, _mode_of(path))
        os.close(handle)
        yield Path(name)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _mode_of(path: Path) -> int:
    """The permissions of a file that is replaced; of a new one, those that the umask leaves."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
