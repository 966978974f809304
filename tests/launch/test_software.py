"""An environment's versions are read from its files alone, and one that nobody tried is said in one
line before it is tried."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from phantora_ns.config import ConfigError
from phantora_ns.config.versions import supported_versions
from phantora_ns.launch.machine.software import Software, read_software, remark, state

NEWEST = supported_versions().releases[0]
KNOWN = f"torch {supported_versions().torch_range}"


class Environment:
    """A folder like a virtual environment's, with a torch that only its files tell of."""

    def __init__(self, folder, python="3.12"):
        self.folder = folder
        self.site = folder / "lib" / f"python{python}" / "site-packages"
        self.torch = self.site / "torch"
        self.torch.mkdir(parents=True)
        (self.torch / "__init__.py").write_text("raise SystemExit('imported')\n")

    def say(self, **fields):
        """Writes torch/version.py as torch's builds do; None is Python's None."""
        lines = ["from typing import Optional", "__all__ = ['__version__', 'cuda', 'hip']"]
        lines.append(f"__version__ = {fields.pop('version')!r}")
        lines += [f"{name}: Optional[str] = {value!r}" for name, value in fields.items()]
        (self.torch / "version.py").write_text("\n".join(lines) + "\n")

    def install(self, **packages):
        for name, version in packages.items():
            (self.site / f"{name}-{version}.dist-info").mkdir()

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path / "environment")


def release_in(environment, release, **other):
    """Installs `release` as pip would; `other` replaces versions of it."""
    parts = {**vars(release), **other}
    cuda = parts["cuda"]
    major = cuda.partition(".")[0]
    environment.say(
        version=f"{parts['torch']}+cu{cuda.replace('.', '')}", debug=False, cuda=cuda, hip=None
    )
    environment.install(
        **{
            f"nvidia_cudnn_cu{major}": f"{parts['cudnn']}.51",
            f"nvidia_nccl_cu{major}": parts["nccl"],
            "triton": parts["triton"],
        }
    )


@pytest.mark.parametrize("release", supported_versions().releases, ids=lambda r: r.torch)
def test_every_supported_release_is_recognised(environment, release):
    release_in(environment, release)
    found = read_software(environment.torch)
    assert remark(found) is None and state(found) == release.state
    assert found.python == "3.12" and found.release == release.torch
    assert (found.cuda, found.cudnn, found.nccl, found.triton) == (
        release.cuda,
        release.cudnn,
        release.nccl,
        release.triton,
    )


def test_the_installed_torch_is_one_of_the_list_or_has_a_remark(root):
    """What the files say is what torch itself says."""
    code = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.nccl.version())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    import importlib.util

    from phantora_ns.launch.machine.installation import find_torch

    found = read_software(find_torch(sys.executable))
    assert importlib.util.find_spec("torch") is not None
    nccl = tuple(map(int, found.nccl.split(".")))
    assert done.stdout.strip() == f"{found.torch} {found.cuda} {nccl}"
    assert found.cudnn and found.triton


UNTRIED = {
    "a later release": (
        {"version": "2.99.0+cu140", "cuda": "14.0", "hip": None},
        {"nvidia_cudnn_cu14": "10.1.0.5", "nvidia_nccl_cu14": "2.40.1", "triton": "4.0.0"},
        ["torch 2.99.0+cu140, CUDA 14.0, cuDNN 10.1.0, NCCL 2.40.1, Triton 4.0.0 was not tried"],
    ),
    "a nightly": (
        {"version": "2.99.0.dev20270101+cu132", "cuda": "13.2", "hip": None},
        {"nvidia_nccl_cu13": "2.31.0", "pytorch_triton": "3.10.0+git1234abcd"},
        ["torch 2.99.0.dev20270101+cu132, CUDA 13.2, NCCL 2.31.0, Triton 3.10.0+git1234abcd was"],
    ),
    "an old release": (
        {"version": "2.4.1+cu121", "cuda": "12.1", "hip": None},
        {"nvidia-cudnn-cu12": "9.1.0.70", "nvidia-nccl-cu12": "2.20.5", "triton": "3.0.0"},
        ["torch 2.4.1+cu121, CUDA 12.1, cuDNN 9.1.0, NCCL 2.20.5, Triton 3.0.0 was not tried"],
    ),
    "a build for another CUDA": (
        {"version": f"{NEWEST.torch}+cu126", "cuda": "12.6", "hip": None},
        {"nvidia_cudnn_cu12": f"{NEWEST.cudnn}.9", "nvidia_nccl_cu12": NEWEST.nccl},
        [f"torch {NEWEST.torch}+cu126 with CUDA 12.6 in place of {NEWEST.cuda} was not tried"],
    ),
    "packages that are not the release's": (
        {"version": f"{NEWEST.torch}+cu132", "cuda": NEWEST.cuda, "hip": None},
        {"nvidia_cudnn_cu13": "9.99.0.1", "nvidia_nccl_cu13": "2.99.1"},
        [
            f"cuDNN 9.99.0 in place of {NEWEST.cudnn} and NCCL 2.99.1 in place of {NEWEST.nccl} "
            "was not tried"
        ],
    ),
    "ROCm": (
        {"version": f"{NEWEST.torch}+rocm7.2", "cuda": None, "hip": "7.2.1-abcdef"},
        {"triton_rocm": NEWEST.triton},
        [f"torch {NEWEST.torch}+rocm7.2, ROCm 7.2.1-abcdef is a build without CUDA", "no GPU"],
    ),
    "without GPUs": (
        {"version": f"{NEWEST.torch}+cpu", "cuda": None, "hip": None},
        {},
        [f"torch {NEWEST.torch}+cpu is a build without CUDA", "jobs will find no GPU"],
    ),
}


def prepare(environment, case):
    about, packages, words = UNTRIED[case]
    environment.say(**about)
    environment.install(**packages)
    return words


@pytest.mark.parametrize("case", UNTRIED)
def test_what_nobody_tried_gets_one_line(environment, case):
    words = prepare(environment, case)
    found = read_software(environment.torch)
    line = remark(found)
    for text in words:
        assert text in line
    assert state(found) == "unknown" and "\n" not in line
    was_found, works, missing = line.split("; ")
    assert works.startswith("known to work") and NEWEST.torch in works
    assert missing


def test_another_processor_is_said():
    known = Software(python="3.11", torch=NEWEST.torch, cuda=NEWEST.cuda)
    assert remark(known) is None
    line = remark(replace(known, machine="aarch64"))
    assert "on aarch64 was not tried" in line and f"{KNOWN} on x86_64" in line


def test_another_python_is_said(tmp_path):
    environment = Environment(tmp_path, python="3.99")
    release_in(environment, NEWEST)
    line = remark(read_software(environment.torch))
    assert line.startswith(f"torch {NEWEST.torch}") and "under Python 3.99 was not tried" in line


def damage_nothing_there(environment):
    pass


def damage_not_text(environment):
    (environment.torch / "version.py").write_bytes(bytes(range(256)))
    (environment.site / "triton-.dist-info").mkdir()
    (environment.site / "nvidia_nccl_cu13-2.30.7.dist-info").write_text("a file")


def damage_a_folder(environment):
    (environment.torch / "version.py").mkdir()


@pytest.mark.parametrize("damage", [damage_nothing_there, damage_not_text, damage_a_folder])
def test_a_damaged_installation_is_unknown(environment, damage):
    damage(environment)
    found = read_software(environment.torch)
    assert found.torch == "" and state(found) == "unknown"
    assert "torch of an unknown version" in remark(found)


def test_packages_for_two_releases_of_cuda(environment):
    release_in(environment, NEWEST)
    environment.install(nvidia_nccl_cu12="2.1.1", nvidia_cudnn_cu12="8.1.1.1", my_triton="9.9")
    assert remark(read_software(environment.torch)) is None


@pytest.mark.parametrize("case", UNTRIED)
def test_a_run_says_it_once_and_runs(launch, environment, case):
    words = prepare(environment, case)
    job = environment.program("job", "#!/bin/sh\necho job\n")
    code, out, err = launch("--nnodes", 2, job).finish()
    assert (code, out) == (0, "job\njob\n"), err
    assert err.count(words[0]) == 1 and "Traceback" not in err
    code, out, err = launch("--quiet", "--nnodes", 2, job).finish()
    assert (code, out, err) == (0, "job\njob\n", "")


def test_kernels_that_cannot_be_read_stop_no_run(launch, environment):
    prepare(environment, "a later release")
    (environment.torch / "lib").mkdir()
    (environment.torch / "lib" / "libtorch_cuda.so").write_bytes(b"another kind of library")
    code, out, err = launch(environment.program("job", "#!/bin/sh\necho job\n")).finish()
    assert (code, out) == (0, "job\n"), err
    assert "Traceback" not in err


def doctor(launch, environment):
    environment.program("torchrun", "#!/bin/sh\nexit 1\n")
    path = f"{environment.folder}/bin:{os.environ['PATH']}"
    # the helper puts this Python's folder first
    return launch("doctor", within=lambda command: ["env", f"PATH={path}", *command]).finish()


@pytest.mark.parametrize("case", UNTRIED)
def test_the_doctor_tells_what_was_not_tried_from_what_cannot_work(launch, environment, case):
    words = prepare(environment, case)
    code, out, err = doctor(launch, environment)
    fatal = "no GPU" in words[-1]
    assert code == fatal and err == ""
    (line,) = [line for line in out.splitlines() if line[8:].startswith("torch ")]
    assert line.startswith("FAILED  torch " if fatal else "note    torch ") and words[0] in line


def test_the_doctor_names_the_state(launch, environment):
    release_in(environment, NEWEST)
    code, out, _ = doctor(launch, environment)
    assert code == 0
    assert re.search(
        rf"^ok      torch: {re.escape(NEWEST.torch)}\S*, CUDA {NEWEST.cuda}, cuDNN {NEWEST.cudnn}, "
        rf"NCCL {NEWEST.nccl}, Triton {NEWEST.triton}: tested$",
        out,
        re.M,
    )


def test_the_list_is_read_once():
    """The hub needs it again while the job runs, when a file may not be readable any more."""
    assert supported_versions() is supported_versions()


def test_the_list_is_in_order_and_complete(root, tmp_path):
    releases = supported_versions().releases
    numbers = [tuple(map(int, release.torch.split("."))) for release in releases]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == len(numbers)
    wrong = tmp_path / "versions.toml"
    wrong.write_text('python = []\n[torch."9.9.9"]\ncuda = "13.2"\nstate = "hopeful"\n')
    with pytest.raises(ConfigError, match="cudnn"):
        supported_versions(wrong)
