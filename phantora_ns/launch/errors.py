"""Why it exists: the one way in which the launcher speaks, and the two ways in which it gives up.

Rule: one line, `phantora-ns: WHAT; WHERE; WHAT TO DO`, on stderr, never on stdout, which is the
job's.
"""

from __future__ import annotations

import sys

EXIT_USAGE = 2
EXIT_OURS = 70  # EX_SOFTWARE of sysexits.h: a failure of phantora-ns itself, not of the job


class UsageError(Exception):
    """The request is wrong; nothing has been started. Exit code 2."""


class LaunchError(Exception):
    """Something of ours failed; `failed_by` is "launcher" or "hub". Exit code 70."""

    def __init__(self, message: str, failed_by: str = "launcher") -> None:
        super().__init__(message)
        self.failed_by = failed_by


def say(text: str) -> None:
    """One message to the user, on stderr. A stderr that is gone is no reason to fail."""
    try:
        print(f"phantora-ns: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass
