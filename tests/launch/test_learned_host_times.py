"""Why it exists: a job whose host times were measured once must be charged the same in every later
run, whatever other jobs ran in between."""

import contextlib
import sqlite3

import pytest

from phantora_ns.kernels.database.host_samples import Measured
from phantora_ns.kernels.database.host_table import Seldom
from phantora_ns.launch.record.learned_host_times import (
    Learned,
    forget,
    job_of,
    keep,
    read,
)
from phantora_ns.report.host_part import host_lines, will_be_measured_again

TORCH = "2.11.0+cu130"


def test_what_is_kept_is_never_replaced(tmp_path):
    file = tmp_path / "folder" / "host-times.sqlite"
    assert read(file, "a") == Learned()
    keep(file, "a", Measured(1.0, {5: 100, 6: 200}, {6: Seldom(10**9, 2, 10, 1)}, 0))
    known = read(file, "a")
    assert known == Learned(True, {5: 100, 6: 200}, {6: Seldom(10**9, 2, 10, 1)})
    keep(file, "b", Measured(1.0, {5: 1, 7: 300}, {}, 0))
    assert read(file, "a") == known, "what job b added would change job a"
    assert read(file, "b") == Learned(True, {5: 1, 7: 300}), (
        "equal call sites of two jobs may be different code"
    )
    assert read(file, "c") == Learned()


def test_of_two_first_runs_at_once_one_counts(tmp_path):
    file = tmp_path / "host-times.sqlite"
    keep(file, "a", Measured(1.0, {5: 100}, {5: Seldom(10**9, 2, 10, 1)}, 0))
    known = read(file, "a")
    keep(file, "a", Measured(1.0, {5: 1, 6: 2}, {6: Seldom(10**8, 1, 5, 1)}, 0))
    assert read(file, "a") == known


def test_a_job_whose_code_has_changed_is_measured_again(tmp_path):
    file = tmp_path / "host-times.sqlite"
    keep(file, "a", Measured(1.0, {5: 100}, {5: Seldom(10**9, 2, 10, 1)}, 0))
    forget(file, "a")
    assert read(file, "a") == Learned()
    keep(file, "a", Measured(1.0, {6: 200}, {}, 0))
    assert read(file, "a") == Learned(True, {6: 200})


def test_what_an_older_version_kept_does_not_count(tmp_path):
    """It was brought to the recorded machine's speed by another rule."""
    file = tmp_path / "host-times.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as old, old:
        old.execute(
            "CREATE TABLE measured_jobs (job TEXT PRIMARY KEY, date TEXT NOT NULL,"
            " last_call_site INTEGER NOT NULL) WITHOUT ROWID"
        )
        old.execute("INSERT INTO measured_jobs VALUES ('a', '2026-01-01', 0)")
    assert read(file, "a") == Learned()
    keep(file, "a", Measured(1.0, {5: 100}, {}, 0))
    assert read(file, "a") == Learned(True, {5: 100})


@pytest.mark.parametrize("share", [0.04, 0.06])
def test_that_a_job_will_be_measured_again_is_said(share):
    part = {
        "mode": "auto",
        "measured": None,
        "time_share": {"learned": 1 - share, "backed off": share},
    }
    said = any("its next run measures them" in line for line in host_lines(part))
    assert said == will_be_measured_again(part) == (share > 0.05)
    assert not will_be_measured_again(part | {"measured": {"call_sites": 5}})
    assert not will_be_measured_again(part | {"mode": "model"})


def test_a_job_is_its_command_its_folder_its_cluster_and_its_torch():
    jobs = {
        job_of(argv, folder, (nodes, gpus), torch)
        for argv in (["torchrun", "a.py"], ["torchrun", "a.py", "--steps", "5"])
        for folder in ("/home/a", "/home/b")
        for nodes in (1, 2)
        for gpus in (1, 2)
        for torch in (TORCH, "2.15.0")
    }
    assert len(jobs) == 32
