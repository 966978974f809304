"""The releases of PyTorch that are supported, from data/versions.toml.

Why it exists: the doctor, the start of a run and the tool that makes docs/versions.md must speak of
one list. Nothing here looks at what is installed (launch/machine/software.py does).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from phantora_ns.config.toml_table import Table, read_toml

_FILE = Path(str(resources.files("phantora_ns"))) / "data" / "versions.toml"
STATES = ("tested", "works")


@dataclass(frozen=True)
class TorchRelease:
    """A release of PyTorch and what comes with it. `state`: one of STATES."""

    torch: str
    cuda: str
    cudnn: str
    cublas: str
    nccl: str
    triton: str
    state: str


@dataclass(frozen=True)
class SupportedVersions:
    """Versions of Python, and releases of PyTorch, newest first."""

    python: tuple[str, ...]
    releases: tuple[TorchRelease, ...]

    def release(self, torch: str) -> TorchRelease | None:
        """The release of this version; None when it is not supported."""
        return next((release for release in self.releases if release.torch == torch), None)

    @property
    def torch_range(self) -> str:
        """The releases in words."""
        return f"{self.releases[-1].torch} to {self.releases[0].torch}"


@functools.cache
def supported_versions(file: Path = _FILE) -> SupportedVersions:
    """What the list says. It is read once: the hub reads it before the job starts, and needs it later. Raises
    ConfigError."""
    data = read_toml(file)
    releases = []
    for version, entry in data["torch"].items():
        table = Table(file, entry, f"torch.{version}")
        parts = {name: table.text(name) for name in ("cuda", "cudnn", "cublas", "nccl", "triton")}
        releases.append(TorchRelease(version, **parts, state=table.text("state", among=STATES)))
        table.done()
    return SupportedVersions(tuple(data["python"]), tuple(releases))
