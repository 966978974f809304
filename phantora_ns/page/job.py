"""`python -m phantora_ns.page.job RUN_DIR SHARE SHARES`: a share of the traces, and their excerpts.

Why it exists: a run with `--html` needs an excerpt of each trace, and the process that wrote the
trace can make it while other processes do the same for other ranks. It prints what trace/job.py
prints. Excerpts go to RUN_DIR/page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from phantora_ns.page.excerpt import excerpt
from phantora_ns.trace.job import write_entries, write_share
from phantora_ns.trace.kineto import TraceError

FOLDER = "page"


def write_excerpts(run_dir: Path, share: int, shares: int) -> Iterator[dict]:
    """As trace/job.py's `write_share`, with the excerpt of every trace that belongs to a rank."""
    folder = Path(json.loads((run_dir / "run.json").read_text())["trace"]["folder"])
    for entry in write_share(run_dir, share, shares):
        if "failed" not in entry and "/" not in entry["file"]:
            try:
                found = excerpt(folder / entry["file"])
                target = run_dir / FOLDER / f"{entry['rank']}.json"
                target.parent.mkdir(exist_ok=True)
                target.write_text(json.dumps(found))
            except (TraceError, OSError) as error:
                entry["not_on_page"] = str(error)
        yield entry


if __name__ == "__main__":
    sys.exit(write_entries(sys.argv[1:], write_excerpts))
