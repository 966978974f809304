"""Under which versions of the libraries a kernel was recorded, beside those of the job.

Why it exists: cuBLAS and cuDNN choose other kernels with other versions, and PyTorch compiles its
own anew. A recorded time stays the best guess, but the report must say how much of the GPU time is
such a guess. Rule: only `major.minor` counts, and what is not known differs from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from phantora_ns.config.versions import supported_versions

NAMES = {"torch": "torch", "cuda": "CUDA", "cudnn": "cuDNN", "cublas": "cuBLAS"}


class LibraryVersions(NamedTuple):
    """`major.minor` of each library that decides about kernels; empty: not known."""

    torch: str = ""
    cuda: str = ""
    cudnn: str = ""
    cublas: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> LibraryVersions:
        """Of a run's fields (database/schema.py) or of run.json's `software`. A recording that does
        not name cuDNN and cuBLAS has those that pip brings with its torch."""
        release = supported_versions().release(str(fields.get("torch") or "").partition("+")[0])
        known = dict(fields)
        if release is not None and str(fields.get("cuda") or "") in ("", release.cuda):
            for name in ("cudnn", "cublas"):
                known[name] = known.get(name) or getattr(release, name)
        return cls(*(_short(known.get(name)) for name in cls._fields))

    def differ(self, other: LibraryVersions) -> bool:
        """Whether a library that both know has another version."""
        return any(a and b and a != b for a, b in zip(self, other))

    def words(self, beside: LibraryVersions) -> str:
        """What differs from `beside`, for a person."""
        return ", ".join(
            f"{NAMES[name]} {mine}"
            for name, mine, theirs in zip(self._fields, self, beside)
            if mine and theirs and mine != theirs
        )


def _short(version: Any) -> str:
    return ".".join(str(version or "").partition("+")[0].split(".")[:2])
