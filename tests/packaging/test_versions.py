"""Why it exists: docs/versions.md is written by tools/versions.py, a row at a time, and must keep the
rows of other runs."""

import importlib.util
import itertools
import subprocess
import sys

import pytest

from phantora_ns.config.versions import supported_versions


@pytest.fixture(scope="module")
def tool(root):
    spec = importlib.util.spec_from_file_location("versions_tool", root / "tools" / "versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(tool, torch, python="3.11", setup="-", smoke="15 passed"):
    return (torch, python, "13.0", "9.1.0", "2.30.1", "3.9.0", "built", "ends well", smoke, setup)


def test_rows_are_kept_replaced_and_in_order(tool):
    rows = [
        cells(tool, torch, python)
        for torch in ("2.15.0+cu132", "2.9.1+cu128")
        for python in ("3.13", "3.11")
    ]
    empty = f"before\n{tool.BEGIN}{tool.END}after\n"
    wanted = tool.with_rows(empty, rows)
    assert tool.read_rows(wanted) == rows
    for some in itertools.permutations(rows):
        text = empty
        for one in some:
            text = tool.with_rows(text, [one])
        assert text == wanted
    assert wanted.startswith("before\n") and wanted.endswith("after\n")


def test_a_measured_set_up_is_kept(tool):
    text = tool.with_rows(f"{tool.BEGIN}{tool.END}", [cells(tool, "2.15.0+cu132", setup="120")])
    again = tool.with_rows(text, [cells(tool, "2.15.0+cu132", smoke="**1 failed**")])
    assert tool.read_rows(again) == [cells(tool, "2.15.0+cu132", setup="120", smoke="**1 failed**")]


def test_what_another_software_gave_is_not_kept(tool):
    text = tool.with_rows(f"{tool.BEGIN}{tool.END}", [cells(tool, "2.15.0+cu132", setup="120")])
    (old,) = tool.read_rows(text)
    new = tuple("9.2.0" if cell == "9.1.0" else cell for cell in old[:-1]) + ("-",)
    assert tool.read_rows(tool.with_rows(text, [new])) == [new]


def test_the_cost_of_the_set_up_counts_grandchildren(tool):
    """The oracle is the grandchild's own count of its CPU time."""
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(time.process_time())"
    shell = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    before = tool.cpu_seconds()
    done = subprocess.run([*shell, sys.executable, "-c", busy], capture_output=True, text=True)
    # the kernel counts both clocks, but rounds the one that waiting gives
    assert tool.cpu_seconds() - before >= float(done.stdout) - 0.02


def test_a_set_up_is_that_of_the_last_commit(tool, tmp_path, monkeypatch):
    tree, where = tmp_path / "tree", tool.place(tmp_path / "venvs" / "2.15.0")
    tree.mkdir()
    (tree / "Makefile").write_text(
        "build:\n\tmkdir $(VENV) && cp what $(VENV) && echo $$PIP_NO_INDEX >$(VENV)/offline\n"
        "\ttouch $(VENV)/.stamp-project\n"
    )
    (tree / "what").write_text("committed")
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(tree)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (tree / "what").write_text("changed since")
    monkeypatch.setattr(tool, "ROOT", tree)
    monkeypatch.setattr(tool, "download", lambda *_: None)
    assert not where.exists
    assert float(tool.set_up("2.15.0", where, sys.executable).split()[0]) >= 0
    assert where.exists and where.tree != tree
    assert (where.venv / "what").read_text() == "committed"
    assert (where.venv / "offline").read_text() == "1\n"
    (tmp_path / "venvs" / "2.11.0").mkdir()
    (tmp_path / "venvs" / "2.11.0" / ".stamp-project").touch()
    assert tool.place(tmp_path / "venvs" / "2.11.0").tree == tree


@pytest.mark.parametrize(
    "code, output, words",
    [
        (0, "....\n15 passed in 90.1s\n", "15 passed"),
        (
            1,
            "FAILED tests/smoke/test_smoke.py::test_a_part_works[x] - assert\n"
            "========= 1 failed, 14 passed in 448.53s (0:07:28) =========\n"
            "make: *** [Makefile:80: smoke] Error 1\n",
            "**1 failed, 14 passed** (test_a_part_works[x])",
        ),
        (2, "make: *** [Makefile:80: smoke] Error 2\n", "**did not run**"),
        (2, "", "**did not run**"),
    ],
)
def test_the_result_of_the_smoke_tests(tool, code, output, words):
    assert tool.smoke_result(code, output) == words


def test_the_document_has_a_good_row_for_each_release_of_the_list(tool, root):
    """A row that does not end well belongs into a report of a defect, not into the document."""
    seen = set()
    for cells in tool.read_rows((root / "docs" / "versions.md").read_text()):
        row = dict(zip(tool.COLUMNS, cells, strict=True))
        release = supported_versions().release(row["torch"].partition("+")[0])
        assert release is not None, row
        found = (row["CUDA"], row["cuDNN"], row["NCCL"], row["Triton"])
        assert found == (release.cuda, release.cudnn, release.nccl, release.triton)
        assert row["Python"] in supported_versions().python
        assert "**" not in "".join(cells)
        seen.add(release)
    assert seen == set(supported_versions().releases)
