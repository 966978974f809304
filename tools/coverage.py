"""Writes docs/coverage.md: every function of every NVIDIA library that a job may call, and what the
job gets of it.

Why it exists: which functions are simulated and which are refused is read from the built library,
so that the table cannot be wrong. The class of a function is the section that holds it in
libphantora.so (PH_CLASS in libintercept/base/api.h). The functions are those that NVIDIA's wheels
export or declare. "Used" are those that the wheels of PyTorch and Triton import or look up by name.

    .venv/bin/python tools/coverage.py [--site-packages DIR] [--library FILE] [--check]

`--check` writes nothing and exits 1 when the document differs from what would be written.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import generate_stubs

ROOT = generate_stubs.ROOT
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
    """One library. `source`: its name in generate_stubs.APIS, or the path of its library below
    site-packages/nvidia."""

    title: str
    pattern: str
    source: str
    refusal: str = ""
    passed: str = ""


APIS = (
    Api("CUDA runtime", r"(__)?cuda[A-Z]\w*", "cudart", "`cudaErrorNotSupported` (801)"),
    Api("CUDA driver", r"cu[A-Z]\w*", "driver", "`CUDA_ERROR_NOT_SUPPORTED` (801)"),
    Api("cuBLAS and cuBLASLt", r"cublas[A-Z]\w*", "cublas", "`CUBLAS_STATUS_NOT_SUPPORTED` (15)"),
    Api("cuDNN", r"cudnn[A-Z]\w*", "cudnn", "`CUDNN_STATUS_NOT_SUPPORTED` (3000)"),
    Api("NCCL", r"p?nccl[A-Z]\w*", "nccl", "`ncclInvalidUsage` (5); NCCL has no better one"),
    Api("NVML", r"nvml[A-Z]\w*", "nvml", "`NVML_ERROR_NOT_SUPPORTED` (3)"),
    Api("cuFFT", r"cufft[A-Z]\w*", "cufft", "`CUFFT_NOT_SUPPORTED` (16)"),
    Api("cuSOLVER", r"cusolver[A-Z]\w*", "cusolver", "`CUSOLVER_STATUS_NOT_SUPPORTED` (9)"),
    Api("cuSPARSE", r"cusparse(?!Lt)[A-Z]\w*", "cusparse", "`CUSPARSE_STATUS_NOT_SUPPORTED` (10)"),
    Api("cuSPARSELt", r"cusparseLt[A-Z]\w*", "cusparselt", "`CUSPARSE_STATUS_NOT_SUPPORTED` (10)"),
    Api(
        "cuRAND",
        r"curand[A-Z]\w*",
        "cu13/lib/libcurand.so.10",
        passed="its own CUDA runtime finds no GPU, so no generator is made. PyTorch calls none of "
        "it and makes its random numbers itself",
    ),
    Api(
        "CUPTI",
        r"cupti[A-Z]\w*",
        "cu13/lib/libcupti.so.13",
        "`CUPTI_ERROR_NOT_SUPPORTED` (27), with a warning of its own",
        'docs/frameworks.md, "PyTorch beyond dispatch", says what `torch.profiler` sees',
    ),
    Api(
        "NVRTC",
        r"nvrtc[A-Z]\w*",
        "cu13/lib/libnvrtc.so.13",
        passed="it needs no GPU and compiles for the simulated one; what "
        "it makes is loaded and launched through the driver above",
    ),
    Api("cuFile", r"cuFile[A-Z]\w*", "cufile", "`CU_FILE_PLATFORM_NOT_SUPPORTED` (5007)"),
    Api(
        "NVSHMEM",
        r"nvshmem[a-z]*_\w+",
        "nvshmem/lib/libnvshmem_host.so.3",
        "`NVSHMEMX_ERROR_NOT_SUPPORTED` (3)",
        passed="nothing of it is reached, since its start-up is refused: its kernels communicate "
        "by themselves, which is not simulated",
    ),
)
# Who calls: relative to site-packages. Imports are undefined symbols; names are looked up at run
# time, in source or in strings.
IMPORTERS = tuple(
    f"torch/lib/lib{name}.so"
    for name in (
        "torch_cuda",
        "torch_cuda_linalg",
        "torch_cpu",
        "torch_python",
        "c10_cuda",
        "torch_nvshmem",
        "caffe2_nvrtc",
    )
)
NAMED = ("torch/lib/libc10_cuda.so", "triton/backends/nvidia/driver.c")
WIDTH = 100


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


def functions(api, packages, own):
    """The names of one API's functions, sorted: the wheels', and those that we answer."""
    if api.source in generate_stubs.APIS:
        names = set().union(*generate_stubs.collect(api.source, packages))
    else:
        names = generate_stubs.exported_names(packages / "nvidia" / api.source)
    return sorted(name for name in names | own.keys() if re.fullmatch(api.pattern, name))


def symbols(library, *options):
    """(kind, name without its version) of each dynamic symbol."""
    listing = subprocess.run(
        ["nm", "-D", *options, library], capture_output=True, text=True, check=True
    ).stdout
    for line in listing.splitlines():
        *_, kind, name = line.split()
        yield kind, name.split("@")[0]


def used_names(packages):
    """Every name that PyTorch or Triton imports, or names to look it up."""
    names = set()
    for library in IMPORTERS:
        names |= {name for _, name in symbols(packages / library, "--undefined-only")}
    for path in NAMED:
        names |= {
            word.decode()
            for word in re.findall(rb"\b(?:cu|nvml)[A-Z]\w+", (packages / path).read_bytes())
        }
    # A name is looked up without the suffix that current headers give it.
    return names | {f"{name}_v2" for name in names}


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
    lines, line = [], ""
    for name in names:
        item = f"{name}, "
        if line and len(line) + len(item) > WIDTH:
            lines.append(line.rstrip())
            line = ""
        line += item
    return "\n".join([*lines, line.rstrip(", ")])


# shown for reasons of our own (libintercept/simulated/exports.map)
NOT_NVIDIAS = (
    "phantora_",
    "dlsym",
    "dlvsym",
    "_ZN3c10",
)


def classify(api, names, own):
    """class -> names. What libphantora.so does not export, NVIDIA's own library answers."""
    groups = {name: [] for name in CLASSES}
    for name in names:
        groups[own[name] if name in own else "passed"].append(name)
    return groups


def render(packages, library):
    """The text of the document. Raises SystemExit when an exported function has no class."""
    own, used, limits = own_symbols(library), used_names(packages), partial_refusals()
    unclassed = sorted(
        name for name, kind in own.items() if kind is None and not name.startswith(NOT_NVIDIAS)
    )
    if unclassed:
        sys.exit(f"coverage.py: no PH_CLASS (libintercept/base/api.h) for {', '.join(unclassed)}")
    parts, rows = [], []
    for api in APIS:
        names = functions(api, packages, own)
        groups = classify(api, names, own)
        called = [name for name in names if name in used]
        refused = [name for name in groups["refused"] if name in used]
        rows.append(
            f"| [{api.title}](#{api.title.lower().replace(' ', '-')}) | {len(names)} | "
            + " | ".join(str(len(group)) for group in groups.values())
            + f" | {len(called)} | {len(refused)} |"
        )
        parts += [f"## {api.title}", ""]
        if groups["refused"]:
            parts += [f"Refused: {api.refusal}.", ""]
        if groups["passed"] and api.passed:
            parts += [f"NVIDIA's own library: {api.passed}.", ""]
        for kind, group in groups.items():
            if group:
                parts += [
                    f"**{kind}** ({len(group)}):",
                    wrapped(f"**{name}**" if name in used else name for name in group),
                    "",
                ]
        some = [name for name in names if name in limits]
        if some:
            parts += [
                "Refused in part:",
                *(f"- {name}: {'; '.join(limits[name])}" for name in some),
                "",
            ]
    return (
        "\n".join(
            [
                "<!-- generated by tools/coverage.py, do not edit -->",
                "# Coverage",
                "",
                "Every function of NVIDIA's libraries, and what a job gets of it, read from the built",
                "interceptor. **Bold**: PyTorch or Triton imports it or looks it up by name. A function",
                "that returns no status gives 0 or NULL where it is refused.",
                "",
                "| Class | What the job gets |",
                "|---|---|",
                *(f"| {kind} | {meaning} |" for kind, meaning in CLASSES.items()),
                "",
                f"| Library | Functions | {' | '.join(CLASSES)} | used | used and refused |",
                "|---|" + "---:|" * (len(CLASSES) + 3),
                *rows,
                "",
                *parts,
            ]
        ).rstrip("\n")
        + "\n"
    )


def main():
    """Writes, or with --check compares, docs/coverage.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = next(iter(sorted((ROOT / ".venv" / "lib").glob("python3*/site-packages"))), None)
    parser.add_argument(
        "--site-packages",
        type=Path,
        default=default,
        help="where torch's CUDA wheels are installed",
    )
    built = ROOT / "phantora_ns" / "lib" / "libphantora.so"
    parser.add_argument("--library", type=Path, default=built, help="the built interceptor")
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    if options.site_packages is None or not (options.site_packages / "nvidia").is_dir():
        sys.exit(
            "coverage.py: no CUDA wheels found; name their site-packages folder with --site-packages"
        )
    text = render(options.site_packages, options.library)
    if not options.check:
        DOCUMENT.write_text(text)
    elif not DOCUMENT.exists() or DOCUMENT.read_text() != text:
        sys.exit(
            "coverage.py: docs/coverage.md is not up to date; run .venv/bin/python tools/coverage.py"
        )


if __name__ == "__main__":
    main()
