"""Writes the page of a run from its run directory (`--html`).

Why it exists: the launcher has one call for it, and everything that the page needs from the run
directory is read here. Excerpts were made before, by several processes (job.py).
"""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import Any

from phantora_ns.config.description import read_cluster
from phantora_ns.page.content import content
from phantora_ns.page.job import FOLDER
from phantora_ns.page.render import render
from phantora_ns.whole_file import replacing


def write_page(run_dir: Path, report: dict[str, Any], file: Path) -> None:
    """Writes `file` whole or not at all. Raises OSError, ValueError, KeyError."""
    run = json.loads((run_dir / "run.json").read_text())
    excerpts = {
        int(path.stem): json.loads(path.read_text()) for path in (run_dir / FOLDER).glob("*.json")
    }
    found = content(report, read_cluster(run_dir), run["command"], dict(sorted(excerpts.items())))
    text = render(found, title(run["command"], report["world_size"]))
    if file.exists() and not file.is_file():  # a pipe or a terminal
        file.write_text(text, encoding="utf-8")
        return
    with replacing(file) as scratch:
        scratch.write_text(text, encoding="utf-8")


def title(command: list[str], gpus: int) -> str:
    """What ran, and on how many GPUs.

    >>> title(["torchrun", "--nproc-per-node", "8", "examples/train.py", "--fsdp"], 8)
    'train.py on 8 GPUs'
    """
    script = next((word for word in command if word.endswith(".py")), None)
    if script is None and "-m" in command[:-1]:
        script = command[command.index("-m") + 1]
    name = PurePath(script or command[0]).name
    return f"{name} on {gpus} GPU{'' if gpus == 1 else 's'}"
