"""Why it exists: frameworks are released for certain versions of torch, and pip would rather replace
torch than a framework. This script prints pip's arguments for the torch that is installed beside
it; `make frameworks` passes them on.

requirements.txt has what every torch takes, and torch-X.Y.txt what that version of torch takes. A
torch that has no such file gets that of the version before it, and pip chooses the torchvision
that fits.

With the name of a framework it prints what that one needs: `make frameworks FRAMEWORK=torchtitan`.
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


def pins_of(file: Path) -> list[str]:
    """The lines of a file of pins that are pins."""
    return [line for line in file.read_text().splitlines() if line and line[0] != "#"]


def pip_arguments(torch: str, files: list[Path], only: str = "") -> tuple[list[str], str | None]:
    """pip's arguments beside this version of torch, and what is to be said about them. `only`: the one
    framework that is wanted. Raises LookupError when it is not pinned."""
    tested = {release(file.stem.removeprefix("torch-")): file for file in files}
    mine = release(torch)
    chosen = max((version for version in tested if version <= mine), default=min(tested))
    pins = pins_of(tested[chosen])
    note = None
    if chosen != mine:
        pins = [pin for pin in pins if not pin.startswith("torchvision==")] + ["torchvision"]
        known = " and ".join(".".join(map(str, version)) for version in sorted(tested))
        note = f"the frameworks are tested with torch {known}; for {torch} {tested[chosen].name} is tried"
    common = os.path.relpath(
        HERE / "requirements.txt"
    )  # without the spaces that a user's path may have
    if not only:
        return [f"torch=={torch}", "-r", common, *pins], note
    # what differs between versions of torch is TorchTitan's, but torchvision; the rest its metadata says
    shared = pins_of(HERE / "requirements.txt")
    alone = [pin for pin in pins + shared if pin.partition("==")[0] == only]
    if not alone:
        raise LookupError(
            f"{only} is none of the frameworks; see {tested[chosen].name} and {common}"
        )
    wanted = [pin for pin in pins if not pin.startswith("torchvision")]
    return [f"torch=={torch}", "-c", common, *(wanted if only == "torchtitan" else alone)], note


if __name__ == "__main__":
    try:
        arguments, note = pip_arguments(
            importlib.metadata.version("torch"), sorted(HERE.glob("torch-*.txt")), *sys.argv[1:]
        )
    except LookupError as error:
        sys.exit(f"phantora-ns: {error}")
    if note:
        print(f"phantora-ns: {note}", file=sys.stderr)
    print(*arguments)
