"""Writes everything that is made of protocol/*.toml: the C header, the Python modules, and the tables
in docs/.

Why it exists: ranks are C and the hub is Python, and both read the same messages, numbers and files.
They are described once, and this makes the two halves and their documentation. The results are
checked in, so that building needs nothing of this.

    python protocol/generate.py [--check]

`--check` writes nothing and exits 1 when a file differs from what would be written.
"""

import argparse
import sys
from pathlib import Path

import emit_c
import emit_docs
import emit_messages
import emit_python
from description import load

ROOT = Path(__file__).resolve().parent.parent


def generated():
    """The text of every file that is made, whole or in part, by its path."""
    description = load()
    package = ROOT / "phantora_ns"
    texts = {
        ROOT / "libintercept" / "base" / "protocol.gen.h": emit_c.header(description),
        package / "protocol.py": emit_python.module(description),
        package / "hub" / "messages.py": emit_messages.module(description),
    }
    for name in ("wire-protocol.md", "report.md", "environment.md"):
        path = ROOT / "docs" / name
        texts[path] = emit_docs.filled(path.read_text(), description, path)
    return texts


def main():
    """Writes, or with --check compares, the generated files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    differ = False
    for path, text in generated().items():
        if path.exists() and path.read_text() == text:
            continue
        differ = True
        if options.check:
            print(f"{path.relative_to(ROOT)} is stale: run protocol/generate.py")
        else:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)}: written")
    sys.exit(1 if options.check and differ else 0)


if __name__ == "__main__":
    main()
