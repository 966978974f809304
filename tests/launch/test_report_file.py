"""Why it exists: a report is written whole or not at all, and where the user said, whatever lies in
that folder."""

import json
import os
import threading

from phantora_ns.launch.run.results import write_report


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
