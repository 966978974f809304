"""How the launcher speaks to the user, and its two kinds of failure.

Rule: one line, `phantora-ns: WHAT; WHERE; WHAT TO DO`, on stderr. Stdout is the job's.
"""

from __future__ import annotations

import sys

EXIT_USAGE = 2
EXIT_OURS = 70  # EX_SOFTWARE of sysexits.h: a failure of phantora-ns itself, not of the job


class PhantoraError(Exception):
    """What phantora-ns raises. Its text is the line that the command prints."""


class UsageError(PhantoraError):
    """The user asked for something wrong; nothing has been started. Exit code 2."""


class LaunchError(PhantoraError):
    """Something of ours failed; `failed_by` is "launcher" or "hub". Exit code 70."""

    def __init__(self, message: str, failed_by: str = "launcher") -> None:
        super().__init__(message)
        self.failed_by = failed_by


def say(text: str) -> None:
    """Prints one message on stderr. A closed stderr is no failure."""
    try:
        print(f"phantora-ns: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass
