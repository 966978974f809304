"""Why it exists: frameworks are released for certain versions of torch, and pip would rather replace
torch than a framework. This script prints pip's arguments for the torch that is installed beside
it; `make frameworks` passes them on.

requirements.txt has what every torch takes, and torch-X.Y.txt what that version of torch takes. A
torch that has no such file gets that of the version before it, and pip chooses the torchvision
that fits.
"""

import importlib.metadata
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


def release(version: str) -> tuple[int, int]:
    """(2, 15) of "2.15.0+cu130"."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def pip_arguments(torch: str, files: list[Path]) -> tuple[list[str], str | None]:
    """pip's arguments beside this version of torch, and what is to be said about them."""
    tested = {release(file.stem.removeprefix("torch-")): file for file in files}
    mine = release(torch)
    chosen = max((version for version in tested if version <= mine), default=min(tested))
    pins = [line for line in tested[chosen].read_text().splitlines() if line and line[0] != "#"]
    note = None
    if chosen != mine:
        pins = [pin for pin in pins if not pin.startswith("torchvision==")] + ["torchvision"]
        known = " and ".join(".".join(map(str, version)) for version in sorted(tested))
        note = f"the frameworks are tested with torch {known}; for {torch} {tested[chosen].name} is tried"
    common = os.path.relpath(
        HERE / "requirements.txt"
    )  # without the spaces that a user's path may have
    return [f"torch=={torch}", "-r", common, *pins], note


if __name__ == "__main__":
    arguments, note = pip_arguments(
        importlib.metadata.version("torch"), sorted(HERE.glob("torch-*.txt"))
    )
    if note:
        print(f"phantora-ns: {note}", file=sys.stderr)
    print(*arguments)
