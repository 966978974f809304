"""`--fail-if 'step_time > +3%'`: bounds that a comparison must keep.

Why it exists: CI wants an exit code. A condition is checked for every run against the first. Rule: a
number that is not known breaks its bound, because a bound that cannot be checked is not kept.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phantora_ns.config.units import UnitError, fraction, size_bytes, time_ns
from phantora_ns.page.compare import BY_NAME, LETTERS, CompareError
from phantora_ns.page.compare_text import shown

_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_FORM = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*([+-]?)\s*(\S.*?)\s*")


@dataclass(frozen=True)
class Condition:
    """`change`: None for the number itself, "relative" or "absolute" for its change."""

    text: str
    metric: str
    sign: str
    change: str | None
    bound: float

    def breaks(self, comparison: Mapping[str, Any]) -> list[str]:
        """A line for each run for which the condition holds, or for which it cannot be known."""
        metric = next(one for one in comparison["metrics"] if one["name"] == self.metric)
        values: Sequence[float | None] = metric["values"]
        found = []
        for index, value in enumerate(values):
            if index == 0 and self.change is not None:
                continue
            letter = LETTERS[index % len(LETTERS)]
            measured = self._measured(values[0], value)
            if measured is None:
                found.append(f"{self.text}: not known for {letter}")
            elif _OPERATORS[self.sign](measured, self.bound):
                found.append(f"{self.text}: {self._said(metric['kind'], measured)} for {letter}")
        return found

    def _measured(self, first: float | None, value: float | None) -> float | None:
        if value is None or self.change is None:
            return value
        if first is None:
            return None
        if self.change == "absolute":
            return value - first
        return (value - first) / first if first else None if value != first else 0.0

    def _said(self, kind: str, measured: float) -> str:
        if self.change == "relative":
            return f"{measured:+.2%}"
        return shown(kind, measured, signed=self.change == "absolute")


def parse(text: str) -> Condition:
    """A condition as typed: METRIC, a sign of comparison, and a number or a signed change. Raises
    CompareError."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise CompareError(
            f"--fail-if {text!r} is not of the form 'step_time > +3%'; on the command line; "
            "give METRIC > VALUE, where a sign before VALUE means the change against A"
        )
    name, sign, direction, value = found.groups()
    metric = BY_NAME.get(name)
    if metric is None:
        raise CompareError(
            f"--fail-if: there is no {name!r}; on the command line; choose one of "
            + ", ".join(BY_NAME)
        )
    try:
        if direction and value.endswith("%"):
            change, bound = "relative", fraction(value)
        else:
            change, bound = "absolute" if direction else None, _quantity(metric.kind, value)
    except UnitError as error:
        raise CompareError(f"--fail-if: {error}; on the command line") from error
    return Condition(text.strip(), name, sign, change, -bound if direction == "-" else bound)


def _quantity(kind: str, text: str) -> float:
    if kind == "time":
        return time_ns(text)
    if kind == "bytes":
        return size_bytes(text)
    if kind == "share":
        return fraction(text)
    try:
        return float(text)
    except ValueError:
        raise UnitError(f"{text!r} is no number") from None
