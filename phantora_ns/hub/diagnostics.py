"""Errors and guesses of a run, counted for the report.

Why it exists: no error may be silent, and no client may make the hub grow.
"""

from __future__ import annotations

import sys
from collections import Counter

from phantora_ns.protocol import DiagnosticKind

MAX_TEXTS = 1000
"""Different texts remembered per kind of diagnostic, so that a client cannot grow the hub."""
MAX_TEXT = 4096
"""Characters kept of a text."""


class Diagnostics:
    """Counts of messages and errors, and texts by kind with the number of times that each came."""

    def __init__(self) -> None:
        self.messages = 0
        self.bad_messages = 0
        self.internal_errors = 0
        self.errors: list[str] = []
        """The reasons why clients' requests failed; each text once."""
        self.killed: list[str] = []
        """The ranks that a signal ended, with its name: the first of each start of the job."""
        self.texts: dict[str, Counter[str]] = {
            DiagnosticKind.UNSUPPORTED: Counter(),
            DiagnosticKind.WARNING: Counter(),
            DiagnosticKind.GUESS: Counter(),
        }

    def add(self, kind: str, text: str) -> bool:
        """Counts a text. Returns False when the kind does not exist."""
        counter = self.texts.get(kind)
        if counter is None:
            return False
        text = text[:MAX_TEXT]
        if text in counter or len(counter) < MAX_TEXTS:
            counter[text] += 1
        return True

    def warn(self, text: str) -> None:
        """Counts a warning of the hub's own."""
        self.add(DiagnosticKind.WARNING, text)

    def announce(self, text: str) -> None:
        """Counts a warning of the hub's own, and prints it the first time: the job may not end
        soon."""
        if text not in self.texts[DiagnosticKind.WARNING]:
            print(f"phantora-ns: warning: {text}", file=sys.stderr, flush=True)
        self.warn(text)

    def of(self, kind: str) -> dict[str, int]:
        """The texts of a kind, sorted, with their counts."""
        return dict(sorted(self.texts[kind].items()))

    def said(self, text: str) -> bool:
        """Whether an error with this text has been printed."""
        return text in self.errors

    def error(self, text: str) -> None:
        """Records an error of the job, and prints it the first time."""
        if not self.said(text):
            self.errors.append(text)
            print(f"phantora-ns: {text}", file=sys.stderr, flush=True)
