"""Changes to a cluster file from the command line: --set, --slow-gpu, --slow-link.

Why it exists: a what-if question is one value of a cluster file. A change goes into the parsed file
before it is validated, so it gets the same checks and the same messages as what is written there.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora_ns.config.toml_table import ConfigError


@dataclass(frozen=True)
class Changes:
    """As typed. `settings`: "network.nic_bandwidth=800 Gbit/s". `slow_gpus`: "3:10%" by rank, or
    "node-0/gpu-3:10%". `slow_links`: "node-0/nic-1 - rail-1:50%". A share says by how much slower."""

    settings: tuple[str, ...] = ()
    slow_gpus: tuple[str, ...] = ()
    slow_links: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.settings or self.slow_gpus or self.slow_links)

    def words(self) -> tuple[str, ...]:
        """The options as the user would type them again."""
        given = {
            "--set": self.settings,
            "--slow-gpu": self.slow_gpus,
            "--slow-link": self.slow_links,
        }
        return tuple(
            word for option, texts in given.items() for text in texts for word in (option, text)
        )

    def apply(self, data: dict[str, Any], file: Path) -> None:
        """Sets the values of --set in a parsed file. `file` is named in errors. Raises ConfigError."""
        for text in self.settings:
            _set(data, text, file)

    def faults(self, nodes: int, gpus_per_node: int, file: Path) -> list[dict[str, str]]:
        """Entries of [[fault]], for a cluster of this size. `file` is named in errors. Raises ConfigError."""
        gpus = [
            {"gpu": _gpu(name, nodes, gpus_per_node, text, file), "speed": speed}
            for text in self.slow_gpus
            for name, speed in [_slower("--slow-gpu", text, "3:10%", file)]
        ]
        links = [
            {"link": name, "bandwidth": bandwidth}
            for text in self.slow_links
            for name, bandwidth in [_slower("--slow-link", text, "node-0/nic-0:50%", file)]
        ]
        return gpus + links


def _set(data: dict[str, Any], text: str, file: Path) -> None:
    key, equals, value = text.partition("=")
    *tables, last = (part.strip() for part in key.split("."))
    if not equals or not all([*tables, last]):
        raise ConfigError(
            file,
            "",
            f"--set {text}: is not KEY=VALUE; write it as --set network.nic_bandwidth='800 Gbit/s'",
        )
    for depth, name in enumerate(tables):
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            where = ".".join(tables[: depth + 1])
            raise ConfigError(
                file,
                "",
                f"--set {text}: {where} is no table in the cluster file; change the file itself",
            )
    data[last] = _value(value.strip())


def _value(text: str) -> Any:
    """A TOML value, or else the text itself: a shell takes quotes away."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _slower(option: str, text: str, example: str, file: Path) -> tuple[str, str]:
    """(what, the share that is left) of "WHAT:10%"."""
    name, colon, share = text.rpartition(":")
    number = share.strip().removesuffix("%")
    try:
        percent = float(number)
    except ValueError:
        percent = -1.0
    if not (colon and name.strip() and share.strip().endswith("%") and 0 <= percent < 100):
        raise ConfigError(
            file,
            "",
            f"{option} {text}: is not NAME:SHARE with a share of 0% to less than 100%; "
            f"write it as {option} {example}",
        )
    return name.strip(), f"{100 - percent:.10g}%"


def _gpu(name: str, nodes: int, gpus_per_node: int, text: str, file: Path) -> str:
    """The GPU's name in a cluster file; a number is the rank that a job gives it."""
    if not name.isdecimal():
        return name
    node, gpu = divmod(int(name), gpus_per_node)
    if node >= nodes:
        raise ConfigError(
            file,
            "",
            f"--slow-gpu {text}: there are {nodes * gpus_per_node} GPUs; "
            f"give a rank from 0 to {nodes * gpus_per_node - 1}",
        )
    return f"node-{node}/gpu-{gpu}"
