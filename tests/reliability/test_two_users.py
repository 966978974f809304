"""Why it exists: two users of one machine share /tmp, /dev/shm and the network namespace that they start from, and
must not meet there."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from tests.launch.conftest import unprivileged
from tests.leftovers import MARK, assert_nothing_left, interfaces
from tests.reliability.runs import ROOT, cheap, repeating, shared_memory

STEPS = 100


@pytest.fixture
def folder():
    """A short path that both users share as they do /tmp."""
    path = Path(tempfile.mkdtemp(prefix="pu-", dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a run of another user")
def test_two_users_run_a_job_at_once(folder):
    before, mark = (interfaces(), shared_memory()), uuid.uuid4().hex
    runs = []
    for name, owner in (("root", 0), ("nobody", 65534)):
        home = folder / name
        for path in (home, home / "reports"):
            path.mkdir()
            os.chown(path, owner, owner)
        command = cheap(1, STEPS).started_by(home)
        environment = {
            **os.environ,
            MARK: mark,
            "HOME": str(home),
            "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
            environment.pop(name, None)
        runs.append(
            subprocess.Popen(
                unprivileged(command, folder) if owner else command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    mine, other = (sorted(out.splitlines()) for out, _ in outputs)
    assert mine == other and len(mine) == 2
    reports = [
        repeating(json.loads((folder / name / "reports/report.json").read_text()))
        for name in ("root", "nobody")
    ]
    assert reports[0] == reports[1]
    assert_nothing_left(mark, folder, before[0])
    assert shared_memory() == before[1]
