"""Why it exists: a job without the values library reads zeros, and must get the true reason. Each
case is made here, with libraries of one line of C instead of torch's and ours."""

import subprocess

import pytest

from phantora_ns.launch.machine.values_recipe import library_name

JOB = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])  # "torch": by this library's name the interceptor knows a PyTorch process
assert ctypes.CDLL(None).cudaSetDevice(0) == 0
assert ctypes.CDLL(None).cudaDeviceSynchronize() == 0
pointer = ctypes.c_void_p()
assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(64)) == 0
# the hub answers a LOOKUP, so it has read every message before it
assert ctypes.CDLL(None).cudaMemset(pointer, 0, ctypes.c_size_t(64)) == 0
"""
VERSION = "2.99.1+cu999"
STARTS = "int phantora_values_start(void) { return 0; }"
LIBRARIES = {  # what the library holds -> what the warning says of it
    "int phantora_values_start(void) { return 1; }": "another version of torch than the job's",
    "int phantora_values_start(void) { return 2; }": "of different builds",
    "int phantora_values_start(void) { return 3; }": "did not take the callback",
    # as earlier versions said
    "int phantora_values_start(void) { return -1; }": "of different builds",
    "int something_else;": "of different builds",
    "int c10_of_old(void); int phantora_values_start(void) { return c10_of_old(); }": "undefined symbol: c10_of_old",
}


@pytest.fixture
def warning(run_python, hub, tmp_path):
    """Runs a job that looks like PyTorch's; returns the one warning that it got, or None.
    `warning.torch` is the folder of its torch."""
    folder = tmp_path / "torch"
    (folder / "lib").mkdir(parents=True)
    torch = compile_library(folder / "lib" / "libtorch_cpu.so", "", "-Wl,-soname,libtorch_cpu.so")
    (folder / "version.py").write_text(
        f"from typing import Optional\n__version__ = '{VERSION}'\ncuda: Optional[str] = '13.0'\n"
    )

    def of(library):
        done = run_python(JOB, torch, PHANTORA_VALUES_LIB=str(library))
        told = [line.removeprefix("phantora-ns: warning: ") for line in done.stderr.splitlines()]
        assert told == hub.notes("warning") and len(told) <= 1
        assert all(line.endswith("what the GPU would compute reads as zero") for line in told)
        return told[0] if told else None

    of.torch = folder
    return of


def compile_library(target, source, *flags):
    subprocess.run(
        ["cc", "-shared", "-fPIC", *flags, "-xc", "-", "-o", target],
        input=source,
        text=True,
        check=True,
    )
    return target


def test_a_library_that_starts_gives_no_warning(warning, tmp_path):
    assert warning(compile_library(tmp_path / "values.so", STARTS)) is None


@pytest.mark.parametrize("source", LIBRARIES)
def test_a_library_that_does_not_start_says_why(warning, tmp_path, source):
    told = warning(compile_library(tmp_path / "values.so", source))
    assert LIBRARIES[source] in told and str(tmp_path / "values.so") in told


def test_a_file_that_is_not_there_is_named(warning, tmp_path):
    told = warning(tmp_path / "values.so")
    assert f"{tmp_path / 'values.so'}: No such file or directory" in told


def test_a_file_that_is_not_a_library_gives_the_loader_s_message(warning, tmp_path):
    (tmp_path / "values.so").write_text("half a build")
    assert "values.so: file too short" in warning(tmp_path / "values.so")


def test_a_run_that_names_none_says_so(warning):
    assert "names none (PHANTORA_VALUES_LIB)" in warning("")


@pytest.fixture
def libraries(tmp_path):
    """A folder of libraries for other torches, none of which may be loaded."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    other = "int phantora_values_start(void) { return 3; }"
    for version in ("2.11.0+cu130", "2.99.1", "2.99.1+cu130", "2.99.10+cu999"):
        compile_library(folder / library_name(version), other)
    return folder


def test_of_several_libraries_the_one_for_this_torch_is_loaded(warning, libraries):
    compile_library(libraries / library_name(VERSION), STARTS)
    assert warning(libraries) is None


def test_a_torch_without_a_library_names_the_cure(warning, libraries):
    assert (
        f"there is none for torch {VERSION}; `phantora-ns compile-values {warning.torch}` makes one;"
        in warning(libraries)
    )


def test_the_reason_that_the_launcher_found_is_told(warning, libraries):
    reason = "no C++ compiler: c++ was not found"
    (libraries / library_name("2.98.0")).with_suffix(".txt").write_text("about another\n")
    (libraries / library_name(VERSION)).with_suffix(".txt").write_text(f"{reason}\n")
    assert f"there is none for torch {VERSION}: {reason};" in warning(libraries)


@pytest.mark.parametrize("text", [None, "", "__version__ = '../2.0'\n", "__version__ = ''\n"])
def test_a_torch_that_does_not_say_its_version_is_named(warning, libraries, text):
    (warning.torch / "version.py").unlink()
    if text is not None:
        (warning.torch / "version.py").write_text(text)
    assert f"the version of torch in {warning.torch} is not known;" in warning(libraries)


def test_of_many_ranks_one_says_it_and_all_report_it(warning, run_python, hub):
    told = warning("")
    torch = warning.torch / "lib" / "libtorch_cpu.so"
    assert run_python(JOB, torch, PHANTORA_VALUES_LIB="").stderr == ""
    assert hub.notes("warning") == [told, told]
