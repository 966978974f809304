"""How the report says that its run was ended by the user, or failed.

Why it exists: a run that somebody ended has the exit code of a failure, and nothing has failed. Everybody
who says how a run ended says it with these words. Rule: a signal that the launcher got is the user's; one
that only the job got is a failure of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {"SIGINT": "Ctrl-C"}


def ended_text(report: Mapping[str, Any]) -> str | None:
    """`ended by Ctrl-C after 5 steps`, by the rank that came farthest; None when the run ended by
    itself."""
    name = report.get("ended_by")
    return None if name is None else f"ended by {_NAMES.get(name, name)} {_when(report)}"


def failed_text(report: Mapping[str, Any]) -> str | None:
    """`the job failed after 5 steps`; None when neither the job nor the hub under it failed. What of ours fails
    after a job that ended well takes nothing from its numbers."""
    by = report.get("failed_by")
    return f"the {by} failed {_when(report)}" if by in ("job", "hub") else None


def _when(report: Mapping[str, Any]) -> str:
    steps = max((rank["steps"] or 0 for rank in report["ranks"]), default=0)
    return f"after {steps} step{'' if steps == 1 else 's'}" if steps else "before the end of a step"
