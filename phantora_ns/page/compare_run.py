"""One comparison from files to lines and a page.

Why it exists: the command line has no logic of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from phantora_ns.page.compare import compare, load
from phantora_ns.page.compare_text import text
from phantora_ns.page.conditions import parse
from phantora_ns.page.render import render_comparison
from phantora_ns.whole_file import replacing


def run_compare(
    files: Sequence[Path], conditions: Sequence[str], html: Path | None, as_json: bool
) -> tuple[list[str], list[str]]:
    """(lines for stdout, conditions that hold). Raises CompareError, OSError."""
    wanted = [parse(one) for one in conditions]
    found = compare([load(path) for path in files])
    if html is not None:
        with replacing(html) as scratch:
            scratch.write_text(render_comparison(found), encoding="utf-8")
    broken = [line for condition in wanted for line in condition.breaks(found)]
    return [json.dumps(found, indent=1)] if as_json else text(found), broken
