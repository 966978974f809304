"""The site of the documents (`make docs`), by Sphinx.

Why it exists: the documents are Markdown files that a code host shows as they are. The site adds
navigation, search, and what is generated from the code. Rules: docs/README.md is the one list of
documents, and the navigation is made from it. A page loads nothing from elsewhere, so it works
without network. Whatever Sphinx warns of fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path

from phantora_ns.cli.app import cli
from phantora_ns.cli.kernels import kernels

# The names below are Sphinx's own.
ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "README.md"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")

project = "phantora-ns"
html_title = project
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "bench/**.md"]
exclude_patterns = [".*", "build", "dist", "examples", "libflows", "libintercept", "phantora_ns"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
default_role = "code"  # in docstrings
autodoc_typehints = "none"  # they are in the source, and the text says what matters
autodoc_member_order = "bysource"
myst_heading_anchors = 6  # as code hosts make them
html_theme = "furo"
html_theme_options = {"light_css_variables": {"code-font-size": "78%"}}  # 100 columns fit
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
smartquotes = False  # options begin with two dashes
pygments_style = "friendly"
pygments_dark_style = "monokai"


def sections() -> list[tuple[str, list[str]]]:
    """The headings of docs/README.md, each with the documents that its links name, in order. A
    document is in the first section that names it."""
    found, named = [], set()
    for part in re.split(r"^## ", INDEX.read_text(), flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        paths = [(INDEX.parent / path).resolve() for _, path in LINK.findall(text)]
        pages = [path.relative_to(ROOT) for path in paths if path.suffix == ".md"]
        names = dict.fromkeys(page.with_suffix("").as_posix() for page in pages)
        found.append((heading, [name for name in names if name not in named]))
        named.update(names)
    return found


def navigation() -> str:
    """The tables of contents that the root page holds, hidden."""
    index = INDEX.relative_to(ROOT).with_suffix("").as_posix()
    parts = [("Overview", [index]), *sections()]
    return "".join(
        "\n".join(["", "```{toctree}", ":hidden:", f":caption: {heading}", "", *names, "```", ""])
        for heading, names in parts
    )


def prepare(app, name: str, source: list[str]) -> None:
    """Puts the navigation on the root page. A link to a folder, which a code host shows and a site
    cannot, becomes the folder's name."""
    folder = Path(app.env.doc2path(name)).parent

    def named(link: re.Match[str]) -> str:
        path = (folder / link[2]).resolve()
        return f"{link[1]} (`{path.relative_to(ROOT)}`)" if path.is_dir() else link[0]

    source[0] = LINK.sub(named, source[0])
    if name == root_doc:
        source[0] += navigation()


def add_index(app, failure: Exception | None) -> None:
    """A browser that opens the folder gets the root page."""
    if failure is None:
        page = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(f"<!doctype html>\n{page}")


def setup(app) -> None:
    """Called by Sphinx."""
    cli.commands["kernels"] = kernels  # the group that the command line imports only on demand
    app.connect("source-read", prepare)
    app.connect("build-finished", add_index)
