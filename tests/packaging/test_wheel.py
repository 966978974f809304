"""Why it exists: the wheel must hold all that a run needs, and run beside a torch on a machine that
has neither this tree nor a compiler.

Rule: the wheel under test is the one that `make wheel` makes. It is installed as an ordinary user
would install it; where the tests run as root, another user does so, if that user can start a Python
of this version and read torch."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

NOBODY = 65534
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
TORCHRUN = "import sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"
EXAMPLE = "train_llama.py --mode ddp --size 160m --layers 1 --seq 256 --steps 2".split()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(root):
    outer = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "-C", root, "wheel", f"PYTHON={sys.executable}"]
    (root / "build").mkdir(exist_ok=True)
    # pytest-xdist may give this file to two workers
    with open(root / "build" / "wheel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, env=outer, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (root / "dist").glob("*.whl")
    return found


def tracked(root, *folders):
    done = subprocess.run(
        ["git", "ls-files", *folders], cwd=root, capture_output=True, text=True
    )  # fmt: skip
    if done.returncode:
        pytest.skip("not a git checkout")
    return {name for name in done.stdout.splitlines() if (root / name).exists()}


def test_one_file_fits_every_python(wheel):
    assert wheel.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    # auditwheel puts libraries that others would have to bring into a folder NAME.libs
    assert {name.partition("/")[0] for name in names} == {
        "phantora_ns",
        wheel.name.partition("-py3")[0] + ".dist-info",
    }
    machine_code = {PurePosixPath(name).name for name in names if "phantora_ns/lib/" in name}
    assert machine_code - {"lib", ""} == {
        "libphantora.so", "libphantora-leader.so", "libphantora-flows.so", "libphantora-score.so",
        "phantora-sandbox",
    }  # fmt: skip


def test_the_wheel_holds_the_package_and_the_sources_of_the_values_library(wheel, root):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        values = {
            name: archive.read(name).decode()
            for name in names
            if name.startswith("phantora_ns/libintercept/") and not name.endswith("/")
        }
    assert tracked(root, "phantora_ns") - names == set()
    copied = tracked(root, "topologies", "libintercept/values")
    assert {f"phantora_ns/{name}" for name in copied} - names == set()
    included = {header for text in values.values() for header in INCLUDE.findall(text)}
    assert {f"phantora_ns/libintercept/{header}" for header in included} - names == set()


def test_the_sdist_holds_every_source(wheel, root):
    """Without one of the C files the interceptor would still build: a stub that refuses the call
    takes the function's place."""
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("phantora_ns", "libintercept", "libflows", "launcher", "topologies")
    assert tracked(root, *folders) - names == set()


class Installation:
    """A new virtual environment of an ordinary user, with the wheel and the torch at hand."""

    def __init__(self, folder: Path, wheel: Path, root: Path) -> None:
        self.folder = folder
        self._python, self._user = self._choose()
        print(f"the wheel is installed for {self._python}, as user {self._user or os.geteuid()}")
        (folder / "bin").mkdir()
        for file in (wheel, root / "examples" / EXAMPLE[0]):
            shutil.copy(file, folder)
        for path in (folder, folder / "bin"):
            path.chmod(0o755)
            if self._user:
                os.chown(path, NOBODY, NOBODY)
        self.check(self._python, "-m", "venv", "venv", path=os.defpath)
        self.check("venv/bin/pip", "install", "--quiet", wheel.name, path=os.defpath)
        (packages,) = (folder / "venv").glob("lib/python3*/site-packages")
        theirs = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "torch.pth").write_text("\n".join(theirs) + "\n")
        torchrun = folder / "venv" / "bin" / "torchrun"
        torchrun.write_text(f"#!{folder}/venv/bin/python\n{TORCHRUN}")
        torchrun.chmod(0o755)

    @staticmethod
    def _choose() -> tuple[str, int | None]:
        """A Python of this version, and the user who runs it; None: whoever runs the tests."""
        own = sys._base_executable
        if os.geteuid() != 0:
            return own, None
        torch = find_spec("torch").origin
        for python in (own, f"/usr/bin/python3.{sys.version_info.minor}"):
            try:
                subprocess.run(
                    [python, "-c", f"import ensurepip; open({torch!r})"],
                    user=NOBODY,
                    group=NOBODY,
                    extra_groups=[],
                    capture_output=True,
                    check=True,
                )
            except (OSError, subprocess.CalledProcessError):
                continue
            return python, NOBODY
        return own, None

    def run(self, *command, path: str) -> subprocess.CompletedProcess:
        kept = {
            k: v
            for k, v in os.environ.items()
            if k.startswith(("PIP_", "SSL_")) or k.lower().endswith("_proxy")
        }
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**kept, "HOME": str(self.folder), "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if self._user else {}),
        )

    def check(self, *command, path: str) -> subprocess.CompletedProcess:
        done = self.run(*command, path=path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    def phantora(self, *arguments, path: str = "") -> subprocess.CompletedProcess:
        """`phantora-ns` with PATH `path`, after the environment's own programs; none: no compiler
        and no other program of this machine."""
        programs = f"{self.folder}/venv/bin"
        return self.check("venv/bin/phantora-ns", *arguments, path=f"{programs}:{path}".strip(":"))


@pytest.fixture(scope="module")
def installation(wheel, root):
    # pytest's own folder is closed to other users
    with tempfile.TemporaryDirectory(prefix="phantora-wheel-") as folder:
        yield Installation(Path(folder), wheel, root)


def run_job(installation, path=""):
    """Runs the example; returns what the job and phantora-ns wrote on stderr."""
    job = installation.phantora("torchrun", "--nproc-per-node", "2", *EXAMPLE, path=path)
    assert len(re.findall(r"^step +\d+ .* tokens/s/GPU", job.stdout, re.M)) == 2, job.stdout
    return job.stderr


def test_it_runs_without_a_compiler_and_says_what_is_missing(installation, root):
    doctor = installation.phantora("doctor")
    assert "phantora-ns can run jobs on this machine" in doctor.stdout
    said = run_job(installation)
    assert said.count("no C++ compiler") == 1, said
    assert str(root) not in doctor.stdout + said, "it uses this tree"


@pytest.mark.nightly  # a minute of the compiler
def test_with_a_compiler_the_first_job_compiles_the_values_library(installation):
    compiles, missing = "compiling the values library for torch", "values library is not in use"
    first = run_job(installation, path=os.defpath)
    assert first.count(compiles) == 1 and missing not in first, first
    second = run_job(installation, path=os.defpath)
    assert compiles not in second and missing not in second, second
