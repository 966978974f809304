"""What went wrong in a run, or had to be guessed: counted, for the report.

Why it exists: nothing may be wrong silently, and no client may make the hub grow.
"""

from __future__ import annotations

import sys
from collections import Counter

from phantora_ns.protocol import DiagnosticKind

MAX_TEXTS = 1000
"""Different texts remembered per kind of diagnostic, so that a client cannot grow the hub."""


class Diagnostics:
    """Counts of messages and errors, and texts by kind, each with how often it came."""

    def __init__(self) -> None:
        self.messages = 0
        self.bad_messages = 0
        self.internal_errors = 0
        self.errors: list[str] = []
        """Why clients' requests failed, each text once."""
        self.texts: dict[str, Counter[str]] = {
            DiagnosticKind.UNSUPPORTED: Counter(),
            DiagnosticKind.WARNING: Counter(),
            DiagnosticKind.GUESS: Counter(),
        }

    def add(self, kind: str, text: str) -> bool:
        """Counts a text; False when there is no such kind."""
        counter = self.texts.get(kind)
        if counter is None:
            return False
        if text in counter or len(counter) < MAX_TEXTS:
            counter[text] += 1
        return True

    def of(self, kind: str) -> dict[str, int]:
        """The texts of a kind, sorted, with their counts."""
        return dict(sorted(self.texts[kind].items()))

    def error(self, text: str) -> None:
        """Remembers an error of the job, and prints it the first time."""
        if text not in self.errors:
            self.errors.append(text)
            print(f"phantora-ns: {text}", file=sys.stderr, flush=True)
