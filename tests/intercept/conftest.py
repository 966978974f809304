"""Why it exists: tests of the interceptor run small C programs, and Python with ctypes, under
LD_PRELOAD and a run directory."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantora_ns.config import load_gpu
from phantora_ns.config.device_conf import write_device_conf

HERE = Path(__file__).resolve().parent
CONDITIONS = ["plain", "constructor", "fork", "dlsym"]


def _load(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def gpu():
    """The model that the tests imitate."""
    return load_gpu("h200")


@pytest.fixture
def run_dir(tmp_path, gpu):
    """A run directory with an H200's device.conf."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    (path / "ranks").mkdir()
    write_device_conf(gpu, path / "device.conf")
    return path


@pytest.fixture
def hub(run_dir):
    """A hub double over `run_dir` (recording_hub.py), running."""
    with _load("recording_hub").RecordingHub(run_dir) as running:
        yield running


@pytest.fixture
def environment(run_dir, built_library, tmp_path):
    """The environment that the launcher gives a job, for node 0 with 8 GPUs."""
    names = tmp_path / "names"
    names.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (names / name).symlink_to(built_library)
    packages = Path(importlib.util.find_spec("zmq").origin).parents[1]
    zmq = next((packages / "pyzmq.libs").glob("libzmq-*.so*"))
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("PHANTORA_", "CUDA_", "LD_"))}
    return {
        **outer,
        "LD_PRELOAD": str(built_library),
        "LD_LIBRARY_PATH": str(names),
        "PHANTORA_RUN_DIR": str(run_dir),
        "PHANTORA_NODE": "0",
        "PHANTORA_GPUS_PER_NODE": "8",
        "PHANTORA_LIBZMQ": str(zmq),
        "PHANTORA_VALUES_LIB": "",
        "PHANTORA_HOST_TIME": "none",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture(scope="session")
def program(tmp_path_factory, built_library):
    """Compiles tests/intercept/c/NAME.c once against the library; returns the path of the
    program."""
    folder = tmp_path_factory.mktemp("programs")

    def compiled(name):
        target = folder / name
        if not target.exists():
            warnings = ["-Wall", "-Wextra", "-Werror"]
            source = HERE / "c" / f"{name}.c"
            subprocess.run(
                ["cc", "-std=gnu11", *warnings, "-o", target, source, built_library, "-ldl"],
                check=True,
            )
        return target

    return compiled


@pytest.fixture
def run_program(program, environment):
    """Runs a C program in one condition; returns its CompletedProcess, stdout as a dictionary in
    `.values`."""

    def run(name, condition="plain", check=True, input=None, **variables):
        done = subprocess.run(
            [program(name), condition],
            input=input,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if check:
            assert done.returncode == 0, done.stderr
        done.values = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        return done

    return run


@pytest.fixture
def run_python(environment):
    """Runs Python source under the interceptor; returns a CompletedProcess."""

    def run(source, *arguments, check=True, timeout=150, **variables):
        command = [sys.executable, "-c", source, *map(str, arguments)]
        done = subprocess.run(
            command,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(params=CONDITIONS)
def condition(request):
    """Each condition of c/conditions.h."""
    return request.param
