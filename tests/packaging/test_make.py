"""Why it exists: what `make` promises a newcomer: nothing to do the second time, and a notice instead of a broken build."""
import os
import subprocess
import sys

import pytest


def make(root, *arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "-C", root, *arguments, *(f"{name}={value}" for name, value in variables.items())]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170, check=False)


def test_a_second_build_does_nothing(root, tmp_path):
    where = {"LIB": tmp_path / "lib", "OBJ": tmp_path / "obj", "CXX": "no-such-compiler"}
    first = make(root, "native", **where)
    assert first.returncode == 0, first.stderr
    assert {"libphantora.so", "phantora-sandbox", "libphantora-flows.so"} <= {path.name for path in (tmp_path / "lib").iterdir()}
    second = make(root, "native", **where)
    assert second.returncode == 0
    assert not any(line.startswith(("cc ", "gcc ", "g++ ", "c++ ")) for line in second.stdout.splitlines()), second.stdout


@pytest.mark.parametrize("variables, reason", [
    ({"CXX": "no-such-compiler"}, "no C++ compiler: no-such-compiler was not found"),
    ({"TORCH_PYTHON": "no-such-python"}, "no torch in the environment of no-such-python"),
], ids=["compiler", "torch"])
def test_the_values_library_is_left_out_with_a_notice(root, tmp_path, variables, reason):
    done = make(root, "values", LIB=tmp_path / "lib", OBJ=tmp_path / "obj", **variables)
    assert done.returncode == 0
    assert f"the values library is left out ({reason})" in done.stderr
    assert not (tmp_path / "lib" / "libphantora-values.so").exists()


def test_a_python_that_is_too_old_is_named(root, tmp_path):
    old = tmp_path / "python-of-old"
    old.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 1\necho "Python 3.8.1"\n')
    old.chmod(0o755)
    done = make(root, "venv", PYTHON=old, VENV=tmp_path / "venv")
    assert done.returncode != 0
    assert "phantora-ns needs Python 3.11 or later" in done.stderr and "Python 3.8.1" in done.stderr


def test_the_values_library_is_compiled_against_this_torch(root, tmp_path):
    found = subprocess.run([sys.executable, root / "libintercept/values/find_torch.py"], capture_output=True, text=True,
                           check=True)
    import torch

    assert torch.__version__ in found.stdout
    includes = next(line for line in found.stdout.splitlines() if line.startswith("TORCH_INCLUDES"))
    assert all(os.path.isdir(path) for path in includes.split()[3::2])
