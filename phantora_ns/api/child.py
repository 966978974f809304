"""`python -m phantora_ns.api.child DESCRIPTOR N OPTION... COMMAND...`: a run for `phantora_ns.run`.

Why it exists: the caller wants the report, and one line for an error, apart from what the job prints. They
go to DESCRIPTOR, a pipe, as JSON. N says how many words are options. Rule: options are those of the
command line, and parsed by it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from phantora_ns.cli.app import explain, parse_options
from phantora_ns.launch.errors import EXIT_USAGE, LaunchError, UsageError


def _answer(
    kind: str, message: str | None, code: int, report: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"kind": kind, "message": message, "exit_code": code, "report": report}


def run(options: Sequence[str], command: Sequence[str]) -> dict[str, Any]:
    """Runs it; returns what the caller is told."""
    from phantora_ns.launch.run.run_request import build_request
    from phantora_ns.launch.run.runner import Runner

    try:
        runner = Runner(build_request(command, parse_options(options)))
        code = runner.run()
    except (click.ClickException, UsageError, LaunchError) as error:
        code, message = explain(error)
        return _answer("usage" if code == EXIT_USAGE else "launch", message, code)
    kind = "launch" if runner.failed_by in ("hub", "launcher") else "ended"
    return _answer(kind, runner.message, code, runner.report)


def main(arguments: Sequence[str]) -> int:
    """Runs it and tells the caller; returns the exit code."""
    descriptor, options = int(arguments[0]), int(arguments[1])
    os.set_inheritable(descriptor, False)
    words = arguments[2:]
    answer = run(words[:options], words[options:])
    with open(descriptor, "w", encoding="utf-8") as pipe:
        json.dump(answer, pipe)
    return int(answer["exit_code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
