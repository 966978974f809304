"""What the parts of a step are called, on pages and on the terminal.

Why it exists: one thing has one name wherever it is shown. Rule: the pages' scripts have these words from here
(render.py writes them into the page), and no list of their own.
"""

from __future__ import annotations

from phantora_ns.report.spent import WORDS

LABELS = {
    "compute": WORDS,
    "idle": {
        "host": "idle: the host is behind",
        "queued": "idle: between queued kernels",
        "unknown": "idle: cause not in the trace",
    },
}
"""By group of parts and kind, where a kind's own name says little."""
_BEFORE = {"exposed": "exposed ", "idle": "idle: "}


def label_of(group: str, kind: str) -> str:
    """The words for a part of a step; `labelOf` of the pages says the same."""
    return LABELS.get(group, {}).get(kind) or _BEFORE.get(group, "") + kind
