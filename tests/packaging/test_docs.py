"""Why it exists: documents go stale silently. Links, anchors and the paths that documents name must
exist in the tree."""

import re
import shlex
import subprocess

import click
import pytest

from phantora_ns.cli.app import cli
from phantora_ns.cli.kernels import kernels

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# `folder/file.ext` in text: a path of the repository, or of libintercept/ or phantora_ns/
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:c|cpp|h|py|toml|md|jsonl|map|json))`")
BASES = (
    "",
    "libintercept",
    "phantora_ns",
    "phantora_ns/kernels",
    "libintercept/simulated",
    "docs",
    "examples/frameworks",
)
HISTORY = {"docs/notebook.md", "CHANGELOG.md"}  # they may name what is gone


def documents(root):
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=root, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        pytest.skip("not a git checkout")
    return [root / name for name in done.stdout.splitlines() if (root / name).exists()]


def prose(page):
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.S)


def anchors(page):
    """The anchors of a page's headings, as code hosts make them."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.M)
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).lower() for text in found)
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def test_links_and_anchors_exist(root):
    broken = []
    for page in documents(root):
        for target in LINK.findall(prose(page)):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            if not other.exists() or (anchor and anchor not in anchors(other)):
                broken.append(f"{page.relative_to(root)}: {target}")
    assert broken == []


def test_documents_that_messages_name_exist(root):
    """The summary, the page and help texts send a reader to docs/PAGE.md, some to a heading of it."""
    broken, found = [], 0
    for source in [*(root / "phantora_ns").rglob("*.py"), *(root / "libintercept").rglob("*.c")]:
        for path, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", source.read_text()):
            found += 1
            other = root / path
            if not other.exists() or (anchor and anchor not in anchors(other)):
                broken.append(f"{source.relative_to(root)}: {path}#{anchor}")
    assert found > 50 and broken == []


def test_the_index_names_every_document(root):
    """docs/README.md is the navigation of the site (docs/conf.py)."""
    index = root / "docs/README.md"
    named = {
        (index.parent / path.partition("#")[0]).resolve()
        for path in LINK.findall(index.read_text())
    }
    left_out = set(documents(root)) - named - {index, root / "README.md"}
    assert sorted(left_out) == []


def command_lines(page):
    """The command lines in the code of a page that are complete: no [option], no `...`, and no text
    that ends on another line."""
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"^(?: {4,}|\$ )(?:\$ )?(?:\w+=\S+ )*phantora-ns (.*)$", text, re.M):
        if not re.search(r"\[|\.\.\.|\|", line) and line.count("'") % 2 == 0:
            yield shlex.split(line, comments=True)


def parse(command, words, parent=None):
    """What click does before it runs a command. Raises ClickException."""
    settings = command.context_settings
    context = click.Context(command, parent=parent, info_name=command.name, **settings)
    with context.scope(cleanup=False):
        rest = click.Command.parse_args(command, context, words)
        if isinstance(command, click.Group):
            name, below, rest = command.resolve_command(context, rest)
            parse(kernels if name == "kernels" else below, rest, context)


def test_command_lines_that_documents_show_are_understood(root):
    """Our own options and commands; the job's are not looked at."""
    wrong = []
    for page in documents(root):
        if page.relative_to(root).as_posix() in HISTORY:
            continue
        for words in command_lines(page):
            try:
                parse(cli, list(words))
            except click.exceptions.Exit:  # --help-all
                pass
            except click.ClickException as error:
                wrong.append(f"{page.relative_to(root)}: {words}: {error.format_message()}")
    assert wrong == []


def test_paths_that_documents_name_exist(root):
    missing = []
    for page in documents(root):
        if page.relative_to(root).as_posix() in HISTORY:
            continue
        bases = [*(root / base for base in BASES), page.parent]
        for path in set(PATH.findall(prose(page))):
            if re.search(r"\b[A-Z]{2,}\b|_[A-Z]{2,}\b", path):  # NAME stands for any
                continue
            if not any((base / path).exists() for base in bases):
                missing.append(f"{page.relative_to(root)}: {path}")
    assert sorted(missing) == []


def test_functions_of_the_interceptor_that_documents_name_exist(root):
    folder = root / "libintercept"
    source = "\n".join(
        path.read_text() for path in folder.rglob("*") if path.suffix in (".c", ".h", ".cpp")
    )
    known = set(re.findall(r"\b(?:ph|phantora)_\w+", source)) | {"phantora_ns"}
    missing = []
    for page in documents(root):
        if page.relative_to(root).as_posix() not in HISTORY:
            names = re.findall(r"`(?:struct )?((?:ph|phantora)_\w+)(?:\(\))?`", prose(page))
            missing += [f"{page.relative_to(root)}: {name}" for name in set(names) - known]
    assert sorted(missing) == []


def test_the_glossary_is_in_order(root):
    terms = re.findall(r"^##+ (.*)$", (root / "docs/glossary.md").read_text(), re.M)
    assert terms == sorted(terms, key=str.lower)
