"""The interceptor is in every rank, wherever phantora-ns is installed; where it cannot be, a run
says so instead of using this machine's own GPUs and clocks."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine import interposition
from phantora_ns.launch.machine.environment import Shape, job_environment
from phantora_ns.launch.machine.installation import INTERCEPTOR, link_installation
from phantora_ns.launch.run import rundir

COUNT = """
import ctypes
count = ctypes.c_int()
assert ctypes.CDLL("libcuda.so.1").phantora_elapsed_ns
assert ctypes.CDLL(None).cudaGetDeviceCount(ctypes.byref(count)) == 0
print(count.value, "GPUs")
"""


@pytest.fixture(scope="module", params=["with space", "with:colon", "with;semicolon"])
def installed(request, root, tmp_path_factory):
    """Runs the command line of a copy in a folder whose name lists of paths would break at."""
    folder = tmp_path_factory.mktemp("copy") / request.param
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("phantora_ns", "topologies"):
        shutil.copytree(root / name, folder / name, ignore=ignore, symlinks=True)
    start = (
        f"import runpy, sys; sys.path.insert(0, {str(folder)!r}); sys.dont_write_bytecode = True; "
        "runpy.run_module('phantora_ns', run_name='__main__')"
    )

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-P", "-c", start, *map(str, arguments)],
            cwd=folder.parent,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_a_job_of_an_installation_with_any_path_is_simulated(installed):
    done = installed("--quiet", "--gpus-per-node", 3, "--", sys.executable, "-c", COUNT)
    assert (done.returncode, done.stdout) == (0, "3 GPUs\n"), done.stderr
    assert done.stderr == ""


def test_the_doctor_tries_it(installed):
    done = installed("doctor")
    assert "ok      interceptor preloaded" in done.stdout
    assert "ok      hub" in done.stdout, done.stdout


def test_the_doctor_sees_an_interceptor_that_is_not_loaded(tmp_path, monkeypatch):
    """A library that the loader skips: it says so on standard error, and starts the program."""
    broken = tmp_path / "libphantora.so"
    broken.write_bytes(b"no library" * 1000)
    monkeypatch.setattr("phantora_ns.launch.machine.installation.INTERCEPTOR", broken)
    link_installation(tmp_path)
    environment = job_environment({}, tmp_path, Shape(1, 1, True), None)
    with pytest.raises(LaunchError, match="does not load it.*invalid ELF header"):
        interposition.try_preload(environment)


def test_run_directories_have_names_that_no_list_splits(tmp_path, monkeypatch):
    for name in ("with space", "with:colon"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / name))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        assert [str(folder) for folder in rundir.base_folders()] == ["/tmp"]


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"RANK": "3"}, "rank 3 is not simulated: .* since LD_PRELOAD no longer names it"),
        ({"LD_PRELOAD": "/run/x/lib/libphantora.so"}, "although LD_PRELOAD names it"),
        ({}, None),
    ],
)
def test_a_rank_without_the_interceptor_does_not_run(root, variables, message):
    """A helper process that has dropped LD_PRELOAD, and is no rank, runs."""
    env = {"PHANTORA_RUN_DIR": "/run/x", "PYTHONPATH": str(root / "phantora_ns" / "startup")}
    done = subprocess.run(
        [sys.executable, "-c", "print('ran')"],
        env=env | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if message is None:
        assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
        return
    assert (done.returncode, done.stdout) == (70, "")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("ERROR: ld.so")]
    assert len(lines) == 1
    assert re.search(message, lines[0])


@pytest.fixture
def compiled(tmp_path):
    """Compiles an empty program."""

    def build(*flags):
        target = tmp_path / "program"
        command = ["cc", "-xc", "-", "-o", target, *flags]
        done = subprocess.run(command, input="int main(void) { return 0; }", text=True)
        if done.returncode:
            pytest.skip(f"this machine's compiler cannot build with {flags}")
        return target

    return build


def test_which_programs_cannot_take_a_preloaded_library(compiled, tmp_path):
    program = compiled()
    assert interposition.why_not(str(program)) is None
    script = tmp_path / "script"
    script.write_text(f"#!{program} -x\n")
    assert interposition.why_not(str(script)) is None
    compiled("-static")
    for path in (program, script):
        assert interposition.why_not(str(path)) == f"{program} is statically linked"
    data = bytearray(INTERCEPTOR.read_bytes()[:4096])
    data[18] ^= 1  # e_machine
    program.write_bytes(data)
    assert "another processor" in interposition.why_not(str(program))
    assert interposition.why_not(str(tmp_path / "absent")) is None
    assert interposition.why_not(sys.executable) is None


def test_the_report_names_a_program_that_is_not_interposed(compiled, phantora, tmp_path):
    report, program = tmp_path / "report.json", compiled("-static")
    done = phantora("--isolation", "none", "--report", report, "--", program)
    assert done.returncode == 0
    assert f"{program} is statically linked" in done.stderr
    assert f"{program} is statically linked" in report.read_text()
