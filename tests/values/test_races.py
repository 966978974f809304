"""Why it exists: PyTorch calls the values library in every thread that runs an operator: the job's own, autograd's, a
data loader's. ThreadSanitizer sees what they share without a lock, whether or not it did harm in this run."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from phantora_ns.config import load_gpu
from phantora_ns.config.device_conf import write_device_conf
from tests import thread_sanitizer
from tests.intercept.recording_hub import RecordingHub

HERE = Path(__file__).resolve().parent
PYTHON = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY"))


@pytest.fixture(scope="module")
def libraries(root, tmp_path_factory):
    """The folder of the interceptor and of the values library, both under ThreadSanitizer."""
    if PYTHON.suffix != ".so" or not PYTHON.exists():
        pytest.skip("this Python has no shared library, which the instrumented program needs")
    folder = tmp_path_factory.mktemp("races")
    thread_sanitizer.require(folder)
    library = thread_sanitizer.build_library("libphantora.so", folder)
    made = [f"LIB={folder}/lib", f"OBJ={folder}/obj", "CXXFLAGS=-O1 -g"]
    made += [f"SANITIZE={thread_sanitizer.SANITIZE}", f"TORCH_PYTHON={sys.executable}"]
    subprocess.run(["make", "-s", "values-alone", *made], cwd=root, check=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (library.parent / name).symlink_to(library)
    return library.parent


@pytest.fixture(scope="module")
def program(libraries, tmp_path_factory):
    """A Python interpreter that is linked with ThreadSanitizer's runtime and the interceptor; its path."""
    made = tmp_path_factory.mktemp("program") / "python"
    found = [f"-I{sysconfig.get_config_var('INCLUDEPY')}", f"-Wl,-rpath,{PYTHON.parent}"]
    command = ["cc", thread_sanitizer.SANITIZE, "-no-pie", "-g", *found, "-o", made]
    libraries_of_it = ["-Wl,--no-as-needed", libraries / "libphantora.so", PYTHON, "-ldl"]
    subprocess.run([*command, HERE / "c/python_main.c", *libraries_of_it], check=True)
    return made


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_threads_that_run_operators_share_no_state_without_a_lock(libraries, program, tmp_path):
    run_dir = tmp_path / "run"
    (run_dir / "ranks").mkdir(parents=True)
    write_device_conf(load_gpu("h200"), run_dir / "device.conf")
    torch = Path(importlib.util.find_spec("torch").origin).parent
    zmq = next((torch.parent / "pyzmq.libs").glob("libzmq-*.so*"))
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("PHANTORA_", "CUDA_", "LD_"))}
    environment = {
        **outer,
        # ThreadSanitizer's dlopen does not look where torch's libraries say
        "LD_LIBRARY_PATH": f"{libraries}:{torch / 'lib'}",
        "PHANTORA_RUN_DIR": str(run_dir),
        "PHANTORA_NODE": "0",
        "PHANTORA_GPUS_PER_NODE": "1",
        "PHANTORA_LIBZMQ": str(zmq),
        "PHANTORA_VALUES_LIB": str(libraries),
        "PHANTORA_HOST_TIME": "none",
        "PYTHONHOME": sys.base_prefix,
        "PYTHONPATH": f"{torch.parent}:{HERE}",
        "TSAN_OPTIONS": thread_sanitizer.OPTIONS,
    }
    with RecordingHub(run_dir):
        command = [*thread_sanitizer.unshuffled(), program, HERE / "threads.py"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[:20000]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("THREADS ")]
    assert json.loads(line.removeprefix("THREADS ")) == []
