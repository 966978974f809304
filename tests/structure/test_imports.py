"""Which part of the Python package may import which.

Why it exists: a reader can follow the simulator without the hub, and the hub without the launcher,
only as long as imports point one way. ARCHITECTURE.md shows the layers; this test keeps them.
Imports inside functions count as well.
"""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "phantora_ns"

EVERYWHERE = {"protocol", "compressed", "cures", "home", "whole_file"}
"""What every part may import: numbers and file layouts that C has as well (protocol/), how files are
compressed, and what helps against errors of the operating system."""
MAY_IMPORT = {
    "compressed": set(),
    "cures": set(),
    "home": set(),
    "whole_file": set(),
    "protocol": set(),
    "model": set(),
    "sim": {"model"},
    "config": {"model", "sim"},
    "kernels": {"model", "config"},
    "hub": {"model", "sim", "config", "kernels", "trace"},
    "trace": {"model", "sim", "config", "kernels"},
    "report": {"model", "config", "kernels"},
    "page": {"model", "sim", "config", "kernels", "trace", "report"},
    "launch": {"model", "config", "kernels", "hub", "trace", "report", "page"},
    "calibrate": {"model", "sim", "config", "kernels", "launch"},
    "cli": {
        "model",
        "config",
        "kernels",
        "hub",
        "trace",
        "report",
        "page",
        "launch",
        "calibrate",
        "sweep",
    },
    "sweep": {"model", "config", "hub", "report", "page", "launch"},
    "api": {"report", "page", "launch", "cli"},
    "__main__": {"cli", "launch"},
}
"""Each part, and the parts that it may import besides itself."""
ORDER = {
    "launch": (
        ("errors", "nodes"),
        ("command",),
        ("machine",),
        ("record",),
        ("run",),
        ("profiling", "fit", "doctor", "compile_values"),
    ),
    "kernels": (
        ("signature", "rates", "binary", "live_times", "library_versions"),
        ("estimators",),
        ("families", "contention", "queue_slots"),
        ("flop",),
        ("database",),
        ("run_clocks",),
        ("fitted",),
        ("lookup",),
        ("evaluation",),
    ),
}
"""The order inside two parts: each group imports only itself and those before it."""
SIM_FOR_HUB = {"sim.graph"}
"""What the hub may use of the simulator: it computes no time, it asks the event graph."""
HUB_BUILDS_IN = "hub.__main__"
"""The one module of the hub that puts the simulator together."""


def part_of(module: str) -> str:
    """The layer of a module, both named without the package's own name."""
    return module.partition(".")[0]


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package by its name without the package's own."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / PACKAGE).with_suffix("").parts
        if parts[0] in ("startup", "lib", "data"):
            continue  # scripts that run in the job's own processes, and no Python
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports, wherever in it."""
    found = set()
    is_package = path.name == "__init__.py"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            candidates = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [PACKAGE, *name.split(".")][: -(node.level - is_package) or None]
            origin = ".".join([*(base if node.level else ()), *filter(None, [node.module])])
            candidates = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        for candidate in candidates:
            head, _, rest = candidate.partition(".")
            if head != PACKAGE or not rest:
                continue
            while rest not in known and "." in rest:  # the last word was a name inside a module
                rest = rest.rpartition(".")[0]
            found.add(rest)
    return found


def violations(root: Path) -> list[str]:
    """Every import that points the wrong way, in words."""
    known = modules(root)
    wrong = []
    for name, path in known.items():
        part = part_of(name)
        for other in sorted(imports(name, path, known)):
            target = part_of(other)
            allowed = target == part or target in MAY_IMPORT.get(part, set()) | EVERYWHERE
            if not allowed:
                wrong.append(f"{name} imports {other}: {part} may not import {target}")
            if target != part and any(word.startswith("_") for word in other.split(".")):
                wrong.append(f"{name} imports {other}: it is private to {target}")
            if part == "hub" and target == "sim" and name != HUB_BUILDS_IN:
                if other not in SIM_FOR_HUB:
                    wrong.append(f"{name} imports {other}: the hub computes no time")
    return wrong


def circles(root: Path) -> list[list[str]]:
    """Groups of modules that import each other, directly or not (Tarjan's algorithm, 1972)."""
    known = modules(root)
    graph = {name: imports(name, path, known) - {name} for name, path in known.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph.get(name, ())):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_every_part_has_its_layer():
    parts = {part_of(name) for name in modules(ROOT)}
    assert parts == set(MAY_IMPORT)


def test_imports_point_one_way():
    assert violations(ROOT) == []


@pytest.mark.parametrize("part", ORDER)
def test_imports_inside_a_part_point_one_way(part):
    known = modules(ROOT)
    rank = {name: place for place, group in enumerate(ORDER[part]) for name in group}
    for name, path in known.items():
        if not name.startswith(f"{part}."):
            continue
        for other in imports(name, path, known):
            if other.startswith(f"{part}."):
                here, there = (rank[module.split(".")[1]] for module in (name, other))
                assert there <= here, f"{name} imports {other}"


def test_no_modules_import_each_other():
    assert circles(ROOT) == []


def plant(root: Path, files: dict[str, str]) -> None:
    by_folder = defaultdict(dict)
    for name, text in files.items():
        path = root / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        by_folder[path.parent][path.name] = text


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("sim/graph.py", "from phantora_ns.hub import server", "sim may not import hub"),
        (
            "sim/graph.py",
            "def f():\n    import phantora_ns.launch.run.runner",
            "may not import launch",
        ),
        ("model/gpu.py", "from phantora_ns.config import load_gpu", "model may not import config"),
        ("kernels/rates.py", "from phantora_ns.sim.graph import Op", "may not import sim"),
        ("hub/server.py", "from phantora_ns.sim.flows import X", "the hub computes no time"),
        ("hub/server.py", "from phantora_ns.sim import flows", "the hub computes no time"),
        ("sim/graph.py", "from ..hub import server", "sim may not import hub"),
        ("launch/a.py", "from phantora_ns.hub._b import c", "private to hub"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, name, text, said):
    others = ("hub/server.py", "hub/_b.py", "sim/flows.py", "sim/graph.py", "launch/run/runner.py")
    plant(tmp_path, {**dict.fromkeys((*others, "config/__init__.py"), ""), name: text})
    wrong = violations(tmp_path)
    assert len(wrong) == 1 and said in wrong[0]


def test_a_planted_circle_is_found(tmp_path):
    files = {
        "sim/a.py": "from phantora_ns.sim.b import x",
        "sim/b.py": "def f():\n    from phantora_ns.sim import c",
        "sim/c.py": "from phantora_ns.sim.a import y",
        "sim/d.py": "from phantora_ns.sim.a import y",
    }
    plant(tmp_path, files)
    assert circles(tmp_path) == [["sim.a", "sim.b", "sim.c"]]
