"""C programs of many threads, and our C libraries below them, under ThreadSanitizer.

Why it exists: the tests of the interceptor and of the leader's library (test_races.py in both
folders) build and start such programs in the same way.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SANITIZE = "-fsanitize=thread"
# libzmq is not instrumented: its own locks are not seen
OPTIONS = "exitcode=66 ignore_noninstrumented_modules=1"


def unshuffled():
    """ThreadSanitizer needs a part of the addresses, which the kernel may give away by chance."""
    setarch = shutil.which("setarch")
    return [setarch, "--addr-no-randomize"] if setarch else []


def require(folder):
    """Skips the test where ThreadSanitizer does not work. `folder`: for a program that shows it."""
    program, source = folder / "empty", folder / "empty.c"
    source.write_text("int main(void) { return 0; }")
    if subprocess.run(["cc", SANITIZE, "-no-pie", "-o", program, source]).returncode:
        pytest.skip("the compiler has no ThreadSanitizer")
    if subprocess.run([*unshuffled(), program], capture_output=True).returncode:
        pytest.skip("ThreadSanitizer does not run on this kernel")


def build_library(name, folder, instrumented=True):
    """Builds one of our C libraries for an instrumented program; returns its path. Nobody looks at
    what a library does that is not instrumented itself."""
    library = folder / "lib" / name
    flags = "-O0 -g1" if instrumented else "-O0 -DPH_BESIDE_THREAD_SANITIZER"
    made = [f"LIB={folder}/lib", f"OBJ={folder}/obj", f"CFLAGS={flags}"]
    made += [f"SANITIZE={SANITIZE}"] if instrumented else []
    subprocess.run(["make", "-s", "-j2", library, "CC=cc", *made], cwd=ROOT, check=True)
    return library


def build_program(source, library, folder):
    """Compiles one C file, instrumented, against `library`; returns the program's path."""
    program = folder / source.stem
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", SANITIZE, "-no-pie"]
    subprocess.run(["cc", *flags, "-o", program, source, library, "-ldl"], check=True)
    return program
