"""Makes the table of docs/versions.md: for each supported release of PyTorch an environment, in which
`make demo` and `make smoke` run.

Why it exists: what is said to work has been run. A row is written only by a run of this tool, and
tells what was found in the environment, not what the list of releases says.

    .venv/bin/python tools/versions.py [--venvs DIR] [--python PYTHON] [--keep] [TORCH...]

An environment is DIR/TORCH. One that is there already is used as it is. A new one is made by `make`,
from packages that were downloaded before, so that the time is that of the set-up alone; afterwards
it is deleted, unless --keep. Exits with status 1 when a demo or a smoke test failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from phantora_ns.config.versions import supported_versions
from phantora_ns.launch.machine import values_libraries
from phantora_ns.launch.machine.installation import find_torch
from phantora_ns.launch.machine.software import Software, read_software

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
    "set-up, s",
)
KEY = 2  # so many columns tell one row from another
EXISTED = "-"


def environment_variables() -> dict[str, str]:
    """Ours, without what an outer make hands to those inside it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")
    }


def make(target: str, torch: str, venv: Path, python: str, **variables: str):
    """Runs a target of the Makefile in an environment; what it prints is shown and returned."""
    command = ["make", "-C", str(ROOT), target, f"TORCH=torch=={torch}", f"VENV={venv}"]
    process = subprocess.Popen(
        [*command, f"PYTHON={python}"],
        env={**environment_variables(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in process.stdout:
        sys.stdout.write(line)
        lines.append(line)
    return process.wait(), "".join(lines)


def download(torch: str, python: str, folder: Path) -> None:
    """All packages that `make build` installs. Raises CalledProcessError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    with_dependencies = [f"torch=={torch}", "setuptools>=64", "wheel", *packages]
    alone = ["--no-deps", "-r", str(ROOT / "tests" / "traces" / "hta-requirements.txt")]
    for wanted in (with_dependencies, alone):
        subprocess.run(
            [python, "-m", "pip", "download", "--quiet", "--dest", str(folder), *wanted], check=True
        )


def set_up(torch: str, venv: Path, python: str) -> str:
    """Makes the environment; returns the seconds that it took besides the download."""
    wheels = venv.with_name(f"{venv.name}-wheels")
    try:
        download(torch, python, wheels)
        start = time.monotonic()
        code, _ = make("build", torch, venv, python, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
        seconds = time.monotonic() - start
    finally:
        shutil.rmtree(wheels, ignore_errors=True)
    return f"{seconds:.0f}" if code == 0 else "failed"


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


def row(torch: str, venv: Path, python: str) -> tuple[str, ...]:
    """Runs demo and smoke tests in `venv`, which is made when it is not there."""
    seconds = EXISTED if (venv / ".stamp-project").exists() else set_up(torch, venv, python)
    demo, _ = make("demo", torch, venv, python)
    smoke = smoke_result(*make("smoke", torch, venv, python))
    found = find_torch(str(venv / "bin" / "torchrun"))
    software = read_software(found) if found is not None else Software("", torch)
    return (
        software.torch or torch,
        python_version(venv),
        software.cuda,
        software.cudnn,
        software.nccl,
        software.triton,
        "built" if values_libraries.find(software.torch) else "**left out**",
        "ends well" if demo == 0 else f"**fails ({demo})**",
        smoke,
        seconds,
    )


def python_version(venv: Path) -> str:
    done = subprocess.run(
        [venv / "bin" / "python", "--version"], capture_output=True, text=True, check=True
    )
    return ".".join(done.stdout.split()[1].split(".")[:2])


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
        # a set-up that was measured stays: this environment was there before
        if old is not None and cells[-1] == EXISTED:
            cells = (*cells[:-1], old[-1])
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
    parser.add_argument("--keep", action="store_true", help="keep environments that were made")
    options = parser.parse_args(arguments)
    releases = options.torch or [release.torch for release in supported_versions().releases]
    bad = False
    for torch in releases:
        venv = (options.venvs / torch).absolute()
        existed = (venv / ".stamp-project").exists()
        try:
            cells = row(torch, venv, options.python)
        finally:
            if not existed and not options.keep:
                shutil.rmtree(venv, ignore_errors=True)
        bad |= any(cell.startswith("**") or cell == "failed" for cell in cells)
        # after each: what was run is kept when a later one is interrupted
        DOCUMENT.write_text(with_rows(DOCUMENT.read_text(), [cells]))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
