"""One point of a sweep as a run: its command, its options, and a key that says whether it was run before.

Why it exists: a result may be used again only if nothing that it depends on has changed. Rule: a point is
checked as a run is, before anything starts. Its key is made of its words, of the content of files that they
name, and of the versions of phantora-ns and torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from phantora_ns.launch.command.options import RunOptions, option_words
from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.machine.environment import outer_environment
from phantora_ns.launch.machine.software import read_software
from phantora_ns.launch.run.run_request import RunRequest, build_request
from phantora_ns.report.run_report import SCHEMA
from phantora_ns.sweep.grid import Expression, GridError, Settings, Value, names_of
from phantora_ns.sweep.spec import GIVEN, Spec, fill, variables

MOST_READ = 16 << 20
"""Larger files are told by their size and time of change."""


@dataclass(frozen=True)
class Point:
    """`number`: its place in the sweep, from 0. `environment`: besides this process's; None takes a
    variable away. `cwd`: the folder in which it runs. `work`: what a step does, in the sweep's `unit`.
    `made_of`: what its result depends on; `key` is the digest of that."""

    number: int
    settings: Settings
    command: tuple[str, ...]
    options: tuple[str, ...]
    environment: Mapping[str, str | None]
    cwd: str
    ranks: int
    gpus: int
    nodes: int
    gpu: str
    memory_bytes: int
    work: float | None
    unit: str
    made_of: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Two points with one key give the same result, as far as words and files tell."""
        text = json.dumps(self.made_of, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def label(self, axes: Sequence[str]) -> str:
        """What tells it from others: `batch=8 --parallel=fsdp`."""
        return " ".join(f"{key}={self.settings[key]}" for key in axes if key in self.settings)

    def typed(self) -> str:
        """What a user would type to run it."""
        changed = [
            f"{name}={shlex.quote(value)}" if value is not None else f"-u {name}"
            for name, value in self.environment.items()
        ]
        env = ["env", *changed] if any(word.startswith("-u ") for word in changed) else changed
        work = () if self.work is None else ("--work", f"{_digits(self.work)} {self.unit}")
        words = ["phantora-ns", *self.options, *work, "--", *self.command]
        return " ".join([*env, shlex.join(words)])


class Parse(Protocol):
    """Makes RunOptions of words of the command line. Raises click.ClickException."""

    def __call__(self, words: Sequence[str], /) -> RunOptions:
        """The options."""


def points_of(spec: Spec, parse: Parse, version: str) -> list[Point]:
    """All points, checked. `version`: of phantora-ns. Raises UsageError, LaunchError."""
    return [
        _point(spec, number, settings, parse, version)
        for number, settings in enumerate(spec.points)
    ]


def _point(spec: Spec, number: int, settings: Settings, parse: Parse, version: str) -> Point:
    filled = variables(settings)
    command = tuple(fill(word, filled) for word in spec.command) + _arguments(settings, filled)
    options = tuple(option_words(_options(spec, settings, filled)))
    environment = _environment(spec, settings, filled)
    try:
        request = _request(command, options, environment, parse)
    except UsageError as error:
        label = " ".join(f"{key}={value}" for key, value in settings.items())
        raise UsageError(
            f"sweep: the point {label} cannot run: {error}; leave it out by where"
        ) from error
    cluster = request.cluster
    return Point(
        number,
        settings,
        command,
        options,
        environment,
        request.cwd,
        request.ranks,
        cluster.world_size,
        cluster.nodes,
        cluster.gpu_model.model,
        cluster.gpu_model.memory_bytes,
        _work(spec, settings, cluster.world_size, cluster.nodes),
        spec.unit,
        _made_of(request, command, options, environment, version),
    )


def differences(point: Point, parse: Parse, version: str) -> list[str]:
    """What the point's result depends on and is not here as it was where the sweep began: names of
    files, "torch", ... The current folder must be the point's. Raises UsageError when it cannot run here."""
    request = _request(point.command, point.options, point.environment, parse)
    here = _made_of(request, point.command, point.options, point.environment, version)
    found = []
    for name, there in point.made_of.items():
        if isinstance(there, Mapping):
            found += [one for one, was in there.items() if here[name].get(one) != was]
        elif here[name] != there:
            found.append(f"{name} ({here[name]}, not {there})")
    return found


def _request(
    command: Sequence[str],
    options: Sequence[str],
    environment: Mapping[str, str | None],
    parse: Parse,
) -> RunRequest:
    from dataclasses import replace

    outer = {**outer_environment(), **{k: v for k, v in environment.items() if v is not None}}
    outer = {k: v for k, v in outer.items() if environment.get(k, v) is not None}
    try:
        return build_request(command, replace(parse(options), quiet=True), outer=outer)
    except click.ClickException as error:
        raise UsageError(error.format_message()) from error


def _arguments(settings: Settings, filled: Mapping[str, Value]) -> tuple[str, ...]:
    """Arguments at the end of the command: true is the name alone, false leaves it out."""
    words: list[str] = []
    for key, value in settings.items():
        if not key.startswith("-") or value is False:
            continue
        words += [key] if value is True else [key, fill(str(value), filled)]
    return tuple(words)


def _options(spec: Spec, settings: Settings, filled: Mapping[str, Value]) -> dict[str, Any]:
    """The options of a run, by name; a point's own replace those of all."""
    options = {name: _filled(value, filled) for name, value in spec.options.items()}
    changes = options.pop("set", None) or {}
    if not isinstance(changes, Mapping):
        texts = [changes] if isinstance(changes, str) else changes
        changes = dict(text.partition("=")[::2] for text in texts)
    changes = dict(changes)
    for key, value in settings.items():
        kind, _, name = key.partition(".")
        if key.startswith("-") or not name:
            continue
        if kind == "option":
            options[name.replace("-", "_")] = _filled(value, filled)
        elif kind == "set" and value is False:
            changes.pop(name, None)
        elif kind == "set":
            changes[name] = fill(str(value), filled)
    return options | ({"set": changes} if changes else {})


def _filled(value: Any, filled: Mapping[str, Value]) -> Any:
    if isinstance(value, str):
        return fill(value, filled)
    if isinstance(value, Mapping):
        return {key: _filled(one, filled) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_filled(one, filled) for one in value]
    return value


def _environment(
    spec: Spec, settings: Settings, filled: Mapping[str, Value]
) -> dict[str, str | None]:
    found: dict[str, str | None] = {
        name: fill(value, filled) for name, value in spec.environment.items()
    }
    for key, value in settings.items():
        if key.startswith("env."):
            name = key.removeprefix("env.")
            found[name] = None if value is False else fill(str(value), filled)
    return found


def _work(spec: Spec, settings: Settings, gpus: int, nodes: int) -> float | None:
    if spec.work is None:
        return None
    names = names_of(spec.axes)
    values: dict[str, Any] = {"gpus": gpus, "world_size": gpus, "nodes": nodes}
    values |= {name: settings.get(key) for key, name in names.items()}
    try:
        found = Expression(spec.work, {*names.values(), *GIVEN})(values)
        if isinstance(found, bool) or not isinstance(found, int | float) or found <= 0:
            raise GridError(f"work {spec.work!r} is {found!r}, which is no amount above 0")
    except GridError as error:
        raise UsageError(f"sweep: {error}; {spec.source}") from error
    return float(found)


def _digits(amount: float) -> str:
    return str(int(amount)) if amount.is_integer() else repr(amount)


def _made_of(
    request: RunRequest,
    command: Sequence[str],
    options: Sequence[str],
    environment: Mapping[str, str | None],
    version: str,
) -> dict[str, Any]:
    """What a point's result depends on, as far as words and files tell."""
    files = {word: _content(Path(request.cwd, word)) for word in command}
    return {
        "command": " ".join(map(shlex.quote, command)),
        "options": " ".join(map(shlex.quote, options)),
        "environment": dict(sorted(environment.items())),
        "folder": request.cwd,
        "files": {word: content for word, content in files.items() if content},
        "cluster": _content(Path(request.cluster.file)),
        "kernel times": " ".join(str(_content(Path(path))) for path in request.databases),
        "phantora-ns": version,
        "report's schema": SCHEMA,
        "torch": read_software(request.torch).torch if request.torch is not None else None,
    }


@functools.cache
def _digest(path: Path, _size: int, _time_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _content(path: Path) -> str | None:
    """What tells a file's content from another; None for what is no file."""
    try:
        if not path.is_file():
            return None
        size, time_ns = path.stat().st_size, path.stat().st_mtime_ns
        return f"{size} {time_ns}" if size > MOST_READ else _digest(path, size, time_ns)
    except (OSError, ValueError):
        return None


def child_environment(point: Point) -> dict[str, str]:
    """The environment of the point's run."""
    env = dict(os.environ)
    for name, value in point.environment.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env
