"""The report's part about how the job's Pythons started (docs/warm-start.md).

Why it exists: a process that could not start from an image started as usual, which costs time and
memory but changes no result. It is counted with its reason all the same.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

_STARTS = "warm/starts"  # libintercept/warm/start.c
_WARM = "warm"
_AGAIN = "the script sets "
"""A process that had started warm, and then did again without an image, has written two lines."""


def start_part(run_dir: Path) -> dict[str, Any] | None:
    """How many processes started from an image, and how many as usual, by reason; None: no process
    was to start warm."""
    try:
        lines = (run_dir / _STARTS).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    reasons = Counter(line for line in lines if line)
    warm = reasons.pop(_WARM, 0)
    again = sum(count for reason, count in reasons.items() if reason.startswith(_AGAIN))
    return {"warm": warm - again, "plain": dict(reasons)}
