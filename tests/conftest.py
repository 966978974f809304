"""Why it exists: what every test may rely on: the repository's paths, the built C parts, and that
no process is left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIB = ROOT / "phantora_ns" / "lib"


# A shell starts what runs in the background with these ignored, and all that it starts inherits that.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(scope="session", autouse=True)
def no_kernel_times_of_the_user(tmp_path_factory):
    """What whoever runs the tests has profiled must not change what they see."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data-home"))


@pytest.fixture(scope="session", autouse=True)
def flows_of_the_tested_build():
    """The flow engine of another build, such as a sanitized one."""
    if "PHANTORA_TEST_LIB" in os.environ:
        from phantora_ns.sim import _flow_native

        _flow_native.LIBRARY = Path(os.environ["PHANTORA_TEST_LIB"]) / _flow_native.LIBRARY.name
        assert _flow_native.NativeEngine.available()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def built_library() -> Path:
    """libphantora.so; fails, rather than skips, when `make build` has not been run."""
    path = Path(os.environ.get("PHANTORA_TEST_LIB", LIB)) / "libphantora.so"
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make build`")
    return path


@pytest.fixture(scope="session")
def phantora():
    """Runs the command line as a user would; returns a CompletedProcess with text output.

    `phantora("torchrun", ..., timeout=120, env={...})`; the process group is killed when the
    time-out is reached.
    """

    def run(*arguments, timeout=150, env=None, cwd=ROOT, **options) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "phantora_ns.cli", *map(str, arguments)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                out, err = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                out, err = process.communicate()
            pytest.fail(
                f"{' '.join(command)} did not end within {timeout} s\n"
                f"--- stdout\n{out[-4000:]}\n--- stderr\n{err[-4000:]}"
            )
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


@pytest.fixture
def lookups(tmp_path):
    """Compiles leader/c/lookup.c, a library that looks symbols up, under a name, with a number that
    tells it from others. Its own are of version LOOKUP."""
    versions = tmp_path / "lookup.map"
    versions.write_text("LOOKUP { global: lookup_*; };")

    def build(name, number):
        target = tmp_path / name
        flags = [
            "-O2",
            "-Wall",
            "-Wextra",
            "-shared",
            "-fPIC",
            f"-DNUMBER={number}",
            f"-Wl,--version-script={versions}",
        ]
        subprocess.run(
            ["cc", *flags, "-o", target, ROOT / "tests" / "leader" / "c" / "lookup.c"], check=True
        )
        return target

    return build
