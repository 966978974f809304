"""Makes the table of docs/versions.md: for each supported release of PyTorch an environment, in which
`make demo` and `make smoke` run.

Why it exists: what is said to work has been run. A row is written only by a run of this tool, and
tells what was found in the environment, not what the list of releases says.

    python3 tools/versions.py [--venvs DIR] [--python PYTHON] [--no-smoke] [--keep] [TORCH...]

An environment that is in DIR/TORCH already is used as it is, with this tree. Otherwise DIR/TORCH
becomes a fresh clone of this tree's last commit, and `make` sets it up as it does for a newcomer,
from packages that were downloaded before. Afterwards the clone is deleted, unless --keep. The cost
of the set-up is CPU time, because that does not depend on what else the machine does. Exits with
status 1 when a demo or a smoke test failed. The standard library suffices for this file.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- generated: tools/versions.py -->\n", "<!-- end -->\n"
COLUMNS = (
    "torch",
    "Python",
    "CUDA",
    "cuDNN",
    "NCCL",
    "Triton",
    "values library",
    "`make demo`",
    "`make smoke`",
    "set-up, CPU s",
)
KEY = 2  # so many columns tell one row from another
SOFTWARE = 6  # so many tell what was found
NOT_RUN = "-"
# run by the environment's own Python, in the tree that was set up
LOOK = """
import json, sys
from phantora_ns.launch.machine import values_libraries
from phantora_ns.launch.machine.installation import find_torch
from phantora_ns.launch.machine.software import read_software
found = read_software(find_torch(sys.argv[1]))
print(json.dumps([found.torch, "%d.%d" % sys.version_info[:2], found.cuda, found.cudnn, found.nccl,
                  found.triton, values_libraries.find(found.torch) is not None]))
"""


class Place(NamedTuple):
    """Where `make` runs, and the environment that it uses."""

    tree: Path
    venv: Path

    @property
    def exists(self) -> bool:
        return (self.venv / ".stamp-project").exists()


def place(folder: Path) -> Place:
    """An environment in `folder` serves this tree; any other folder is, or becomes, a clone."""
    ready = Place(ROOT, folder)
    return ready if ready.exists else Place(folder, folder / ".venv")


def environment_variables() -> dict[str, str]:
    """Ours, without what an outer make hands to those inside it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")
    }


def make(target: str, torch: str, where: Place, python: str, **variables: str):
    """Runs a target of the Makefile in an environment; what it prints is shown and returned."""
    command = ["make", "-C", str(where.tree), target, f"TORCH=torch=={torch}", f"VENV={where.venv}"]
    lines = []
    with subprocess.Popen(
        [*command, f"PYTHON={python}"],
        env={**environment_variables(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
    return process.returncode, "".join(lines)


def download(torch: str, python: str, folder: Path) -> None:
    """All packages that `make build` installs. Raises CalledProcessError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [f"torch=={torch}", "setuptools>=64", "wheel", *project["dependencies"]]
    pip = [python, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--dest", str(folder)]
    subprocess.run([*pip, *wanted], check=True)


def cpu_seconds() -> float:
    """User and system time of the processes that have ended, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def set_up(torch: str, where: Place, python: str) -> str:
    """Clones and sets up; returns the CPU seconds that this took besides the download."""
    wheels = where.tree.with_name(f"{where.tree.name}-wheels")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_CACHE_DIR": "1"}
    try:
        download(torch, python, wheels)
        before = cpu_seconds()
        subprocess.run(
            ["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", where.tree], check=True
        )
        code, _ = make("build", torch, where, python, **offline)
        seconds = cpu_seconds() - before
    finally:
        shutil.rmtree(wheels, ignore_errors=True)
    if code != 0:
        return "**failed**"
    return f"{seconds:.0f}" + (" (root)" if os.geteuid() == 0 else "")


def smoke_result(code: int, output: str) -> str:
    """pytest's summary in words."""
    last = re.findall(r"^=* ?(\d+ (?:passed|failed|error).*) in [\d.]+s", output, re.M)
    words = ", ".join(
        re.findall(r"\d+ (?:passed|failed|errors?|skipped)", last[-1] if last else "")
    )
    if code == 0 and words:
        return words
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", output, re.M)
    named = f" ({', '.join(failed)})" if failed else ""
    return f"**{words or 'did not run'}**{named}"


def row(torch: str, where: Place, python: str, smoke: bool) -> tuple[str, ...]:
    """Runs demo and smoke tests; the environment is made when it is not there."""
    seconds = NOT_RUN if where.exists else set_up(torch, where, python)
    demo, _ = make("demo", torch, where, python)
    smoked = smoke_result(*make("smoke", torch, where, python)) if smoke else NOT_RUN
    *found, values = look(where, torch)
    return (
        *found,
        "built" if values else "**left out**",
        "ends well" if demo == 0 else f"**fails ({demo})**",
        smoked,
        seconds,
    )


def look(where: Place, torch: str) -> list:
    """The first cells of a row, and whether there is a values library."""
    program = [where.venv / "bin" / "python", "-c", LOOK, where.venv / "bin" / "torchrun"]
    try:
        done = subprocess.run(program, cwd=where.tree, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [torch, *[""] * (SOFTWARE - 1), False]
    return json.loads(done.stdout)


def read_rows(text: str) -> list[tuple[str, ...]]:
    """The rows of the document's table."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines[2:]]


def order(cells: tuple[str, ...]) -> tuple:
    """Newest first."""
    numbers = [re.findall(r"\d+", cell.partition("+")[0]) for cell in cells[:KEY]]
    return tuple([-int(number) for number in version] for version in numbers)


def with_rows(text: str, rows: list[tuple[str, ...]]) -> str:
    """The document with `rows` in place of those of the same torch and Python."""
    known = {cells[:KEY]: cells for cells in read_rows(text)}
    for cells in rows:
        old = known.get(cells[:KEY])
        # what an earlier run found with the same software stays, where this one did not look
        if old is not None and old[:SOFTWARE] == cells[:SOFTWARE]:
            cells = tuple(
                was if cell == NOT_RUN else cell for cell, was in zip(cells, old, strict=True)
            )
        known[cells[:KEY]] = cells
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(known[key])} |" for key in sorted(known, key=order)]
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + rest.partition(END)[2]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("torch", nargs="*", help="releases; default: all that are supported")
    parser.add_argument("--venvs", type=Path, default=ROOT / "build" / "venvs", metavar="DIR")
    parser.add_argument("--python", default=sys.executable, help="for environments that are made")
    parser.add_argument("--no-smoke", action="store_true", help="leave `make smoke` out")
    parser.add_argument("--keep", action="store_true", help="keep environments that were made")
    options = parser.parse_args(arguments)
    listed = tomllib.loads((ROOT / "phantora_ns" / "data" / "versions.toml").read_text())["torch"]
    bad = False
    for torch in options.torch or listed:
        where = place((options.venvs / torch).absolute())
        existed = where.exists
        try:
            cells = row(torch, where, options.python, not options.no_smoke)
        finally:
            if not existed and not options.keep:
                shutil.rmtree(where.tree, ignore_errors=True)
        bad |= any(cell.startswith("**") for cell in cells)
        # after each: what was run is kept when a later one is interrupted
        DOCUMENT.write_text(with_rows(DOCUMENT.read_text(), [cells]))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
