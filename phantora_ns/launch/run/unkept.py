"""Files that could not be written after a run, said in one line for each cause.

Why it exists: a full disk refuses page, report and recordings alike, and is one thing to mend.
"""

from __future__ import annotations

import errno
import os
import sqlite3

from phantora_ns.cures import cure_of


def system_error(error: BaseException | None) -> OSError | None:
    """The error of the system behind `error`; None when it has another cause."""
    while error is not None:
        if isinstance(error, OSError):
            return error
        if isinstance(error, sqlite3.Error) and error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        error = error.__cause__ or error.__context__
    return None


class Unkept:
    """What was refused so far."""

    def __init__(self) -> None:
        self._refused: dict[int | None, list[tuple[OSError, str, str]]] = {}

    def add(self, error: OSError, file: object, message: str) -> None:
        """`message` says it where nothing else was refused for the same cause."""
        self._refused.setdefault(error.errno, []).append((error, str(file), message))

    def lines(self) -> list[str]:
        """One for each cause, in the order in which causes came."""
        return [self._line(refused) for refused in self._refused.values()]

    @staticmethod
    def _line(refused: list[tuple[OSError, str, str]]) -> str:
        error, _, message = refused[0]
        files = list(dict.fromkeys(file for _, file, _ in refused))
        if len(files) == 1:
            return message
        cure = cure_of(error, "run it again")
        return f"cannot keep the results: {error.strerror}; {', '.join(files)}; {cure}"
