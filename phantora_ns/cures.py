"""What a user can do about an error of the operating system.

Why it exists: the launcher and the hub meet the same limits and disks, and must give the same advice.
"""

from __future__ import annotations

import errno

_CURES = {
    errno.EMFILE: "raise ulimit -n",
    errno.ENFILE: "raise fs.file-max with sudo sysctl -w",
    errno.EAGAIN: "raise ulimit -u, or end other processes",
    errno.ENOMEM: "raise ulimit -v, or end other programs",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room in your quota",
    errno.EFBIG: "raise ulimit -f",
    errno.EIO: "look into dmesg for what is wrong with the disk",
    errno.EROFS: "make it writable, or choose another place",
}


def cure_of(error: OSError, otherwise: str) -> str:
    """What the user can do about the limit or disk that `error` speaks of; `otherwise` when it is
    neither."""
    return _CURES.get(error.errno or 0, otherwise)
