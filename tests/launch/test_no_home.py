"""Why it exists: in some containers a user has neither HOME nor an entry in the table of users."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantora_ns.home import NONE, cache_folder, home_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def nobody():
    """Runs Python as a user without a home; returns a CompletedProcess."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    env.pop("HOME", None)

    def run(*arguments):
        ids = ["--map-user=54321", "--map-group=54321"]
        command = ["unshare", "-U", *ids, sys.executable, *arguments]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, cwd=ROOT, timeout=120
        )

    return run


def test_databases_and_clusters_are_listed_without_a_home(nobody):
    for words in (["kernels", "list"], ["clusters"]):
        done = nobody("-m", "phantora_ns", *words)
        assert done.returncode == 0 and "h200" in done.stdout, done.stderr
        assert "Traceback" not in done.stderr


def test_there_is_no_cache_and_the_doctor_says_so(nobody):
    done = nobody(
        "-c",
        "from phantora_ns.home import cache_folder\n"
        "from phantora_ns.launch import doctor\n"
        "doctor._check_torch = lambda report: exit(0)\n"
        "try: cache_folder().mkdir(parents=True)\n"
        "except OSError: print('no cache')\n"
        "doctor.run_doctor(print)",
    )
    assert "no cache" in done.stdout and "no home folder" in done.stdout, done.stderr


@pytest.mark.nightly
def test_a_job_runs_without_a_home(nobody, tmp_path):
    job = "import torch; print(torch.zeros(3, device='cuda').sum().item())"
    done = nobody("-m", "phantora_ns", "--quiet", "--", sys.executable, "-c", job)
    assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("home", ["", "folder"])
def test_a_home_that_is_no_path_is_none(monkeypatch, home):
    """Caches used to go to the current folder, or to /.cache."""
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert home_folder() == NONE and NONE in cache_folder().parents
