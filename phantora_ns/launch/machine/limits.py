"""What a number of ranks needs of this machine, before any of it is spent.

Why it exists: too many ranks end late and in strange words: libzmq aborts without a free file
descriptor, and the kernel kills the largest process when memory is full. What must fail is refused;
what may fail is said.
"""

from __future__ import annotations

import resource
from pathlib import Path

import psutil

from phantora_ns.launch.errors import UsageError

FILES_PER_RANK = 3
"""Descriptors of the hub for a client: its connection, its page and that page's lock."""
FILES = 64
"""Descriptors of the hub beside those."""
RANK_BYTES = 420_000_000
"""Memory of a rank beside what it shares with others: FSDP of a 1B model, 32 ranks, torch 2.11. The
largest part is the interpreter with torch."""
WARM_RANK_BYTES = 130_000_000
"""The same with a warm start: what a rank writes."""
_CGROUP = Path("/sys/fs/cgroup")


def require_files(ranks: int) -> None:
    """Raises UsageError when the hub of so many ranks cannot open all the files that it needs."""
    needed = FILES + FILES_PER_RANK * ranks
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"{ranks} ranks need {needed} open files in one process, and this machine allows {hard}; "
            "in ulimit -Hn; raise it, or start fewer ranks"
        )


def memory_remark(ranks: int, warm: bool = False) -> str | None:
    """One line when the ranks are likely to need more memory than is free; None otherwise."""
    each = WARM_RANK_BYTES if warm else RANK_BYTES
    needed, free = ranks * each, free_memory()
    if needed <= free:
        return None
    return (
        f"{ranks} ranks are likely to need more memory than is free: about {needed / 1e9:.0f} GB "
        f"({each / 1e9:.2f} GB each) of {free / 1e9:.0f} GB; on this machine; "
        "the kernel may kill some of them: start fewer, or end other programs"
    )


def free_memory() -> int:
    """Bytes that processes of this one's control group can still take."""
    free = psutil.virtual_memory().available
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no limit of its own, or cgroup v1
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))
