"""The versions of Python, torch and CUDA's libraries in the job's environment, and whether they are
known to work.

Why it exists: what is wrong with a version that nobody tried shows late and far from its cause. So
it is said in one line, before the job starts; then the job is run. Rule: torch is not imported;
files and the names of folders tell, and a file that is missing or damaged leaves a version unknown.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from phantora_ns.config.versions import TorchRelease, supported_versions

_PACKAGES = {
    "cudnn": re.compile(r"nvidia[_-]cudnn[_-]cu(\d+)"),
    # cuBLAS's package is named after CUDA until 12
    "cublas": re.compile(r"nvidia[_-]cublas(?:[_-]cu(\d+))?"),
    "nccl": re.compile(r"nvidia[_-]nccl[_-]cu(\d+)"),
    "triton": re.compile(r"(?:pytorch[_-])?triton"),
}
_DIST_INFO = re.compile(r"([\w.-]+?)-(\d[^-]*)\.dist-info")
_NAMES = {"cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "triton": "Triton"}
_MACHINE = "x86_64"


@dataclass(frozen=True)
class Software:
    """What was found. A version that could not be found out is empty, and so is one that the build
    does not have (`cuda` of a CPU build, `rocm` of all but AMD's)."""

    python: str
    torch: str
    cuda: str = ""
    rocm: str = ""
    cudnn: str = ""
    cublas: str = ""
    nccl: str = ""
    triton: str = ""
    machine: str = _MACHINE

    @property
    def release(self) -> str:
        """torch's version without the name of the build: 2.15.0 of 2.15.0+cu132."""
        return self.torch.partition("+")[0]

    def versions(self) -> str:
        """All that was found, in words, torch's first."""
        named = [f"ROCm {self.rocm}"] if self.rocm else []
        named += [
            f"{name} {getattr(self, field)}"
            for field, name in _NAMES.items()
            if getattr(self, field)
        ]
        return ", ".join([self.torch or "of an unknown version", *named])

    def describe(self) -> dict[str, str | None]:
        """For the report: null is what is not there, or could not be found out."""
        versions = {name: value or None for name, value in asdict(self).items()}
        return versions | {"state": state(self)}


def own_version() -> str:
    """The version of phantora-ns."""
    from importlib import metadata

    try:
        return metadata.version("phantora-ns")
    except metadata.PackageNotFoundError:
        return "unknown (a checkout that is not installed)"


def read_software(torch: Path) -> Software:
    """What lies in and beside the torch package in folder `torch`."""
    about = _read_version_file(torch)
    cuda = about.get("cuda", "")
    # A link leads to where the packages beside torch are.
    folders = dict.fromkeys([torch.parent, torch.resolve().parent])
    found = _installed(folders, cuda.partition(".")[0])
    return Software(
        python=_python_version(torch),
        torch=about.get("__version__", ""),
        cuda=cuda,
        rocm=about.get("hip", ""),
        # the fourth part counts NVIDIA's builds of one release
        cudnn=".".join(found.get("cudnn", "").split(".")[:3]),
        cublas=".".join(found.get("cublas", "").split(".")[:3]),
        nccl=found.get("nccl", ""),
        triton=found.get("triton", ""),
        machine=os.uname().machine,
    )


def _read_version_file(torch: Path) -> dict[str, str]:
    """The texts that torch/version.py assigns."""
    try:
        text = (torch / "version.py").read_text(errors="replace")
    except OSError:
        return {}
    assigned = re.findall(r"^(\w+)\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return dict(assigned)


def _python_version(torch: Path) -> str:
    """3.12 for lib/python3.12/site-packages/torch; else this Python's."""
    for part in reversed(torch.parts):
        if match := re.fullmatch(r"python(\d+\.\d+)t?", part):
            return match[1]
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _installed(folders: Iterable[Path], cuda_major: str) -> dict[str, str]:
    """Field of Software -> version of its package. Packages for two CUDA majors may lie side by
    side: then those for torch's own count."""
    found: dict[str, str] = {}
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            package = _DIST_INFO.fullmatch(name)
            for field, pattern in _PACKAGES.items() if package else ():
                match = pattern.fullmatch(package[1])
                if match and match.groups() in ((), (None,), (cuda_major,)):
                    found.setdefault(field, package[2])
    return found


def state(software: Software) -> str:
    """ "tested" or "works" for what data/versions.toml lists, else "unknown"."""
    release = supported_versions().release(software.release)
    return "unknown" if release is None or remark(software) else release.state


def remark(software: Software) -> str | None:
    """One line about software that is not known to work: what was found, what is known to work, and
    what will be missing. None when there is nothing to say."""
    supported = supported_versions()
    found = f"torch {software.versions()}"
    works = f"torch {supported.torch_range}"
    if not software.cuda and software.torch:
        return (
            f"{found} is a build without CUDA; known to work are the CUDA builds of {works}, which "
            f"pip install torch=={supported.releases[0].torch} brings; jobs will find no GPU"
        )
    missing = (
        "what is new in it is refused, and named in the report, and kernel times that were "
        "recorded under other versions may not be found"
    )
    if software.machine != _MACHINE:
        found += f" on {software.machine}"
        works += f" on {_MACHINE}"
        missing = "no part of phantora-ns was tried on this processor"
    release = supported.release(software.release)
    if release is None or software.machine != _MACHINE:
        return f"{found} was not tried; known to work are {works}; {missing}"
    others = _differences(software, release)
    if others:
        return (
            f"torch {software.torch} with {' and '.join(others)} was not tried; known to work is "
            f"what pip install torch=={release.torch} brings; {missing}"
        )
    if software.python not in supported.python:
        versions = f"{supported.python[0]} to {supported.python[-1]}"
        return (
            f"torch {software.torch} under Python {software.python} was not tried; known to work "
            f"are Python {versions}; clocks and recorded host times may be missing"
        )
    return None


def _differences(software: Software, release: TorchRelease) -> list[str]:
    """The libraries that are not the release's own."""
    return [
        f"{name} {found} in place of {wanted}"
        for field, name in _NAMES.items()
        if (found := getattr(software, field)) and found != (wanted := getattr(release, field))
    ]
