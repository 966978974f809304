"""Frozen descriptions as plain data, and back.

Why it exists: the launcher validates a cluster once and hands it to the other processes of a run
(`config/description.py`). Rule: what comes back equals what went in, to the last bit of every
number; anything that does not fit the dataclass is refused with its place in the data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_Description = TypeVar("_Description")


def to_plain(value: Any) -> Any:
    """Dictionaries, lists, strings, numbers, booleans and None, as JSON can hold them."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[_Description], data: Any, at: str) -> _Description:
    """The dataclass that `to_plain` made `data` of. `at` names the data in messages. Raises
    ValueError when something is missing, unknown, or of another type."""
    value: _Description = _read(kind, data, at)
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, data: Any, at: str) -> Any:
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, data, at)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:  # only `X | None`
        inner = next(argument for argument in arguments if argument is not NoneType)
        return None if data is None else _read(inner, data, at)
    if origin is tuple:
        items = _typed(data, list, at)
        return tuple(_read(arguments[0], item, f"{at}[{n}]") for n, item in enumerate(items))
    if origin is Mapping:
        key_kind, item_kind = arguments
        entries = _typed(data, dict, at)
        return MappingProxyType(
            {key_kind(key): _read(item_kind, item, f"{at}.{key}") for key, item in entries.items()}
        )
    if kind is float and type(data) is int:
        return data  # a whole number stays one: every result is the same
    return _typed(data, kind, at)


def _read_fields(kind: Any, data: Any, at: str) -> Any:
    entries = _typed(data, dict, at)
    hints = _hints(kind)
    for name in (*hints, *entries):
        if name not in entries or name not in hints:
            raise ValueError(f"{at}.{name}: is {'missing' if name in hints else 'unknown'}")
    return kind(
        **{name: _read(hint, entries[name], f"{at}.{name}") for name, hint in hints.items()}
    )


def _typed(data: Any, kind: type, at: str) -> Any:
    if type(data) is not kind:
        raise ValueError(f"{at}: {data!r} is not of type {kind.__name__}")
    return data
