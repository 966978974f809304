"""Writes tools/functions.toml: every function of the CUDA libraries that PyTorch's wheels bring, and
which of them each release of PyTorch uses.

Why it exists: the interceptor answers or refuses each of these functions, whichever release of
PyTorch a job has. The wheels of seven releases are 30 GB, so what they say is kept in one file. The
generators (generate_stubs.py, coverage.py) and the tests read that file and need no wheels. Names
are facts; nothing else of NVIDIA's files is taken.

    .venv/bin/python tools/functions.py [--site-packages DIR]... [--check]

Each DIR has one release and the wheels that it brings. Its column is written anew; the columns of
other releases, and functions that no DIR has, stay. `--check` writes nothing and exits 1 when the
file lacks something that a DIR has.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from generated import ROOT, wrap

DATA = ROOT / "tools" / "functions.toml"
WIDTH = 100


class Source(NamedTuple):
    """Where the names of one library come from: files below site-packages/nvidia, as patterns,
    because the folders and sonames differ between CUDA's majors."""

    pattern: str
    status: str
    libraries: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()


def _libraries(*names):
    return tuple(f"*/lib/lib{name}.so.*" for name in names)


def _headers(*names):
    return tuple(f"*/include/{name}.h" for name in names)


# API -> its source. The driver belongs to the machine, so its names come from its header, and NVML's
# from the cuda-bindings package, which later releases of PyTorch require.
SOURCES = {
    "cudart": Source(
        r"(__)?cuda[A-Z]\w*", "cudaError_t", _libraries("cudart"), _headers("cuda_runtime_api")
    ),
    "driver": Source(r"cu[A-Z]\w*", "CUresult", (), _headers("cuda")),
    "cublas": Source(
        r"cublas[A-Z]\w*",
        "cublasStatus",
        _libraries("cublas", "cublasLt"),
        _headers("cublas_v2", "cublas", "cublasLt"),
    ),
    "cudnn": Source(
        r"cudnn[A-Z]\w*",
        "cudnnStatus_t",
        _libraries("cudnn"),
        _headers("cudnn_graph", "cudnn_ops", "cudnn_cnn", "cudnn_adv"),
    ),
    "nccl": Source(r"p?nccl[A-Z]\w*", "ncclResult_t", _libraries("nccl"), _headers("nccl")),
    "nvml": Source(r"nvml[A-Z]\w*", "nvmlReturn_t", (), ("../cuda/bindings/cynvml.pxd",)),
    "cufft": Source(
        r"cufft[A-Z]\w*", "cufftResult", _libraries("cufft"), _headers("cufft", "cufftXt")
    ),
    "cusolver": Source(
        r"cusolver[A-Z]\w*",
        "cusolverStatus_t",
        _libraries("cusolver"),
        _headers("cusolver_common", "cusolverDn", "cusolverSp", "cusolverRf"),
    ),
    "cusparse": Source(
        r"cusparse(?!Lt)[A-Z]\w*",
        "cusparseStatus_t",
        _libraries("cusparse"),
        _headers("cusparse"),
    ),
    "cusparselt": Source(
        r"cusparseLt[A-Z]\w*", "cusparseStatus_t", _libraries("cusparseLt"), _headers("cusparseLt")
    ),
    "cufile": Source(r"cuFile[A-Z]\w*", "CUfileError_t", _libraries("cufile"), _headers("cufile")),
    "curand": Source(r"curand[A-Z]\w*", "", _libraries("curand")),
    "cupti": Source(r"cupti[A-Z]\w*", "", _libraries("cupti")),
    "nvrtc": Source(r"nvrtc[A-Z]\w*", "", _libraries("nvrtc")),
    "nvshmem": Source(r"nvshmem[a-z]*_\w+", "", _libraries("nvshmem_host")),
}
# Of the runtime's entry points for compilers (in no header) these return no status; the others do.
REGISTRATION = re.compile(r"__cuda(Un)?[Rr]egister\w+|__cudaInitModule")
# Functions that the libraries export and these headers do not declare: cudaProfiler.h's, and NVML's
# older ones (nvml.h of CUDA 12), which pynvml and PyTorch still call.
ALSO = {
    "driver": {"cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"},
    "nvml": {
        "nvmlDeviceFreezeNvLinkUtilizationCounter",
        "nvmlDeviceGetApplicationsClock",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetDefaultApplicationsClock",
        "nvmlDeviceGetDetailedEccErrors",
        "nvmlDeviceGetNvLinkUtilizationControl",
        "nvmlDeviceGetNvLinkUtilizationCounter",
        "nvmlDeviceGetSupportedClocksThrottleReasons",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceResetApplicationsClocks",
        "nvmlDeviceResetNvLinkUtilizationCounter",
        "nvmlDeviceSetApplicationsClocks",
        "nvmlDeviceSetNvLinkUtilizationControl",
    },
}
# Who calls, below site-packages. Imports are undefined symbols; names are looked up at run time, in
# source or in strings.
IMPORTERS = "torch/lib/lib*.so"
NAMED = ("torch/lib/libc10_cuda.so", "triton/backends/nvidia/driver.c")
IMPORTED, LOOKED_UP, UNUSED = "i", "n", "."


def symbols(library, *options):
    """(kind, name) of each dynamic symbol, its version left out; versions are no symbols."""
    listing = subprocess.run(
        ["nm", "-D", *options, library], capture_output=True, text=True, check=True
    ).stdout
    for line in listing.splitlines():
        *_, kind, name = line.split()
        if kind != "A":
            yield kind, name.split("@")[0]


def declared(text, pattern):
    """Yields (result type, name) of each function that a C header or a .pxd file declares, comments
    left out."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    for match in re.finditer(rf"(?:^|[;{{}}\n])\s*((?:[A-Za-z_]\w*[\s*]+)+)({pattern})\s*\(", text):
        if match[1].split()[0] not in ("return", "else", "typedef", "case"):
            yield " ".join(match[1].split()), match[2]


def renamed(text, pattern):
    """Names that a header gives functions by #define (cuMemAlloc -> cuMemAlloc_v2)."""
    for match in re.finditer(
        rf"^\s*#\s*define\s+({pattern})\s+(?:__\w+\()?({pattern})\)?\s*$", text, flags=re.M
    ):
        yield match[1]
        yield (
            match[match.lastindex]
            if re.fullmatch(pattern, match[match.lastindex] or "")
            else match[1]
        )


def functions_of(api, packages):
    """(names, those that return a status, those that return none) of one API, in the wheels of one
    site-packages. Older headers do not declare every function that the libraries export."""
    source = SOURCES[api]
    names, results = set(ALSO.get(api, ())), {}
    for pattern in source.libraries:
        for library in (packages / "nvidia").glob(pattern):
            names |= {
                name
                for kind, name in symbols(library, "--defined-only")
                if kind in "TWi" and re.fullmatch(source.pattern, name)
            }
    for pattern in source.headers:
        for header in (packages / "nvidia").glob(pattern):
            text = header.read_text(errors="replace")
            for result, name in declared(text, source.pattern):
                results.setdefault(name, result)
                if not source.libraries:
                    names.add(name)
            if api == "driver":
                names |= set(renamed(text, source.pattern))
    if api == "nvml":  # older names that the library keeps: NAME and NAME_v1.. beside NAME_v3
        for name in list(names):
            if match := re.fullmatch(r"(\w+)_v(\d+)", name):
                names |= {match[1]} | {f"{match[1]}_v{v}" for v in range(2, int(match[2]))}
    without = {name for name in names & results.keys() if source.status not in results[name]}
    without |= {name for name in names if REGISTRATION.fullmatch(name)}
    return names, (names & results.keys()) - without, without


def newest_forms(packages):
    """driver function -> the name with the suffix that a program of this CUDA gets when it asks for
    the name alone (cuMemAlloc -> cuMemAlloc_v2). A driver of CUDA 13.0 knows no later form."""
    text = (packages / "torch" / "version.py").read_text()
    major, minor = map(int, re.search(r"^cuda[^=]*= '(\d+)\.(\d+)'", text, re.M).groups())
    version, forms = min(major * 1000 + minor * 10, 13000), {}
    for header in (packages / "nvidia").glob("*/include/cudaTypedefs.h"):
        for name, since in re.findall(r"\*PFN_(cu\w+)_v(\d+)\)", header.read_text()):
            if int(since) <= version:
                forms.setdefault(name, set()).add(since)
    return {name: f"{name}_v{len(one)}" for name, one in forms.items() if len(one) > 1}


def used_names(packages):
    """name -> IMPORTED or LOOKED_UP, of what PyTorch or Triton uses."""
    words, newest = set(), newest_forms(packages)
    for path in NAMED:
        words |= set(re.findall(rb"\b(?:cu|nvml)[A-Z]\w+", (packages / path).read_bytes()))
    plain = (word.decode() for word in words)
    used = {newest.get(name, name): LOOKED_UP for name in plain}
    for library in sorted(packages.glob(IMPORTERS)):
        used |= {name: IMPORTED for _, name in symbols(library, "--undefined-only")}
    return used


def version_of(packages):
    """The release of PyTorch in a site-packages, without the part that names its CUDA."""
    text = (packages / "torch" / "version.py").read_text()
    return re.search(r"^__version__ = '([\d.]+)", text, re.M)[1]


class Functions(NamedTuple):
    """One API: name -> what each release does with it, a letter per release; and the names of
    functions that return no status."""

    used: dict[str, str]
    without_status: set[str]


class Data(NamedTuple):
    """The content of functions.toml."""

    versions: list[str]
    apis: dict[str, Functions]


def read():
    """The file's content; empty when there is none."""
    if not DATA.exists():
        return Data([], {api: Functions({}, set()) for api in SOURCES})
    content = tomllib.loads(DATA.read_text())
    versions = content["versions"]
    apis = {}
    for api in SOURCES:
        part = content.get(api, {})
        used = dict.fromkeys(part.get("unused", "").split(), UNUSED * len(versions))
        apis[api] = Functions(
            used | part.get("used", {}), set(part.get("without_status", "").split())
        )
    return Data(versions, apis)


def added(data, packages):
    """The content with the column of one more release, or with that column anew."""
    version, calls = version_of(packages), used_names(packages)
    versions = sorted({*data.versions, version}, key=lambda one: [*map(int, one.split("."))])
    apis = {}
    for api, known in data.apis.items():
        names, with_status, without = functions_of(api, packages)
        used = {}
        for name in sorted(names | known.used.keys()):
            letters = dict(zip(data.versions, known.used.get(name, UNUSED * len(data.versions))))
            letters[version] = calls.get(name, UNUSED)
            used[name] = "".join(letters[one] for one in versions)
        apis[api] = Functions(used, (known.without_status - with_status) | without)
    return Data(versions, apis)


def render(data):
    """The text of functions.toml."""
    parts = [
        "# generated by tools/functions.py, do not edit\n"
        "# Functions of the CUDA libraries in the wheels of PyTorch. A letter for each release: i, its\n"
        f"# libraries import the function; n, they or Triton look it up by name; {UNUSED} neither.\n"
        f"versions = {data.versions}".replace("'", '"')
    ]
    for api, functions in data.apis.items():
        unused = UNUSED * len(data.versions)
        names = sorted(functions.used)
        parts.append(f"[{api}]")
        if functions.without_status:
            listed = "\n".join(wrap(sorted(functions.without_status), WIDTH))
            parts.append(f'without_status = """\n{listed}\n"""')
        rest = "\n".join(wrap((n for n in names if functions.used[n] == unused), WIDTH))
        parts.append(f'unused = """\n{rest}\n"""')
        parts.append(f"[{api}.used]")
        parts += [
            f'{name} = "{functions.used[name]}"' for name in names if functions.used[name] != unused
        ]
    return "\n".join(parts) + "\n"


def main():
    """Writes, or with --check compares, the data file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = sorted((ROOT / ".venv" / "lib").glob("python3*/site-packages"))[:1]
    parser.add_argument(
        "--site-packages",
        type=Path,
        action="append",
        help="where a release of PyTorch and its CUDA wheels are installed; repeat it for several",
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    data = before = read()
    folders = options.site_packages or default
    for packages in folders:
        if not (packages / "nvidia").is_dir():
            sys.exit(f"functions.py: no CUDA wheels in {packages}")
    for packages in [*folders, *folders]:  # again, because one may use what another one declares
        data = added(data, packages)
    if not options.check:
        DATA.write_text(render(data))
    elif data != before:
        sys.exit(f"{DATA.relative_to(ROOT)} lacks functions or uses: run tools/functions.py")


if __name__ == "__main__":
    main()
