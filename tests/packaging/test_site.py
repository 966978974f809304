"""Why it exists: `make docs` promises a site without a broken link, that works without network and
has every option of the command line. It installs packages, so it is nightly."""

import os
import re
import shutil
import subprocess
import sys

import click
import pytest

from phantora_ns.cli.app import cli
from phantora_ns.cli.kernels import kernels
from tests.packaging.test_docs import documents

LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"((?:https?:)?//[^\"]*)\"")

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(root, tmp_path_factory):
    outer = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    folder = tmp_path_factory.mktemp("site") / "site"
    command = ["make", "-C", root, "docs", f"DOCS={folder}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, env=outer, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_document_has_a_page(site, root):
    pages = [site / path.relative_to(root).with_suffix(".html") for path in documents(root)]
    assert [page for page in pages if not page.exists()] == []
    assert (site / "index.html").exists()


def test_no_page_loads_anything_from_elsewhere(site):
    loaded = {page.name: LOADED.findall(page.read_text()) for page in site.rglob("*.html")}
    assert {name: found for name, found in loaded.items() if found} == {}
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"@import|url\([\"']?(?:https?:)?//", styles) == []


def options(command):
    """The long options of a command and of those below it."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (name for name in parameter.opts if name.startswith("--"))
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from options(kernels if name == "kernels" else below)


def test_the_page_of_the_command_line_has_every_option(site):
    page = (site / "docs/cli.html").read_text()
    shown = set(re.findall(r'<span class="pre">(--[\w-]+)</span>', page))
    assert set(options(cli)) - shown == set()


def test_the_search_finds_words(site):
    assert '"straggler"' in (site / "searchindex.js").read_text()


@pytest.mark.parametrize("link", ["docs/missing.md", "docs/README.md#missing"])
def test_a_link_that_leads_nowhere_fails_the_build(site, root, tmp_path, link):
    (tmp_path / "docs").mkdir()
    shutil.copy(root / "docs/conf.py", tmp_path / "docs")
    (tmp_path / "docs/README.md").write_text("# Documents\n\n## Reference\n\n[page](page.md)\n")
    (tmp_path / "docs/page.md").write_text("# A page\n\nText.\n")
    command = [root / "build/docs-tools/bin/python", "-m", "sphinx", "-q", "-W", "-c", "docs", "."]
    for target, code in (("docs/README.md#reference", 0), (link, 1)):
        (tmp_path / "README.md").write_text(f"# Top\n\n[there]({target})\n")
        done = subprocess.run([*command, "site"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
    assert "myst.xref_missing" in done.stderr
