"""What the generators share: long lists in lines, and the end of a run.

Why it exists: what a generator makes is checked in, so each of them either writes its files or, with
--check, says which ones it would write otherwise.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def wrap(items, width):
    """Texts in lines of at most `width` characters, blanks between them; no text is broken."""
    lines = []
    for item in items:
        if lines and len(lines[-1]) + 1 + len(item) <= width:
            lines[-1] += f" {item}"
        else:
            lines.append(item)
    return lines


def settle(texts, check, command):
    """Writes files (`texts`: contents by path) that are not as they should be, and names them. With
    `check` it writes nothing, and exits with 1 if there are any; `command` is what to run then."""
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is stale: run {command}")
        else:
            path.write_text(texts[path])
            print(f"{path.relative_to(ROOT)}: written")
    if check and stale:
        sys.exit(1)
