"""Why it exists: a report is written whole or not at all, and where the user said, whatever lies in
that folder."""

import errno
import json
import os
import sqlite3
import threading
from types import SimpleNamespace

import pytest

from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.schema import reported
from phantora_ns.launch.record.host_time import RECORDING
from phantora_ns.launch.run import results
from phantora_ns.launch.run.outcome import Verdict
from phantora_ns.launch.run.results import Results, write_report


def test_links_under_known_names_are_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".report.json.partial").symlink_to(victim)
    write_report(tmp_path / "report.json", {"a": 1})
    assert victim.read_text() == "mine"
    assert json.loads((tmp_path / "report.json").read_text()) == {"a": 1}


def test_runs_that_write_one_report_do_not_collide(tmp_path):
    path = tmp_path / "report.json"
    failures = []

    def write(number):
        try:
            for _ in range(50):
                write_report(path, {"run": number, "filler": ["x" * 100] * 100})
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and os.listdir(tmp_path) == ["report.json"]
    assert json.loads(path.read_text())["filler"] == ["x" * 100] * 100


def test_a_report_has_the_permissions_that_any_new_file_has(tmp_path):
    write_report(tmp_path / "report.json", {})
    (tmp_path / "other").write_text("")
    modes = {os.stat(tmp_path / name).st_mode for name in ("report.json", "other")}
    assert len(modes) == 1
    os.chmod(tmp_path / "report.json", 0o600)
    write_report(tmp_path / "report.json", {})
    assert os.stat(tmp_path / "report.json").st_mode & 0o777 == 0o600


def test_the_report_has_the_exit_code_of_a_run_whose_page_failed(launch, tmp_path):
    """It used to be written before the page, and said 0."""
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    words = ("--report", report, "--html", page)
    code, _, err = launch(*words, "--isolation", "none", "--", "true").finish()
    assert "cannot write the page" in err  # the stand-in of a report lacks what a page needs
    assert code == json.loads(report.read_text())["exit_code"] == 70


class NoReport(Results):
    """Results of a run whose report is empty."""

    def make_report(self, wall_s):
        self.report = {}


def refusing(number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    return refuse


def full_database(file, _):
    """SQLite says that there is no room, in its own way."""
    with reported(file, "written"):
        connection = sqlite3.connect(":memory:")
        connection.execute("PRAGMA max_page_count = 1")
        connection.execute("CREATE TABLE filler (text)")


@pytest.mark.parametrize(
    "page, report, said",
    [
        (
            errno.ENOSPC,
            errno.ENOSPC,
            ["cannot keep the results: No space left on device; {0}, {1}, {2}; make room there"],
        ),
        (
            errno.EIO,
            errno.ENOSPC,
            [
                "cannot keep the results: No space left on device; {0}, {2}; make room there",
                "cannot write the page: Input/output error; {1}",
            ],
        ),
    ],
)
def test_what_one_cause_refuses_is_one_line(monkeypatch, capsys, tmp_path, page, report, said):
    """A full disk used to be one line for each file."""
    files = [tmp_path / name for name in ("host.sqlite", "page.html", "report.json")]
    request = SimpleNamespace(
        host=SimpleNamespace(record=files[0], mode="none"),
        html=files[1],
        report=files[2],
        record_into=None,
        quiet=True,
    )
    (tmp_path / RECORDING).touch()
    monkeypatch.setattr(databases, "add", full_database)
    monkeypatch.setattr("phantora_ns.page.run_page.write_page", refusing(page))
    monkeypatch.setattr(results, "replacing", refusing(report))
    ended = NoReport(request, tmp_path, Verdict(0, None))
    ended.keep(1.0)
    expected = [line.format(*files) for line in said]
    assert capsys.readouterr().err.splitlines() == [f"phantora-ns: {line}" for line in expected]
    assert ended.problem == expected[-1]
    assert (ended.verdict.exit_code, ended.report["exit_code"]) == (70, 70)
