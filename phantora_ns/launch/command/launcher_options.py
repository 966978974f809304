"""Reads the command line of a launcher (torchrun, deepspeed) up to its script, as argparse would.

Why it exists: importing the launchers' own parsers would cost seconds and tie us to the job's
interpreter. What they accept is the same for both: `--name value`, `--name=value`, `-n3`, unique
prefixes, and `--` before the script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phantora_ns.launch.errors import UsageError


@dataclass(frozen=True)
class Launcher:
    """The options that a launcher knows, spelled with underscores. `short`: letter -> option.
    `same`: other name -> option. `dashes`: whether dashes may stand for underscores."""

    name: str
    values: frozenset[str]
    flags: frozenset[str]
    short: Mapping[str, str]
    same: Mapping[str, str] = field(default_factory=dict)
    dashes: bool = False

    def read(self, arguments: Sequence[str]) -> tuple[dict[str, str], str | None]:
        """(option -> text, "" for flags; the script, or None). Raises UsageError for an option that
        is not known or lacks its value."""
        given: dict[str, str] = {}
        rest = iter(arguments)
        for argument in rest:
            if argument == "--":
                return given, next(rest, None)
            if not argument.startswith("-") or argument == "-":
                return given, argument
            if argument.startswith("--"):
                typed, equals, value = argument[2:].partition("=")
                option = self._resolve(typed, argument)
            else:
                if argument[1] not in self.short:
                    raise UsageError(
                        f"unknown {self.name} option {argument!r}; in the command; correct it"
                    )
                option, value = self.short[argument[1]], argument[2:]
                equals, value = "=" if value else "", value.removeprefix("=")
            if option in self.flags:
                if equals:
                    raise UsageError(
                        f"{self.name} option {argument!r} takes no value; in the command; remove it"
                    )
            elif not equals:
                following = next(rest, None)
                if following is None:
                    raise UsageError(
                        f"{self.name} option {argument!r} lacks its value; at the end of the command; add it"
                    )
                value = following
            given[option] = value
        return given, None

    def _resolve(self, typed: str, argument: str) -> str:
        """The full name of a long option. As in argparse, a unique prefix is enough."""
        typed = typed.replace("-", "_") if self.dashes else typed
        known = self.values | self.flags
        matches = (
            [typed]
            if typed in known
            else sorted(option for option in known if typed and option.startswith(typed))
        )
        if len(matches) == 1:
            return self.same.get(matches[0], matches[0])
        if matches:
            names = ", --".join(
                match.replace("_", "-") if self.dashes else match for match in matches
            )
            raise UsageError(
                f"{self.name} option {argument!r} could be --{names}; in the command; write it in full"
            )
        raise UsageError(
            f"unknown {self.name} option {argument!r}; in the command; correct it, or put it after the script if it "
            f"belongs to the script (phantora-ns's own options come before {self.name})"
        )
