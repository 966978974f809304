"""`python -m phantora_ns.api.child DESCRIPTOR PROGRESS N OPTION... COMMAND...`: a run for `phantora_ns.run`.

Why it exists: the caller wants the report, and one line for an error, apart from what the job prints. They
go to DESCRIPTOR, a pipe, as the last line of JSON. The lines before it are `{"progress": TEXT}`, if PROGRESS is
1. N says how many words are options. Rule: options are those of the command line, and parsed by it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from phantora_ns.cli.app import explain, parse_options
from phantora_ns.launch.errors import EXIT_USAGE, LaunchError, UsageError


def _answer(
    kind: str, message: str | None, code: int, report: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"kind": kind, "message": message, "exit_code": code, "report": report}


def run(
    options: Sequence[str], command: Sequence[str], progress: Callable[[str], None] | None
) -> dict[str, Any]:
    """Runs it; returns what the caller is told in the end. `progress`: as that of RunRequest."""
    from phantora_ns.launch.run.run_request import build_request
    from phantora_ns.launch.run.runner import Runner

    try:
        runner = Runner(replace(build_request(command, parse_options(options)), progress=progress))
        code = runner.run()
    except (click.ClickException, UsageError, LaunchError) as error:
        code, message = explain(error)
        return _answer("usage" if code == EXIT_USAGE else "launch", message, code)
    kind = "launch" if runner.failed_by in ("hub", "launcher") else "ended"
    return _answer(kind, runner.message, code, runner.report)


def main(arguments: Sequence[str]) -> int:
    """Runs it and tells the caller; returns the exit code."""
    descriptor, wanted, options = map(int, arguments[:3])
    os.set_inheritable(descriptor, False)
    words = arguments[3:]
    with open(descriptor, "w", encoding="utf-8", buffering=1) as pipe:

        def tell(message: dict[str, Any]) -> None:
            pipe.write(json.dumps(message) + "\n")

        def progress(text: str) -> None:
            tell({"progress": text})

        answer = run(words[:options], words[options:], progress if wanted else None)
        tell(answer)
    return int(answer["exit_code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
