"""phantora-ns from Python: `run`, `Report`, and the errors that they raise. docs/python.md has them.

Why it exists: people sweep, plot and test in Python. Rule: importing the package imports nothing else,
because every process of a run imports it. Names are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phantora_ns.api.report import Rank, Report
    from phantora_ns.api.run import JobError, Options, run
    from phantora_ns.launch.errors import LaunchError, PhantoraError, UsageError

__all__ = [
    "JobError",
    "LaunchError",
    "Options",
    "PhantoraError",
    "Rank",
    "Report",
    "UsageError",
    "run",
]

_HOME = {
    "Rank": "phantora_ns.api.report",
    "Report": "phantora_ns.api.report",
    "JobError": "phantora_ns.api.run",
    "Options": "phantora_ns.api.run",
    "run": "phantora_ns.api.run",
    "LaunchError": "phantora_ns.launch.errors",
    "PhantoraError": "phantora_ns.launch.errors",
    "UsageError": "phantora_ns.launch.errors",
}


def __getattr__(name: str) -> Any:
    """A public name, from the module that has it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'phantora_ns' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
