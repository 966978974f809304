"""Our own processes import what is installed, never what lies beside the user's script or on the
user's PYTHONPATH; the job's processes see both."""

import os
import signal
import subprocess
import sys

import pytest

from phantora_ns.launch.machine import installation
from phantora_ns.launch.machine.own_python import own_path
from phantora_ns.launch.run import hub_process

NAMES = ("msgpack", "zmq", "numpy", "zstandard", "sortedcontainers", "click", "phantora_ns")
POISON = """
import os, sys
with open(os.environ["POISONED"], "a") as file:
    print(__name__, *sys.orig_argv, file=file)
sys.exit(99)
"""


@pytest.fixture
def poisoned(tmp_path):
    """A folder of modules that must not be imported, and an environment that offers them."""
    folder = tmp_path / "job"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(POISON)
    return folder, {
        **os.environ,
        "PYTHONPATH": str(folder),
        "POISONED": str(tmp_path / "imported"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_a_run_imports_nothing_of_the_users(poisoned, tmp_path, root):
    folder, env = poisoned
    start = (
        f"import runpy, sys; sys.path.insert(0, {str(root)!r}); "
        "runpy.run_module('phantora_ns', run_name='__main__')"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-c", start),
            *("--isolation", "none", "--trace", tmp_path / "traces", "--nnodes", "1", "--"),
            *(sys.executable, "-c", "import msgpack"),
        ],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    imported = (tmp_path / "imported").read_text().splitlines()
    assert done.returncode == 99 and "hub" not in done.stderr, done.stderr
    assert imported == [f"msgpack {sys.executable} -c import msgpack"]  # the job's own import
    assert (tmp_path / "traces").is_dir()


def test_the_hub_does_not_look_into_the_current_folder(poisoned, tmp_path):
    folder, env = poisoned
    command = hub_process.hub_command(tmp_path / "no-run")
    for paths in ({}, {"PYTHONPATH": str(folder)}):
        clean = {name: value for name, value in env.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            command, cwd=folder, env=clean | paths, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1 and "the hub cannot start" in done.stderr, done.stderr
    assert not (tmp_path / "imported").exists()


def test_libzmq_is_that_of_the_installed_pyzmq(poisoned, monkeypatch):
    folder, env = poisoned
    expected = installation.find_libzmq()
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    assert installation.find_libzmq() == expected
    assert not {str(folder), ""} & set(own_path())


def test_a_torch_that_only_the_job_sees_is_found(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert installation.find_torch(None) == tmp_path / "torch"


STARTS = {
    "the command line": """
class Interrupts:
    def find_spec(self, name, *_):
        if name.startswith("phantora_ns.cli"): signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from phantora_ns.__main__ import main
main()
""",
    "a process of ours": """
import runpy
from phantora_ns.launch.machine import own_python
runpy.run_module = lambda *_, **__: signal.raise_signal(signal.SIGINT)
own_python._run(["phantora_ns.hub"])
""",
}


@pytest.mark.parametrize("what", STARTS)
def test_an_interrupt_while_it_starts_prints_nothing(what):
    script = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", script + STARTS[what]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
