"""Why it exists: a preloaded library overrides by name, so its exports are its contract: all of
CUDA's APIs, nothing else."""

import fnmatch
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SITE = Path(pytest.__file__).parents[1]
OURS = re.compile(r"(__cuda|cuda|cublas|cudnn|nccl|nvml|cufft|cusolver|cusparse|cu)[A-Z]\w*")
# Stubs among what PyTorch imports: reached only by features that we refuse by name. The list may
# shrink, not grow.
STUBS = Path(__file__).resolve().parent / "stubs.txt"


def load_tool(root, name):
    """tools/NAME.py as a module."""
    sys.path.insert(0, str(root / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


symbols = load_tool(Path(__file__).resolve().parents[2], "functions").symbols


@pytest.fixture(scope="module")
def exported(built_library):
    """name -> True when it is only a stub (a weak symbol)."""
    return {name: kind in "Ww" for kind, name in symbols(built_library, "--defined-only")}


@pytest.fixture(scope="module")
def imported():
    """The CUDA functions that PyTorch's libraries import."""
    torch = SITE / "torch" / "lib"
    names = set()
    for library in (
        "libtorch_cuda.so",
        "libtorch_cpu.so",
        "libc10_cuda.so",
        "libtorch_python.so",
        "libtorch_cuda_linalg.so",
    ):
        if (torch / library).exists():
            names |= {name for _, name in symbols(torch / library, "--undefined-only")}
    assert len(names) > 1000, "torch's libraries were not found"
    return {name for name in names if OURS.fullmatch(name)}


# The C APIs that the library answers, phantora_*, and the one function of PyTorch's that its allocator
# tells of every block (simulated/values/defined.c). `cu[A-Z]*` is the driver and cuFile; curand* and
# nvrtc* begin with a small letter and stay NVIDIA's. dlsym, dlvsym: base/lookup.c; write and its
# kind: simulated/files/holes.c; mmap: simulated/files/mapped.c; remove, unlink, unlinkat:
# simulated/files/removals.c; posix_memalign: simulated/memory/host_tensors.c. nanosleep and
# libstdc++'s steady clock: time/time_outs.c; its system clock and pthread_cond_timedwait:
# time/naps.c. NVTX asks for its function by name: trace/nvtx.c.
ALLOWED = """cu[A-Z]* cuda[A-Z]* __cuda[A-Z]* cublas[A-Z]* cudnn[A-Z]* cufft[A-Z]* cusolver[A-Z]*
cusparse[A-Z]* cupti[A-Z]* InitializeInjectionNvtx2 nccl[A-Z]* pnccl[A-Z]* nvml[A-Z]* dlsym dlvsym nvshmemid_*
nvshmemx_get_uniqueid* phantora_* mmap mmap64 nanosleep posix_memalign
pthread_cond_timedwait pwrite pwrite64 remove unlink unlinkat write writev
_ZNSt6chrono3_V212steady_clock3nowEv _ZNSt6chrono3_V212system_clock3nowEv
_ZN3c1027reportMemoryUsageToProfiler*""".split()


def test_every_export_is_allowed(exported):
    """A preloaded library overrides by name, so one helper too many would change the job."""
    strays = [n for n in exported if not any(fnmatch.fnmatchcase(n, p) for p in ALLOWED)]
    assert strays == []


def test_libraries_that_stay_nvidias_are_not_exported(exported):
    # CUPTI's: what PyTorch's profiler calls
    door = {n for n in exported if n.startswith("cupti")}
    assert "cuptiActivityGetNextRecord" in door and len(door) == 21
    assert {n for n in exported if re.match(r"(curand|cupti|nvrtc)", n)} == door
    for wheel in ("libcurand.so", "libcupti.so", "libnvrtc.so"):
        for library in (SITE / "nvidia").glob(f"*/lib/{wheel}.*"):
            theirs = {name for _, name in symbols(library, "--defined-only")}
            # NVTX's: whoever has a library open gets that library's own
            assert theirs & exported.keys() <= door | {"InitializeInjectionNvtx2"}, library


def test_all_that_pytorch_imports_is_exported(exported, imported):
    assert imported - exported.keys() == set()


def test_which_of_pytorchs_imports_are_stubs(exported, imported):
    stubs = {name for name in imported if exported[name]}
    assert sorted(stubs - set(STUBS.read_text().split())) == []


def test_which_imports_of_any_release_are_stubs(root, exported):
    functions = load_tool(root, "functions")
    imports = {
        name
        for api in load_tool(root, "generate_stubs").APIS
        for name, letters in functions.read().apis[api].used.items()
        if functions.IMPORTED in letters
    }
    assert imports <= exported.keys()
    assert {name for name in imports if exported[name]} - set(STUBS.read_text().split()) == set()


def test_the_generated_files_are_up_to_date(root):
    command = [sys.executable, root / "tools" / "generate_stubs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_data_holds_all_of_the_installed_wheels(root):
    functions = load_tool(root, "functions")
    if functions.version_of(SITE) not in functions.read().versions:
        pytest.skip("this release of PyTorch is not in tools/functions.toml")
    command = [sys.executable, root / "tools" / "functions.py", "--site-packages", SITE, "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_data_is_as_it_is_written(root):
    functions = load_tool(root, "functions")
    assert functions.DATA.read_text() == functions.render(functions.read())


def test_every_export_has_a_class(root, built_library, exported):
    """A function without one would not be in docs/coverage.md; stubs are refusals, and nothing else
    is weak."""
    coverage = load_tool(root, "coverage")
    classes = coverage.own_symbols(built_library)
    assert classes.keys() == exported.keys()
    ours = {
        name: kind for name, kind in classes.items() if not name.startswith(coverage.NOT_NVIDIAS)
    }
    assert {name for name, kind in ours.items() if kind not in coverage.CLASSES} == set()
    assert {name for name, stub in exported.items() if stub and classes[name] != "refused"} == set()


def test_the_table_of_coverage_is_up_to_date_and_holds_what_pytorch_imports(
    root, built_library, imported, exported
):
    if "PHANTORA_TEST_LIB" in os.environ:
        pytest.skip("the table is of the library as it is built for users")
    command = [
        sys.executable,
        root / "tools" / "coverage.py",
        "--library",
        built_library,
        "--check",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = set(re.findall(r"\w+", (root / "docs" / "coverage.md").read_text()))
    exports = {
        name for name in exported if not name.startswith(load_tool(root, "coverage").NOT_NVIDIAS)
    }
    assert (imported | exports) - listed == set()


def test_a_stub_fails_by_its_own_code_and_names_itself_once(run_program, condition):
    done = run_program("unsupported", condition)
    assert done.values == {
        "cudaGraphAddHostNode": "801",
        "cuGraphicsMapResources": "801",
        "cublasSgbmv_v2": "15",
        "cudnnTransformFilter": "3000",
        "nvmlDeviceGetFanSpeed": "3",
    }
    for name in done.values:
        assert done.stderr.count(name) == 1
