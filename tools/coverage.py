"""Writes docs/coverage.md: every function of every NVIDIA library that a job may call, and what the
job gets of it.

Why it exists: which functions are simulated and which are refused is read from the built library,
so that the table cannot be wrong. The class of a function is the section that holds it in
libphantora.so (PH_CLASS in libintercept/base/api.h). The functions, and which release of PyTorch
uses which, come from tools/functions.toml.

    .venv/bin/python tools/coverage.py [--library FILE] [--check]

`--check` writes nothing and exits 1 when the document differs from what would be written.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import functions
from generated import ROOT, settle, wrap

DOCUMENT = ROOT / "docs" / "coverage.md"
CLASSES = {
    "simulated": "does what the real one does: state, time, and values as far as they are kept",
    "accounted": "takes the time and the memory of the real one; what it computes, the values "
    "library computes for small tensors; large ones read as zero",
    "hint": "accepted; on a GPU it changes at most speed or what tools see, here nothing",
    "passed": "NVIDIA's own library answers",
    "refused": "fails with the code below, a line on stderr and an entry in the report",
}


class Api(NamedTuple):
    """One library. `source`: its name in tools/functions.toml."""

    title: str
    source: str
    refusal: str = ""
    passed: str = ""


APIS = (
    Api("CUDA runtime", "cudart", "`cudaErrorNotSupported` (801)"),
    Api("CUDA driver", "driver", "`CUDA_ERROR_NOT_SUPPORTED` (801)"),
    Api("cuBLAS and cuBLASLt", "cublas", "`CUBLAS_STATUS_NOT_SUPPORTED` (15)"),
    Api("cuDNN", "cudnn", "`CUDNN_STATUS_NOT_SUPPORTED` (3000)"),
    Api("NCCL", "nccl", "`ncclInvalidUsage` (5); NCCL has no better one"),
    Api("NVML", "nvml", "`NVML_ERROR_NOT_SUPPORTED` (3)"),
    Api("cuFFT", "cufft", "`CUFFT_NOT_SUPPORTED` (16)"),
    Api("cuSOLVER", "cusolver", "`CUSOLVER_STATUS_NOT_SUPPORTED` (9)"),
    Api("cuSPARSE", "cusparse", "`CUSPARSE_STATUS_NOT_SUPPORTED` (10)"),
    Api("cuSPARSELt", "cusparselt", "`CUSPARSE_STATUS_NOT_SUPPORTED` (10)"),
    Api(
        "cuRAND",
        "curand",
        passed="its own CUDA runtime finds no GPU, so no generator is made. PyTorch calls none of "
        "it and makes its random numbers itself",
    ),
    Api(
        "CUPTI",
        "cupti",
        "`CUPTI_ERROR_NOT_SUPPORTED` (27)",
        'docs/frameworks.md, "torch.profiler", says what PyTorch\'s profiler gets',
    ),
    Api(
        "NVRTC",
        "nvrtc",
        passed="it needs no GPU and compiles for the simulated one; what "
        "it makes is loaded and launched through the driver above",
    ),
    Api("cuFile", "cufile", "`CU_FILE_PLATFORM_NOT_SUPPORTED` (5007)"),
    Api(
        "NVSHMEM",
        "nvshmem",
        "`NVSHMEMX_ERROR_NOT_SUPPORTED` (3)",
        passed="nothing of it is reached, since its start-up is refused: its kernels communicate "
        "by themselves, which is not simulated",
    ),
)
WIDTH = 99


def own_symbols(library):
    """name -> class (None where it lies in no section of a class) of each function that
    libphantora.so exports."""
    listing = subprocess.run(
        ["readelf", "-SW", "--dyn-syms", library], capture_output=True, text=True, check=True
    ).stdout
    sections = dict(re.findall(r"^\s*\[\s*(\d+)\]\s+(\S+)", listing, re.M))
    found = {}
    for index, name in re.findall(
        r"^\s*\d+: [0-9a-f]+\s+\d+\s+FUNC\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+(\d+)\s+(\S+)$",
        listing,
        re.M,
    ):
        section = sections[index]
        found[name.split("@")[0]] = (
            section.removeprefix("ph_") if section.startswith("ph_") else None
        )
    return found


def partial_refusals():
    """function -> what of it is refused, from the calls of ph_unsupported in the sources."""
    found = {}
    core = ROOT / "libintercept"
    sources = [path for path in core.rglob("*.c") if core / "leader" not in path.parents]
    for source in sorted(sources, key=lambda path: path.name):
        for name, what in re.findall(r'ph_unsupported\("(\w+) ?([^"]*)"\)', source.read_text()):
            if what:
                found.setdefault(name, []).append(what.strip("()"))
    return found


def wrapped(names):
    """Names, comma-separated, in lines of at most WIDTH."""
    return "\n".join(wrap((f"{name}," for name in names), WIDTH)).rstrip(",")


# shown for reasons of our own (libintercept/simulated/exports.map)
NOT_NVIDIAS = (
    "phantora_",
    "dlsym",
    "dlvsym",
    "_ZN3c10",
    "_ZNSt6chrono",
    "nanosleep",
    "pthread_cond_timedwait",
    "write",
    "remove",
    "unlink",
    "mmap",
    "pwrite",
    "posix_memalign",
    "InitializeInjectionNvtx2",  # what NVTX asks of a tool
)


def classify(names, own):
    """class -> names. What libphantora.so does not export, NVIDIA's own library answers."""
    groups = {name: [] for name in CLASSES}
    for name in names:
        groups[own[name] if name in own else "passed"].append(name)
    return groups


def releases(letters, versions):
    """The releases that use a function, as text: "2.9.1 to 2.11.0, 2.15.0"."""
    runs, last = [], None
    for index, letter in enumerate(letters):
        if letter == functions.UNUSED:
            continue
        if last == index - 1:
            runs[-1][1] = versions[index]
        else:
            runs.append([versions[index]] * 2)
        last = index
    if runs == [[versions[0], versions[-1]]]:
        return "all releases"
    return ", ".join(first if first == final else f"{first} to {final}" for first, final in runs)


def used_and_refused(api, known, groups, versions):
    """The lines that say which release uses which refused function of an API."""
    by_releases = {}
    for name in groups["refused"]:
        if name in known.used and set(known.used[name]) != {functions.UNUSED}:
            by_releases.setdefault(releases(known.used[name], versions), []).append(name)
    for text, names in sorted(by_releases.items(), key=lambda item: -len(item[1])):
        yield from [f"**{api.title}**, {text} ({len(names)}):", wrapped(names), ""]


def per_release(api, known, groups, versions):
    """A row: how many functions of an API each release uses, and how many of them are refused."""
    cells = []
    for index in range(len(versions)):
        used = {n for n, letters in known.used.items() if letters[index] != functions.UNUSED}
        cells.append(f"{len(used)} / {len(used.intersection(groups['refused']))}")
    return f"| {api.title} | {' | '.join(cells)} |"


def describe(api, groups, known, own, limits):
    """The section of one library. Of what NVIDIA's own library answers, only what is used or passes
    through ours is named."""
    yield from [f"## {api.title}", ""]
    if groups["refused"]:
        yield from [f"Refused: {api.refusal}.", ""]
    if groups["passed"] and api.passed:
        yield from [f"NVIDIA's own library: {api.passed}.", ""]
    for kind, group in groups.items():
        used = [name for name in group if set(known.used.get(name, "")) - {functions.UNUSED}]
        listed = [n for n in group if n in used or n in own] if kind == "passed" else group
        if group:
            rest = "; some of them" if listed else "; none is used"
            rest = "" if len(listed) == len(group) else rest
            marked = (f"**{name}**" if name in used else name for name in listed)
            yield from [f"**{kind}** ({len(group)}{rest}):"]
            yield from [wrapped(marked)] if listed else []
            yield ""
    some = [name for group in groups.values() for name in group if name in limits]
    if some:
        yield "Refused in part:"
        yield from (f"- {name}: {'; '.join(limits[name])}" for name in sorted(some))
        yield ""


def render(library):
    """The text of the document. Raises SystemExit when an exported function has no class."""
    own, limits, data = own_symbols(library), partial_refusals(), functions.read()
    unclassed = sorted(
        name for name, kind in own.items() if kind is None and not name.startswith(NOT_NVIDIAS)
    )
    if unclassed:
        sys.exit(f"coverage.py: no PH_CLASS (libintercept/base/api.h) for {', '.join(unclassed)}")
    rows, columns, refused, sections = [], [], [], []
    for api in APIS:
        known = data.apis[api.source]
        pattern = functions.SOURCES[api.source].pattern
        ours = (name for name in own if re.fullmatch(pattern, name))
        groups = classify(sorted({*known.used, *ours}), own)
        anchor = api.title.lower().replace(" ", "-")
        counts = [sum(map(len, groups.values())), *map(len, groups.values())]
        rows.append(f"| [{api.title}](#{anchor}) | {' | '.join(map(str, counts))} |")
        columns.append(per_release(api, known, groups, data.versions))
        refused += used_and_refused(api, known, groups, data.versions)
        sections += describe(api, groups, known, own, limits)
    lines = [
        "<!-- generated by tools/coverage.py, do not edit -->",
        "# Coverage",
        "",
        "Every function of NVIDIA's libraries, and what a job gets of it, read from the built",
        "interceptor. **Bold**: a release of PyTorch below, or its Triton, imports it or looks it up",
        "by name. A function that returns no status gives 0 or NULL where it is refused.",
        "",
        "| Class | What the job gets |",
        "|---|---|",
        *(f"| {kind} | {meaning} |" for kind, meaning in CLASSES.items()),
        "",
        f"| Library | Functions | {' | '.join(CLASSES)} |",
        "|---|" + "---:|" * (len(CLASSES) + 1),
        *rows,
        "",
        "## What each release of PyTorch uses",
        "",
        "Functions that its libraries or its Triton use / those of them that are refused.",
        "",
        f"| Library | {' | '.join(data.versions)} |",
        "|---|" + "---:|" * len(data.versions),
        *columns,
        "",
        "## Used and refused",
        "",
        "Only features that are out of scope, or that frameworks rarely use, reach these.",
        "",
        *refused,
        *sections,
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def main():
    """Writes, or with --check compares, docs/coverage.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    built = ROOT / "phantora_ns" / "lib" / "libphantora.so"
    parser.add_argument("--library", type=Path, default=built, help="the built interceptor")
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    settle({DOCUMENT: render(options.library)}, options.check, "tools/coverage.py")


if __name__ == "__main__":
    main()
