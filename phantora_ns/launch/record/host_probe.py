"""A fixed piece of Python, about 2 ms of it, twice, that a machine runs as fast or slowly as a framework's code.

Why it exists: what a first run measures of host time (docs/host-time.md) depends on how fast the machine
is at that moment. Like a training step, this runs much different code, most of it once: the interpreter,
C functions, small objects, megabytes in all. So a slow or busy machine lengthens both alike. Measured on
two busy cores: a step of a tiny model on the CPU took 4.5 to 6.8 ms, and 2.5 to 2.8 times as long as this;
a loop in C of 150 kB, beside them, took 86 to 93 us whatever the step did.
Rule: a change here changes REFERENCE (host_speed.py).
"""

from __future__ import annotations

import argparse
import ast
import configparser
import copy
import dataclasses
import datetime
import difflib
import email
import enum
import fractions
import inspect
import itertools
import json
import pickle
import re
import statistics
import string
import textwrap
import time
import urllib.parse
from collections.abc import Callable
from typing import NamedTuple

_TEXT = "Ranks that meet in a collective wait for the slowest of their hosts (about 10 %). " * 9
_CODE = """
def f(a, b=2, *c, **d):
    x = [i * j for i in a for j in b if i]
    try:
        return {k: v for k, v in d.items()}
    except (ValueError, KeyError) as e:
        raise RuntimeError(f"{e!r}") from e
"""
_TREE = ast.parse(_CODE)
_DATA = {"a": [1, 2.5, None, True, "text"], "b": [{"d": i, "e": str(i)} for i in range(12)]}
_number = itertools.count()


@dataclasses.dataclass
class _Point:
    x: int
    y: float
    name: str = ""
    rest: list[int] = dataclasses.field(default_factory=list)


def _options() -> object:
    parser = argparse.ArgumentParser(prog="p")
    parser.add_argument("--a", type=int, default=1)
    parser.add_argument("b", nargs="*")
    return parser.parse_args(["--a", "3", "q"])


def _settings() -> object:
    parser = configparser.ConfigParser()
    parser.read_string("[a]\nb=1\nc=%(b)s\n[d]\ne=f\n")
    return parser["a"]["c"]


def _days() -> object:
    start = datetime.datetime(2026, 1, 1)
    return [(start + datetime.timedelta(hours=7 * i)).isoformat() for i in range(20)]


_TASKS: tuple[Callable[[], object], ...] = (
    _options,
    _settings,
    _days,
    lambda: ast.unparse(_TREE),
    lambda: compile(_CODE, "f", "exec"),
    lambda: copy.deepcopy(_DATA),
    lambda: difflib.SequenceMatcher(None, "abcdxyzqwe" * 2, "bcdeyzxqwa" * 2).ratio(),
    lambda: email.message_from_string("From: a\nTo: b\nSubject: c\n\nbody\n").get("to"),
    lambda: enum.Enum("E", "a b c")["a"],  # type: ignore[misc]
    lambda: sum((fractions.Fraction(1, i) for i in range(1, 12)), fractions.Fraction(0)),
    lambda: json.JSONEncoder(indent=1).encode(_DATA),
    lambda: pickle._dumps(_DATA["b"][:4]),  # type: ignore[attr-defined,index]
    lambda: re.compile(rf"(a|b)+[^c-f]{{2,5}}(?P<n>\d+)\s*{next(_number)}$"),
    lambda: [match[0] for match in re.finditer(r"\w+|\W", _TEXT)],
    lambda: str(inspect.signature(argparse.ArgumentParser.__init__)),
    lambda: statistics.stdev([1, 2, 3.5, 7]),
    lambda: string.Template("$a ${b} $$").substitute(a=1, b=2),
    lambda: textwrap.fill(_TEXT, 40),
    lambda: urllib.parse.urlsplit("http://a.b:80/c?d=e#f").geturl(),
    lambda: [dataclasses.replace(_Point(i, 2.0), name="q") for i in range(8)],
    lambda: dataclasses.asdict(_Point(1, 2.0, rest=[1, 2])),
)


class Passes(NamedTuple):
    """CPU time of this thread for the same work twice, in ns. While the thread slept, others have used the caches;
    the first pass fills them anew."""

    first_ns: int
    second_ns: int


def probe() -> Passes:
    """Does the work twice."""
    return Passes(_pass_ns(), _pass_ns())


def _pass_ns() -> int:
    start = time.thread_time_ns()
    for task in _TASKS:
        task()
    return time.thread_time_ns() - start
