"""Rows of the comparison, kept as they are made: bench/accuracy/results/DATE.json.

Why it exists: the whole list takes long, so a run that is stopped must go on where it was; but a
row may only be reused if everything that decided it is the same: the code as it ran (compiled parts
included), the kernel times, and the options.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path

from bench.accuracy.configs import HERE, ROOT

SCHEMA = 1


def _digest(paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.relative_to(ROOT)}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def content() -> str:
    """A hash over everything that decides a simulated result: the package with its data and
    compiled parts, the clusters, and the jobs (those of ../shared never change)."""
    files = [
        path
        for folder in ("phantora_ns", "topologies")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    jobs = [HERE / "workload.py", HERE / "models.py", ROOT / "bench/frameworks/jobs.py"]
    examples = (ROOT / "examples" / "frameworks").rglob("*.*")
    scripts = [path for path in sorted(examples) if path.suffix in (".py", ".toml", ".json")]
    return _digest([*files, *jobs, *scripts])


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def new_run(options: dict) -> dict:
    """A run without rows yet. `changed`: whether the checkout differed from the commit."""
    import torch

    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "content": content(),
        "options": options,
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "rows": [],
    }


def read(path: Path) -> list[dict]:
    """The runs of a file. Raises ValueError on another schema."""
    page = json.loads(path.read_text())
    if page["schema"] != SCHEMA:
        raise ValueError(f"{path}: schema {page['schema']}, not {SCHEMA}; move it away")
    return page["runs"]


def finished(folder: Path, run: dict) -> dict[str, dict]:
    """name -> row of earlier runs with the same content and options. Raises ValueError on a file of
    another schema."""
    found: dict[str, dict] = {}
    for path in sorted(folder.glob("*.json")):
        for earlier in read(path):
            if (earlier["content"], earlier["options"]) == (run["content"], run["options"]):
                found |= {row["name"]: row for row in earlier["rows"]}
    return found


def keep(folder: Path, run: dict) -> Path:
    """Writes the run into the file of its date, in place of one with the same content and options;
    returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run['date']}.json"
    others = [
        old
        for old in (read(path) if path.exists() else [])
        if (old["content"], old["options"]) != (run["content"], run["options"])
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"schema": SCHEMA, "runs": [*others, run]}, indent=1) + "\n")
    fresh.replace(path)
    return path
