"""Why it exists: a job's threads use CUDA at once (autograd, watchdogs, data loaders), from the first
call on. ThreadSanitizer sees each access to shared state that no lock orders, whether or not it did
harm in this run."""

import subprocess

import pytest

from phantora_ns.kernels.database import host_samples
from phantora_ns.kernels.database.host_table import Here, HostRecord, write_table
from tests import thread_sanitizer
from tests.intercept.recording_hub import RecordingHub

MODES = {"none": {}, "measured": {"PHANTORA_TRACE": "1"}, "auto": {}}


@pytest.fixture(scope="module")
def racing(root, tmp_path_factory):
    """c/races.c and the interceptor under ThreadSanitizer: the program, the library."""
    folder = tmp_path_factory.mktemp("races")
    thread_sanitizer.require(folder)
    library = thread_sanitizer.build_library("libphantora.so", folder)
    source = root / "tests/intercept/c/races.c"
    return thread_sanitizer.build_program(source, library, folder), library


@pytest.mark.parametrize("mode", MODES)
def test_threads_that_use_cuda_at_once_share_no_state_without_a_lock(
    racing, run_dir, environment, tmp_path, mode
):
    program, library = racing
    names = tmp_path / "sanitized"
    names.mkdir()
    (names / "libcuda.so.1").symlink_to(library)
    (run_dir / "trace").mkdir()
    host_samples.make_samples(run_dir, host_samples.Reference(1, 1))
    write_table(run_dir / "host.tbl", HostRecord(), 7000, Here(measures=True))
    environment.pop("LD_PRELOAD")
    environment |= {
        "LD_LIBRARY_PATH": str(names),
        "PHANTORA_HOST_TIME": mode,
        "TSAN_OPTIONS": thread_sanitizer.OPTIONS,
        **MODES[mode],
    }
    with RecordingHub(run_dir, collective_ns=5000):
        command = [*thread_sanitizer.unshuffled(), program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[:20000]
    assert done.stdout == "threads 6\ndiffer 0\n"
