"""Cluster files as text: one that exists, with other values.

Why it exists: the standard library reads TOML and does not write it. A cluster file has few kinds of
values, so this is short. Rule: what is written is read back by `load_cluster`, which checks it as a
file of the user's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

Comments = Mapping[tuple[str, str], str]
"""By table and key."""
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def cluster_text(data: Mapping[str, Any], head: list[str], comments: Comments) -> str:
    """The TOML of a cluster, as `tomllib` reads it. `head`: comments at the top."""
    lines = [f"# {line}".rstrip() for line in head]
    lines += _table("", data, comments)
    return "\n".join(lines) + "\n"


def _table(name: str, data: Mapping[str, Any], comments: Comments) -> list[str]:
    plain = {k: v for k, v in data.items() if not isinstance(v, dict) and not _tables(v)}
    lines = []
    for key, value in plain.items():
        line = f"{_key(key)} = {_value(value)}"
        comment = comments.get((name, key))
        lines.append(f"{line:40} # {comment}" if comment else line)
    for key, value in data.items():
        inner = f"{name}.{_key(key)}" if name else _key(key)
        if isinstance(value, dict):
            own = _table(inner, value, comments)
            headed = any(not isinstance(v, dict) and not _tables(v) for v in value.values())
            lines += (["", f"[{inner}]"] if headed or not value else []) + own
        elif _tables(value):
            for one in value:
                lines += ["", f"[[{inner}]]", *_table(inner, one, comments)]
    return lines


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _key(key: str) -> str:
    return key if _BARE.match(key) else _text(key)


def _text(text: str) -> str:
    """As JSON, which escapes what TOML does; but TOML knows no surrogates, and refuses DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def time_text(ns: float) -> str:
    """ "7.54 us"."""
    return f"{ns / 1000:.4g} us"


def rate_text(bytes_per_ns: float) -> str:
    """ "370.8 GB/s"."""
    return f"{bytes_per_ns:.4g} GB/s"


def share_text(share: float) -> str:
    """ "97%"."""
    return f"{min(100 * share, 100):.4g}%"
