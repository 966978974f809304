"""Why it exists: one launch runs many checks. This reads their JSON lines, so that pytest shows
each check by name."""

import ast
import json
from pathlib import Path

JOBS = Path(__file__).resolve().parent / "jobs"


def check_names(job, folder=JOBS):
    """The names of a job's checks, read from its source: importing it would import torch at
    collection."""
    tree = ast.parse((folder / f"{job}.py").read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(mark, ast.Name) and mark.id == "check" for mark in node.decorator_list)
    ]


class Outcome:
    """What a finished launch said: `lines(kind)` are its JSON objects, `complaints(name)` what is
    wrong with one check."""

    def __init__(self, done, ranks):
        self.done, self.ranks = done, ranks

    @staticmethod
    def parse(lines):
        """The JSON objects of lines `KIND {...}`."""
        return [json.loads(line.partition(" ")[2]) for line in lines]

    def lines(self, kind):
        return self.parse(
            line for line in self.done.stdout.splitlines() if line.startswith(kind + " ")
        )

    def complaints(self, name):
        reports = [line for line in self.lines("CHECK") if line["name"] == name]
        wrong = [f"rank {line['rank']}: {text}" for line in reports for text in line["wrong"]]
        if sorted(line["rank"] for line in reports) != list(range(self.ranks)):
            wrong.append(
                f"reported by ranks {sorted(line['rank'] for line in reports)} only; exit code {self.done.returncode}\n"
                f"{self.done.stderr[-3000:]}"
            )
        return wrong
