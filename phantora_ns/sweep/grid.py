"""The points of a sweep: every combination of the axes' values that the conditions allow.

Why it exists: which points a file asks for is worth testing by itself. Rule: pure; the same axes give the
same points in the same order, each once, the last axis changing fastest.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Value = str | int | float | bool
Settings = dict[str, Value]
MOST_POINTS = 10_000
_CALLS = {
    "abs": abs,
    "len": len,
    "max": max,
    "min": min,
    "round": round,
    "int": int,
    "float": float,
}
_OTHER = re.compile(r"\W")


class GridError(ValueError):
    """Something in a grid makes no sense; the text says what and what to do."""


def expand(axes: Mapping[str, Sequence[Value]], listed: Iterable[Settings] = ()) -> list[Settings]:
    """The points of a grid, then those that are listed one by one; each once. Raises GridError."""
    count = 1
    for name, values in axes.items():
        if not values:
            raise GridError(f"{name} has no value; give one at least")
        count *= len(values)
    if count > MOST_POINTS:
        raise GridError(
            f"makes {count} points, and at most {MOST_POINTS} are taken; leave some out"
        )
    grid = itertools.product(*axes.values()) if axes else ()
    points: Iterable[Settings] = (dict(zip(axes, values, strict=True)) for values in grid)
    kept: dict[tuple[Any, ...], Settings] = {}
    for point in itertools.chain(points, listed):
        # 1, 1.0 and True are equal in Python and different words of a command
        kept.setdefault(tuple((k, type(v), v) for k, v in sorted(point.items())), point)
    return list(kept.values())


def names_of(keys: Iterable[str]) -> dict[str, str]:
    """By what names expressions know the axes: a key's last part with _ for what no name may hold
    (`--parallelism.tensor-parallel-degree` is `tensor_parallel_degree`); of keys that would share one, the
    whole key with _."""
    keys = list(keys)
    short = {key: _name(key.rpartition(".")[2]) for key in keys}
    counts = [*short.values()]
    return {
        key: name if counts.count(name) == 1 and name.isidentifier() else _name(key)
        for key, name in short.items()
    }


def _name(text: str) -> str:
    name = _OTHER.sub("_", text.lstrip("-"))
    return name if name.isidentifier() else f"_{name}"


class _Text(str):
    """A text among the values. Times a number it would be that many copies, which may fill the memory, where a
    number was meant."""

    def __mul__(self, other: Any) -> Any:
        raise TypeError(f"{str(self)!r:.40} is a text")

    __rmul__ = __mul__


class Expression:
    """A condition or an amount over the names of axes, in Python's own notation, such as
    `tensor_parallel_degree * pipeline <= 8`. Raises GridError."""

    def __init__(self, text: str, known: Iterable[str]) -> None:
        self.text = text
        known = sorted(known)
        try:
            tree = ast.parse(text.strip(), mode="eval")
            self._code = compile(tree, "<expression>", "eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise GridError(
                f"{text!r} is no expression; write it as 'batch * gpus == 64'"
            ) from error
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, _KINDS):
                continue
            if not isinstance(node, ast.Name):
                raise GridError(
                    f"{text!r} has more than numbers, names, operators and {', '.join(_CALLS)}; "
                    "write it with these"
                )
            if node.id not in (_CALLS if id(node) in called else known):
                raise GridError(
                    f"{text!r}: there is no {node.id} (there are {', '.join(known) or 'no names'}); "
                    "correct the name"
                )

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Its value where `values` are the names'."""
        try:
            named = {k: _Text(v) if isinstance(v, str) else v for k, v in values.items()}
            return eval(self._code, {"__builtins__": {}, **_CALLS}, named)  # noqa: S307
        except (ArithmeticError, TypeError, ValueError, MemoryError) as error:
            shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
            raise GridError(f"{self.text!r} has no value: {error}; with {shown}") from error


_KINDS = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt,
    ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.IfExp, ast.Constant, ast.Load, ast.Tuple, ast.List,
    ast.Call,
)  # fmt: skip
"""What an expression may consist of, besides names."""


def allowed(
    points: Iterable[Settings], conditions: Sequence[str], keys: Iterable[str]
) -> list[Settings]:
    """The points for which every condition holds. A name that a listed point does not set is None
    there. Raises GridError."""
    names = names_of(keys)
    checks = [Expression(text, names.values()) for text in conditions]
    return [
        point
        for point in points
        if all(check({name: point.get(key) for key, name in names.items()}) for check in checks)
    ]
