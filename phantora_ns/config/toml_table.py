"""One TOML table, read key by key, with a clear message for every mistake.

Why it exists: the message for a mistake in a file that a person wrote gives the file, the key, and
what to write instead. A `Table` returns the values of one TOML table and remembers which keys were
requested. `done()` then reports every other key as a mistake and suggests the nearest existing one.
Rule: nothing in here knows what a cluster is.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from phantora_ns.config import units


class ConfigError(Exception):
    """A file of ours cannot be used. str() reads "FILE: key: what is wrong; what to do"."""

    def __init__(self, file: str | Path, key: str, problem: str):
        super().__init__(f"{file}: {key}: {problem}" if key else f"{file}: {problem}")
        self.file, self.key, self.problem = str(file), key, problem


def nearest(word: str, known: Iterable[str]) -> str:
    """ " (did you mean X?)" when something in `known` is close to `word`, else the empty text."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.55)
    return f"; did you mean {close[0]!r}?" if close else ""


def read_toml(path: Path) -> dict[str, Any]:
    """The file's content. Raises ConfigError when it cannot be read or is not TOML."""
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigError(
            path, "", f"cannot be read: {error.strerror}; give the path of a readable file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            path, "", f"is not a TOML file: not UTF-8 at byte {error.start}"
        ) from error
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
        raise ConfigError(path, "", f"is not a TOML file: {error}") from error


_REQUIRED: Any = object()


class Table:
    """One TOML table being read. `at` is its dotted key in the file, for messages."""

    def __init__(self, file: str | Path, data: dict[str, Any], at: str = ""):
        self.file, self.at = file, at
        self._data = data
        self._asked: set[str] = set()

    def error(self, key: str, problem: str) -> ConfigError:
        """The error to raise for `key` of this table."""
        return ConfigError(
            self.file, f"{self.at}.{key}" if self.at and key else self.at or key, problem
        )

    def has(self, key: str) -> bool:
        """Whether the file gives `key`; this counts as a request for it."""
        self._asked.add(key)
        return key in self._data

    def _get(self, key: str, default: Any, convert: Callable[[Any], Any]) -> Any:
        self._asked.add(key)
        if key not in self._data:
            if default is _REQUIRED:
                near = [k for k in self._data if k not in self._asked]
                raise self.error(key, f"is missing{nearest(key, near) or '; add it'}")
            return default
        try:
            return convert(self._data[key])
        except units.UnitError as error:
            raise self.error(key, str(error)) from None

    def _typed(self, key: str, default: Any, kind: type | tuple[type, ...], words: str) -> Any:
        def convert(value: Any) -> Any:
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise self.error(key, f"{value!r} is not {words}")
            return value

        return self._get(key, default, convert)

    def text(self, key: str, default: Any = _REQUIRED, among: Iterable[str] | None = None) -> Any:
        """A string; with `among`, one of these."""
        value = self._typed(key, default, str, "a text; put it in quotes")
        if among is not None and value is not default and value not in among:
            raise self.error(
                key, f"{value!r} is not one of {', '.join(sorted(among))}{nearest(value, among)}"
            )
        return value

    def integer(
        self, key: str, default: Any = _REQUIRED, low: int = 0, high: int = 2**63 - 1
    ) -> Any:
        """An integer between `low` and `high`."""
        value = self._typed(key, default, int, "an integer")
        if value is not default and not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            raise self.error(key, f"{value} is out of range; it must be {bound}")
        return value

    def number(
        self, key: str, default: Any = _REQUIRED, low: float = 0.0, high: float = 1e18
    ) -> Any:
        """A plain number between `low` and `high`."""
        value = self._typed(key, default, (int, float), "a number")
        if value is not default and not low <= value <= high:
            bound = f"at most {high:g}" if value > high else f"at least {low:g}"
            raise self.error(key, f"{value} is out of range; it must be {bound}")
        return value if value is default else float(value)

    def flag(self, key: str, default: Any = _REQUIRED) -> Any:
        """true or false."""
        return self._typed(key, default, bool, "true or false")

    def time_ns(self, key: str, default: Any = _REQUIRED) -> Any:
        """A time such as "2 us", in nanoseconds."""
        return self._get(key, default, units.time_ns)

    def size_bytes(self, key: str, default: Any = _REQUIRED) -> Any:
        """A size such as "80 GiB", in bytes."""
        return self._get(key, default, units.size_bytes)

    def bytes_per_ns(self, key: str, default: Any = _REQUIRED) -> Any:
        """A bandwidth such as "400 Gbit/s", in bytes per nanosecond."""
        return self._get(key, default, units.bytes_per_ns)

    def flop_per_ns(self, key: str, default: Any = _REQUIRED) -> Any:
        """A rate such as "989 TFLOP/s", in floating-point operations per nanosecond."""
        return self._get(key, default, units.flop_per_ns)

    def watts(self, key: str, default: Any = _REQUIRED) -> Any:
        """A power such as "690 W", in watts."""
        return self._get(key, default, units.watts)

    def nanojoules_per_byte(self, key: str, default: Any = _REQUIRED) -> Any:
        """An energy such as "0.6 nJ/B", in nanojoules per byte."""
        return self._get(key, default, units.nanojoules_per_byte)

    def picojoules_per_flop(self, key: str, default: Any = _REQUIRED) -> Any:
        """An energy such as "0.95 pJ/FLOP", in picojoules per floating-point operation."""
        return self._get(key, default, units.picojoules_per_flop)

    def megahertz(self, key: str, default: Any = _REQUIRED) -> Any:
        """A clock such as "1980 MHz", in MHz."""
        return self._get(key, default, lambda text: units.hertz(text) / 1e6)

    def fraction(self, key: str, default: Any = _REQUIRED) -> Any:
        """A share such as "50%", as a number."""
        return self._get(key, default, units.fraction)

    def numbers(self, key: str, count: int, default: Any = _REQUIRED) -> Any:
        """An array of exactly `count` plain numbers (any length when `count` is 0), as a tuple of
        floats."""
        value = self._typed(key, default, list, "an array of numbers")
        if value is default:
            return default
        if (count and len(value) != count) or any(
            isinstance(v, bool) or not isinstance(v, (int, float)) or not abs(v) <= 1e18
            for v in value
        ):
            raise self.error(key, f"{value!r} is not an array of {count or 'some'} numbers")
        return tuple(float(v) for v in value)

    def table(self, key: str) -> Table:
        """A sub-table; empty when absent."""
        value = self._typed(key, {}, dict, f"a table; write [{key}] on a line of its own")
        return Table(self.file, value, f"{self.at}.{key}" if self.at else key)

    def tables(self, key: str) -> list[Table]:
        """An array of tables; empty when absent. Messages call the n-th one key[n], counted from
        1."""
        prefix = f"{self.at}." if self.at else ""
        value = self._typed(
            key, [], list, f"an array of tables; write [[{key}]] on a line of its own"
        )
        if not all(isinstance(item, dict) for item in value):
            raise self.error(
                key, f"is not an array of tables; write [[{key}]] on a line of its own"
            )
        return [Table(self.file, item, f"{prefix}{key}[{n}]") for n, item in enumerate(value, 1)]

    def raw(self, key: str) -> dict[str, Any]:
        """A sub-table without checks, for a part that validates it itself; empty when absent."""
        value: dict[str, Any] = self._typed(
            key, {}, dict, f"a table; write [{key}] on a line of its own"
        )
        return value

    def keys(self) -> list[str]:
        """All keys that the file gives, in its order; none of them counts as requested."""
        return list(self._data)

    def done(self) -> None:
        """Raises ConfigError for the first key that was not requested."""
        for key in self._data:
            if key not in self._asked:
                raise self.error(
                    key,
                    f"unknown key{nearest(key, self._asked) or '; remove it'}"
                    f" (known here: {', '.join(sorted(self._asked))})",
                )
