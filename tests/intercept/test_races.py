"""Why it exists: a job's threads use CUDA at once (autograd, watchdogs, data loaders), from the first
call on. ThreadSanitizer sees each access to shared state that no lock orders, whether or not it did
harm in this run."""

import shutil
import subprocess

import pytest

from phantora_ns.kernels.database import host_samples
from phantora_ns.kernels.database.host_table import Here, HostRecord, write_table
from tests.intercept.recording_hub import RecordingHub

SANITIZE = "-fsanitize=thread"
MODES = {"none": {}, "measured": {"PHANTORA_TRACE": "1"}, "auto": {}}


@pytest.fixture(scope="module")
def racing(root, tmp_path_factory):
    """c/races.c and the interceptor under ThreadSanitizer: the program, the library."""
    folder = tmp_path_factory.mktemp("races")
    library, program = folder / "lib/libphantora.so", folder / "races"
    (folder / "empty.c").write_text("int main(void) { return 0; }")
    empty = [folder / "empty", *unshuffled()]
    if subprocess.run(["cc", SANITIZE, "-no-pie", "-o", empty[0], folder / "empty.c"]).returncode:
        pytest.skip("the compiler has no ThreadSanitizer")
    if subprocess.run([*empty[1:], empty[0]], capture_output=True).returncode:
        pytest.skip("ThreadSanitizer does not run on this kernel")
    made = [f"LIB={folder}/lib", f"OBJ={folder}/obj", f"SANITIZE={SANITIZE}", "CFLAGS=-O0 -g1"]
    subprocess.run(["make", "-s", "-j2", library, "CC=cc", *made], cwd=root, check=True)
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", SANITIZE, "-no-pie"]
    source = root / "tests/intercept/c/races.c"
    subprocess.run(["cc", *flags, "-o", program, source, library, "-ldl"], check=True)
    return program, library


def unshuffled():
    """ThreadSanitizer needs a part of the addresses, which the kernel may give away by chance."""
    setarch = shutil.which("setarch")
    return [setarch, "--addr-no-randomize"] if setarch else []


@pytest.mark.parametrize("mode", MODES)
def test_threads_that_use_cuda_at_once_share_no_state_without_a_lock(
    racing, run_dir, environment, tmp_path, mode
):
    program, library = racing
    names = tmp_path / "sanitized"
    names.mkdir()
    (names / "libcuda.so.1").symlink_to(library)
    (run_dir / "trace").mkdir()
    host_samples.make_samples(run_dir, host_samples.Reference(1))
    write_table(run_dir / "host.tbl", HostRecord(), 7000, Here(measures=True))
    environment.pop("LD_PRELOAD")
    environment |= {
        "LD_LIBRARY_PATH": str(names),
        "PHANTORA_HOST_TIME": mode,
        # libzmq is not instrumented: its own locks are not seen
        "TSAN_OPTIONS": "exitcode=66 ignore_noninstrumented_modules=1",
        **MODES[mode],
    }
    with RecordingHub(run_dir, collective_ns=5000):
        done = subprocess.run(
            [*unshuffled(), program], env=environment, capture_output=True, text=True, timeout=150
        )
    assert done.returncode == 0, done.stderr[:20000]
    assert done.stdout == "threads 6\ndiffer 0\n"
