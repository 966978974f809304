"""Why it exists: the interceptor is built in layers (ARCHITECTURE.md). A file may include headers of
its own layer and of those below it, and the two backends know nothing of each other. What differs
between them is in one table (backend.h), not in weak symbols. Nothing but a test keeps that true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "libintercept"
LAYERS = ["base", "warm", "link", "trace", "time", "work", "cudagraph", "nccl"]
"""From the bottom to the top. A trace's log lies below all that report to it."""
BACKENDS = ["simulated", "leader"]
"""Above all layers; `simulated/` and `leader/` never include each other."""
VALUES = {"base/protocol.gen.h", "work/values_start.h"}
"""What the values library, which is C++ and loaded by name, may include of the core: numbers."""
STUBS = {"base/unsupported.h"}
"""Where the one macro is that makes generated functions weak."""
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
WEAK = re.compile(r"\bweak\b(?!_)")


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


def allowed(source: str, header: str) -> bool:
    """Whether the file `source` may include `header`; both relative to libintercept/."""
    if "/" not in source:
        return False  # backend.h includes no other header of the project
    layer, part = source.partition("/")[0], header.partition("/")[0]
    if header == "backend.h":
        return layer != "values"
    if layer == "values":
        return part == "values" or header in VALUES
    if layer in BACKENDS:
        return part == layer or part in LAYERS
    return part in LAYERS and LAYERS.index(part) <= LAYERS.index(layer)


def violations(root: Path) -> list[str]:
    """One line for each include that goes up or across, and each weak symbol."""
    found = []
    files = sorted(path for path in root.rglob("*") if path.suffix in {".c", ".h", ".cpp"})
    for path in files:
        source = path.relative_to(root).as_posix()
        text = path.read_text()
        for header in INCLUDE.findall(text):
            if not (root / header).is_file():
                found.append(f"{source}: {header} is not written from libintercept/")
            elif not allowed(source, header):
                found.append(f"{source}: must not include {header}")
        if source not in STUBS and not source.startswith("values/"):
            found += [f"{source}: weak symbol" for _ in WEAK.findall(without_comments(text))]
    return found


def test_every_file_lies_in_a_layer():
    folders = {path.relative_to(ROOT).parts[0] for path in ROOT.rglob("*.[ch]*")}
    assert folders == {*LAYERS, *BACKENDS, "values", "backend.h"}


def test_includes_go_down():
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    "source, line",
    [
        ("base/log.c", '#include "link/connection.h"'),
        ("link/connection.c", '#include "trace/trace_log.h"'),
        ("time/timeline.c", '#include "cudagraph/graph.h"'),
        ("nccl/nccl.h", '#include "simulated/values/payload.h"'),
        ("simulated/backend.c", '#  include "leader/leader.h"'),
        ("leader/backend.c", '#include "simulated/memory/memory.h"'),
        ("values/run.h", '#include "time/timeline.h"'),
        ("backend.h", '#include "base/log.h"'),
        ("work/duration.c", '#include "duration.h"'),
        (
            "link/connection.c",
            'extern int there(void) __attribute__((weak, visibility("hidden")));',
        ),
    ],
)
def test_a_planted_violation_is_found(tmp_path, source, line):
    for path in ROOT.rglob("*"):
        if path.suffix in {".c", ".h", ".cpp"}:
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text())
    with (tmp_path / source).open("a") as file:
        file.write(line + "\n")
    assert len(violations(tmp_path)) == 1 and violations(tmp_path)[0].startswith(source)
