"""What a sweep is to do: a TOML file, or the words of the command line, checked.

Why it exists: everything that can be wrong is found here, in one line, before a run starts. Rule: a key means
the same in a file and after --grid. A key that begins with a dash is an argument of the job's command;
`set.KEY`, `env.NAME` and `option.NAME` are a change of the cluster, a variable of the environment and an
option of phantora-ns; any other key fills `{KEY}`.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora_ns.launch.command.options import NOT_OF_A_POINT, RunOptions
from phantora_ns.launch.errors import UsageError
from phantora_ns.sweep.grid import (
    Expression,
    GridError,
    Settings,
    Value,
    allowed,
    expand,
    names_of,
)

KEYS = {"command", "options", "environment", "grid", "point", "where", "work", "unit", "price"}
GIVEN = {"gpus", "nodes", "world_size"}
"""What `work` may use beside the axes: GPUs and nodes of a point's cluster. `where` may not: the cluster is
not known when points are chosen."""
HOST_TIME = "model"
"""Points run beside each other, which changes times that are measured here."""
UNNAMED_UNIT = "work"
_WORD = r"[A-Za-z][\w-]*"
_UNIT = re.compile(rf"\s*(.*\S)\s+({_WORD})\s*", re.DOTALL)
_HOLE = re.compile(r"\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True)
class Spec:
    """A sweep. `points`: what each one sets. `work`: an amount of work in a step, an expression, and its
    `unit`. `price`: of a GPU for an hour, by GPU model or "" for all. `source` names it in messages."""

    source: str
    command: tuple[str, ...]
    points: tuple[Settings, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    work: str | None = None
    unit: str = UNNAMED_UNIT
    price: Mapping[str, float] = field(default_factory=dict)

    @property
    def axes(self) -> list[str]:
        """The keys that any point sets, in order."""
        return list(dict.fromkeys(key for point in self.points for key in point))

    @property
    def varying(self) -> list[str]:
        """Those of them that differ between points; all when none does."""
        axes = self.axes
        found = [key for key in axes if len({repr(p.get(key)) for p in self.points}) > 1]
        return found or axes


@dataclass(frozen=True)
class Given:
    """What the command line says; empty fields say nothing."""

    command: tuple[str, ...] = ()
    grid: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    work: str | None = None
    price: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def read_spec(file: Path | None, given: Given) -> Spec:
    """The sweep of a file (None: of the command line alone), changed by the command line. Raises
    UsageError."""
    data, source = ({}, "on the command line") if file is None else (_read(file), f"in {file}")
    try:
        return _spec(data, source, given)
    except GridError as error:
        raise UsageError(f"sweep: {error}; {source}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        with open(file, "rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise UsageError(
            f"cannot read the sweep: {error.strerror}; {file}; give a TOML file"
        ) from error
    except (ValueError, RecursionError) as error:  # also of what is no UTF-8, or of too many digits
        raise UsageError(f"sweep: is not TOML: {error}; in {file}; correct it") from error


def _spec(data: Mapping[str, Any], source: str, given: Given) -> Spec:
    unknown = set(data) - KEYS
    if unknown:
        raise GridError(f"there is no key {min(unknown)} (there are {', '.join(sorted(KEYS))})")
    axes = {key: _values(key, value) for key, value in _flat(data.get("grid", {}), "grid")}
    for text in given.grid:
        key, values = parse_axis(text)
        axes[key] = values
    listed = [dict(_flat(point, "point")) for point in _tables(data, "point")]
    for key, value in ((key, value) for point in listed for key, value in point.items()):
        _check_value(key, value)
    if not axes and not listed:
        raise GridError("there is nothing to vary; add a table [grid], or --grid 'batch=8,16'")
    keys = list(dict.fromkeys([*axes, *(key for point in listed for key in point)]))
    _check_keys(keys)
    conditions = [*_texts(data, "where"), *given.where]
    points = allowed(expand(axes, listed), conditions, keys)
    if not points:
        raise GridError("no point is left: no combination fulfils all conditions of `where`")
    work, unit = _work(data, given.work, keys)
    spec = Spec(
        source,
        given.command or _command(data),
        tuple(points),
        _options(data, given.options),
        {name: _word(value) for name, value in _flat(data.get("environment", {}), "environment")},
        work,
        unit,
        _price(data, given.price),
    )
    _check_holes(spec)
    return spec


# ---- parts of a file ----


def _flat(table: Any, where: str) -> Iterable[tuple[str, Any]]:
    """A table's keys with those of the tables in it, joined by dots: `set.gpu` may be quoted or not."""
    if not isinstance(table, Mapping):
        raise GridError(f"{where} is no table; write it as [{where}]")
    for key, value in table.items():
        if isinstance(value, Mapping):
            for rest, inner in _flat(value, where):
                yield f"{key}.{rest}", inner
        else:
            yield key, value


def _tables(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise GridError(f"{key} is no list of tables; write each as [[{key}]]")
    return found


def _text(data: Mapping[str, Any], key: str) -> str | None:
    found = data.get(key)
    if found is not None and not isinstance(found, str):
        raise GridError(f"{key} is no text; write it in quotes")
    return found


def _texts(data: Mapping[str, Any], key: str) -> list[str]:
    found = data.get(key, [])
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise GridError(f"{key} is no list of texts; write it as {key} = ['batch * gpus == 64']")
    return found


def _command(data: Mapping[str, Any]) -> tuple[str, ...]:
    found = data.get("command")
    if isinstance(found, str):
        try:
            found = shlex.split(found)
        except ValueError as error:
            raise GridError(f"command cannot be split into words: {error}; give a list") from error
    if not isinstance(found, list) or not found:
        raise GridError('there is no command; add command = "torchrun --nproc-per-node 8 train.py"')
    return tuple(_word(word) for word in found)


def _work(
    data: Mapping[str, Any], given: str | None, keys: Iterable[str]
) -> tuple[str | None, str]:
    """The expression and its unit. `batch * 1024 tokens` has both: no expression has two words side by side."""
    unit, text = _text(data, "unit"), given or _text(data, "work")
    if unit is not None and not re.fullmatch(_WORD, unit):
        raise GridError(f"unit {unit!r} is no word; write it as unit = 'tokens'")
    named = _UNIT.fullmatch(text or "")
    if text is None or named is None or _is_expression(text):
        return text, unit or UNNAMED_UNIT
    if given is None and unit not in (None, named[2]):
        raise GridError(f"work {text!r} has the unit {named[2]}, and unit is {unit}; write one")
    Expression(named[1], {*names_of(keys).values(), *GIVEN})  # a mistake in it is told
    return named[1], named[2]


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _options(data: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """By their names in RunOptions."""
    found = {"host_time": HOST_TIME}
    for key, value in _flat_options(data.get("options", {})):
        name = key.replace("-", "_")
        _check_option(name)
        found[name] = value
    for name, value in given.items():
        _check_option(name)
        found[name] = value
    return found


def _flat_options(table: Any) -> Iterable[tuple[str, Any]]:
    """`options.set` may be a table of its own."""
    if not isinstance(table, Mapping):
        raise GridError("options is no table; write it as [options]")
    for key, value in table.items():
        yield key, dict(_flat(value, "options")) if isinstance(value, Mapping) else value


def _check_option(name: str) -> None:
    if name not in RunOptions.__dataclass_fields__:
        raise GridError(
            f"there is no option --{name.replace('_', '-')}; see phantora-ns --help-all"
        )
    if name in NOT_OF_A_POINT:
        raise GridError(
            f"--{name.replace('_', '-')} is not for a sweep, which has a report of each point; leave it out"
        )


def _price(data: Mapping[str, Any], given: str | None) -> dict[str, float]:
    """By GPU model; "" is for every model."""
    found: Any = data.get("price", {})
    if given is not None:
        found = dict(parse_pair(part) for part in given.split(","))
    if not isinstance(found, Mapping):
        found = {"": found}
    for price in found.values():
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < 1e9:
            raise GridError(
                f"price: {price!r} is no price of a GPU-hour; write 2.5, or h200=2.5,b200=4"
            )
    return {model: float(price) for model, price in found.items()}


def parse_pair(text: str) -> tuple[str, Any]:
    """`h200=2.5`, or `2.5` for every model."""
    model, equals, price = text.rpartition("=")
    try:
        return model.strip() if equals else "", float(price)
    except ValueError:
        return model, price


# ---- axes ----


def parse_axis(text: str) -> tuple[str, list[Value]]:
    """An axis as --grid has it: `batch=8,16`, `--tp {1,2}`, `set.gpu=["h200", "b200"]`. Raises
    GridError."""
    found = re.fullmatch(r"\s*([^\s=]+)\s*(?:=|\s)\s*(.+?)\s*", text, re.DOTALL)
    if found is None:
        raise GridError(f"--grid {text}: is not KEY=VALUES; write it as --grid 'batch=8,16'")
    key, values = found[1], found[2]
    if values.startswith("["):
        return key, _values(key, _toml(values, text))
    if values.startswith("{") and values.endswith("}"):
        values = values[1:-1]
    return key, [_scalar(value.strip()) for value in values.split(",")]


def _toml(text: str, whole: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:
        raise GridError(f"--grid {whole}: is no list: {error}; write it as [8, 16]") from error


def _scalar(text: str) -> Value:
    """A number, true or false; else the text itself: a shell takes quotes away."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    scalar: Value = value if isinstance(value, str | int | float | bool) else text
    return scalar


def _values(key: str, values: Any) -> list[Value]:
    found: list[Value] = values if isinstance(values, list) else [values]
    for value in found:
        _check_value(key, value)
    return found


def _check_value(key: str, value: Any) -> None:
    if not isinstance(value, str | int | float | bool):
        raise GridError(
            f"{key}: {value!r} is neither a text, a number, true nor false; write it as a text"
        )


def _check_keys(keys: Sequence[str]) -> None:
    for key in keys:
        kind, dot, name = key.partition(".")
        if key.startswith("-"):
            continue
        if dot and kind == "option":
            _check_option(name.replace("-", "_"))
        elif dot and kind not in ("set", "env"):
            raise GridError(
                f"{key}: is neither an argument (it begins with -), set., env. nor option."
            )
        elif not dot and not key.isidentifier():
            raise GridError(f"{key}: is no name for {{{key}}}; write letters, digits and _")
    names = list(names_of(keys).values())
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise GridError(f"two keys have the name {double} in expressions; rename one")


def variables(point: Mapping[str, Value]) -> dict[str, Value]:
    """Those of a point's settings that fill `{NAME}`."""
    return {
        key: value for key, value in point.items() if not key.startswith("-") and "." not in key
    }


def fill(text: str, values: Mapping[str, Value]) -> str:
    """`text` with `{NAME}` replaced."""
    return _HOLE.sub(
        lambda found: _word(values[found[1]]) if found[1] in values else found[0], text
    )


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_holes(spec: Spec) -> None:
    """Every {NAME} is set in every point, and every NAME is used."""
    fixed = [*spec.command, *spec.environment.values(), *map(str, _leaves(spec.options))]
    used: set[str] = set()
    for point in spec.points:
        own = [
            value
            for key, value in point.items()
            if isinstance(value, str) and key not in variables(point)
        ]
        holes = {name for text in [*fixed, *own] for name in _HOLE.findall(text)}
        missing = holes - set(variables(point))
        if missing:
            raise GridError(
                f"{{{min(missing)}}} is filled by nothing; add {min(missing)} to [grid]"
            )
        used |= holes
    words = set(re.findall(r"\w+", spec.work or ""))
    names = names_of(spec.axes)
    for key in spec.axes:
        if key in variables({key: ""}) and key not in used and names[key] not in words:
            raise GridError(
                f"{key} changes nothing; write {{{key}}} into the command, or correct the name"
            )


def _leaves(options: Mapping[str, Any]) -> Iterable[Any]:
    for value in options.values():
        if isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from value
        else:
            yield value
