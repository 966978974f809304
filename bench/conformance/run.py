"""Runs PyTorch's own DistributedTest on emulated GPUs, and writes which tests pass as a table.

    python -m bench.conformance.run [--times 1] [--python PYTHON] [--log FILE] [PATTERN...] [-- PHANTORA-NS OPTIONS]

Why it exists: these tests were written for real GPUs by others. `PYTHON` has torch and expecttest
(default: this one). No line of the tests is here. A run takes 20 minutes on two idle cores,
and half of that with `-- --warm-start auto`.
"""

import argparse
import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = Path(__file__).parent / "suite.py"
KNOWN = {"test_DistributedDataParallel"}
"""Fails on real GPUs too (PyTorch issue 112277), so it does not make this command fail."""


def outcomes(log: Path) -> dict[str, collections.Counter[str]]:
    """How often each test has ended in which way."""
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        found[entry["name"]][entry["outcome"]] += 1
    return found


def reason(log: Path, name: str) -> str:
    """The last error of a test, in a line."""
    words = [
        entry["words"]
        for entry in map(json.loads, log.read_text().splitlines())
        if entry["name"] == name and entry["outcome"] == "failed"
    ]
    lines = [line.strip() for line in words[-1].splitlines() if "Error" in line]
    return (lines or ["?"])[-1].replace("|", "\\|")[:160]


def table(log: Path) -> list[str]:
    """Markdown: how many tests end in which way, and each that does not always pass."""
    found = outcomes(log)
    kinds = collections.Counter(" and ".join(sorted(ends)) for ends in found.values())
    lines = ["| tests | |", "|---|---|"]
    lines += [f"| {kind} | {count} |" for kind, count in sorted(kinds.items())]
    bad = [name for name, ends in sorted(found.items()) if ends["failed"]]
    if bad:
        lines += ["", "| test | failed | of | last error |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {found[name]['failed']} | {found[name].total()} | {reason(log, name)} |"
            for name in bad
        ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="PyTorch's DistributedTest on emulated GPUs.")
    parser.add_argument(
        "patterns", nargs="*", help="regular expressions in names of tests; default: all"
    )
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--log", type=Path, help="a line of JSON for each test; added to")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    options, extra = parser.parse_args(words[:split]), words[split + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "log"
        for _ in range(options.times):
            job = [options.python, str(SUITE), str(log.resolve()), *options.patterns]
            launcher = [options.python, "-m", "phantora_ns", "--quiet", "--gpus-per-node", "2"]
            subprocess.run([*launcher, *extra, "--", *job])
        print("\n".join(table(log)))
        found = outcomes(log)
        return not found or any(found[name]["failed"] for name in found.keys() - KNOWN)


if __name__ == "__main__":
    sys.exit(main())
