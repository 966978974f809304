"""What the report says about folding (docs/folding.md).

Why it exists: times of ranks that did not run are as good as the checks that the run made. All of them
are here, and so is the reason when a job was not folded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phantora_ns.model.fold import Fold

REFUSED = "fold/refused"
"""In RUN_DIR: what a rank refused (startup/_phantora_fold.py)."""


def fold_part(
    run_dir: Path, run: dict[str, Any], hub: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The report's `folding`; None when --fold was off."""
    if "fold_asked" not in run:
        return None
    part: dict[str, Any] = {"asked": run["fold_asked"], "not_folded": run["not_folded"]}
    if not run["fold"]:
        return part
    fold = Fold(**run["fold"])
    found = (hub or {}).get("folding") or {}
    return part | {
        "period": fold.period,
        "block": fold.block,
        "witnesses": len(fold.witnesses(0)),
        "running": fold.running,
        "absent": fold.world - fold.running,
        "compared": found.get("compared"),
        "differences": found.get("differences"),
        "answers": found.get("answers"),
        "different_answers": found.get("different_answers"),
        "most_different_ns": found.get("most_different_ns"),
        "answers_past_absent": found.get("answers_past_absent"),
        "refusal": _refused(run_dir) or found.get("refusal"),
    }


def fold_lines(part: dict[str, Any] | None) -> list[str]:
    """The summary's line about it."""
    if part is None:
        return []
    if part["not_folded"]:
        return [f"not folded: {part['not_folded']}"]
    if part["refusal"]:
        # again: what the job's processes say on their way out hides the first
        return [part["refusal"]]
    if part["compared"] is None:
        return []
    return [
        f"folded: {part['running']} ranks ran, and stood for {part['absent']} more; "
        f"{part['compared']} operations compared with {_beside(part['witnesses'])}"
    ]


def _beside(witnesses: int) -> str:
    """Which ranks were compared, for a person."""
    if witnesses > 1:
        return "witnesses"
    return "the first of each class alone: smaller shards of later ranks would not be seen"


def fold_warnings(part: dict[str, Any] | None) -> list[str]:
    """What makes the times of absent ranks approximate."""
    if part is None or not part.get("different_answers"):
        return []
    return [
        f"warning: {part['different_answers']} of {part['answers']} answers to ranks would have been "
        f"different for ranks that did not run, by up to {part['most_different_ns']} ns: their times "
        "are approximate (docs/folding.md)"
    ]


def _refused(run_dir: Path) -> str | None:
    try:
        return (run_dir / REFUSED).read_text() or None
    except OSError:
        return None
