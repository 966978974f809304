"""The options of a run, as the user typed them.

Why it exists: `phantora-ns` and `phantora-ns profile` take the same options, and one frozen object
carries them from the command line to where they are checked (run/run_request.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora_ns.config.changes import Changes


NOT_OF_A_POINT = frozenset(
    {
        "report",
        "html",
        "trace",
        "trace_steps",
        "trace_ranks",
        "record_host",
        "quiet",
        "keep_run_dir",
        "work",
    }
)
"""Options that a sweep decides for its points, or that would be one file for all of them."""


@dataclass(frozen=True)
class RunOptions:
    """One field for each option of the command line, by its name (cli/app.py has the help texts).

    Nothing has been checked yet beyond the types. None: the option was not given.
    """

    cluster: str | None = None
    set: tuple[str, ...] = ()
    slow_gpu: tuple[str, ...] = ()
    slow_link: tuple[str, ...] = ()
    nnodes: int | None = None
    gpus_per_node: int | None = None
    report: Path | None = None
    html: Path | None = None
    trace: Path | None = None
    trace_steps: str | None = None
    trace_ranks: str | None = None
    host_time: str | None = None
    host_scale: str = "1.0"
    host_jitter: str = "sampled"
    record_host: Path | None = None
    sync: str = "conservative"
    isolation: str = "namespaces"
    kernels: tuple[Path, ...] = ()
    leaders: str = "auto"
    values: str = "balanced"
    host_tensors: str = "auto"
    memory_modules: bool = False
    warm_start: str = "off"
    preload_modules: str | None = None
    fold: str = "off"
    fold_witnesses: str = "all"
    work: str | None = None
    model_flop: str | None = None
    keep_run_dir: bool = False
    quiet: bool = False

    @property
    def changes(self) -> Changes:
        """What the command line changes of the cluster file."""
        return Changes(self.set, self.slow_gpu, self.slow_link)

    @property
    def isolated(self) -> bool:
        """Whether each node gets namespaces of its own."""
        return self.isolation == "namespaces"

    def cluster_words(self) -> tuple[str, ...]:
        """The options that shape the cluster, as the user would type them again; those that have
        their default value are left out."""
        words = (
            ("--cluster", self.cluster),
            ("--nnodes", self.nnodes),
            ("--gpus-per-node", self.gpus_per_node),
            ("--isolation", None if self.isolated else self.isolation),
            ("--values", None if self.values == RunOptions.values else self.values),
            (
                "--host-tensors",
                None if self.host_tensors == RunOptions.host_tensors else self.host_tensors,
            ),
        )
        given = tuple(str(word) for pair in words if pair[1] is not None for word in pair)
        return given + self.changes.words()


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Options by their names in RunOptions as words of the command line. None and False: not given. What
    may be repeated is one value or several; of a mapping each entry is KEY=VALUE."""
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
            continue
        if isinstance(value, Mapping):
            value = [f"{key}={one}" for key, one in value.items()]
        several = isinstance(value, Sequence) and not isinstance(value, str)
        for one in value if several else [value]:
            words += [option, os.fspath(one) if isinstance(one, os.PathLike) else str(one)]
    return words
