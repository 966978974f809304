"""Why it exists: tests that start runs prove that nothing of them is left on the machine. A run is
told from all others by a mark in the environment of its processes."""

import contextlib
import os
import time
from pathlib import Path

MARK = "PHANTORA_TEST_MARK"


def marked_processes(mark, variable=""):
    """{pid: command line} of everything that lives and has `mark`, and a `variable`, in its environment."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            environment = b"\0" + Path(entry.path, "environ").read_bytes()
            if f"{MARK}={mark}".encode() in environment and f"\0{variable}".encode() in environment:
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                found[int(entry.name)] = " ".join(word.decode() for word in words)
    return found


def interfaces():
    """Names of this network namespace's interfaces."""
    return sorted(
        line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]
    )


def wait_until(true, describe=lambda: "", timeout=10.0):
    """Polls a condition that the kernel or another process will make true."""
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.01)


def assert_nothing_left(mark, folder, before, run_dir=True):
    """No process, mount, interface, or run directory of the run of `mark`; what the kernel does last
    may take a moment. `folder`: its TMPDIR; `before`: the interfaces before it."""
    wait_until(lambda: not marked_processes(mark), lambda: marked_processes(mark))
    if run_dir:
        wait_until(
            lambda: not list(folder.glob("phantora-ns-*")),
            lambda: list(folder.glob("phantora-ns-*")),
        )
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert interfaces() == before
