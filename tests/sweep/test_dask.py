"""Why it exists: `--engine dask` gives what the local engine gives, whatever happens to workers and to the
sweep. A real cluster on this machine: a scheduler and two workers, each a process of its own."""

import json
import os
import signal
import subprocess
import sys
import uuid

import pytest

from tests.leftovers import MARK, marked_processes, wait_until
from tests.sweep.test_sweep import FILE, JOB, ROOT, points, simulated, sweep  # noqa: F401

pytest.importorskip("distributed", reason="needs pip install 'phantora-ns[dask]'")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
LONG = 400.0  # a cluster on a busy machine
GRID = FILE + "[grid]\n--rows = [16, 32, 64, 128]\n"


class Cluster:
    """A scheduler and workers, one run at a time on each."""

    def __init__(self, folder):
        self.folder, self.marks, self.workers = folder, [], []
        file = folder / "scheduler.json"
        words = [
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--scheduler-file",
            str(file),
            "--no-dashboard",
        ]
        self.scheduler = self._start("dask_scheduler", words)
        wait_until(lambda: file.exists() and file.read_text(), timeout=120)
        self.address = json.loads(file.read_text())["address"]

    def _start(self, module, words):
        mark = uuid.uuid4().hex
        environment = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)}
        self.marks.append(mark)
        with open(self.folder / f"{module}-{len(self.marks)}.log", "w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{module}", *words],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def add_worker(self):
        folder = self.folder / f"worker-{len(self.workers)}"
        words = [self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
        self.workers.append(self._start("dask_worker", [*words, "--local-directory", str(folder)]))

    def jobs_of(self, number):
        """Processes of jobs on a worker."""
        return [
            pid
            for pid, words in marked_processes(self.marks[1 + number]).items()
            if str(JOB) in words
        ]

    def close(self):
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()
        for mark in self.marks:
            wait_until(lambda: not marked_processes(mark), lambda: marked_processes(mark))  # noqa: B023


@pytest.fixture
def cluster(tmp_path, built_library):
    folder = tmp_path / "cluster"
    folder.mkdir()
    made = Cluster(folder)
    yield made
    made.close()


def on(cluster, workers=2):
    for _ in range(workers):
        cluster.add_worker()
    return ["--engine", "dask", "--scheduler", cluster.address]


def compared(found):
    """Without the folder's name."""
    return {
        name: {k: v for k, v in point.items() if k != "folder"} for name, point in found.items()
    }


def test_a_cluster_says_what_one_machine_says(sweep, cluster, tmp_path):  # noqa: F811
    """OOM and failure too. A worker is killed in the middle: what it ran is run elsewhere."""
    text = (
        GRID + "[[point]]\n--rows = 1\n--weights = 131072\n[[point]]\n--rows = 1\n--fail = true\n"
    )
    first = sweep(text, *on(cluster))
    wait_until(lambda: cluster.jobs_of(0) and cluster.jobs_of(1), timeout=120)
    cluster.workers[1].kill()
    cluster.workers[1].wait()
    wait_until(lambda: not cluster.jobs_of(1), timeout=60)
    code, out, err = first.end(LONG)
    assert code == 0, err
    assert "6 points: 4 ok, 1 out of memory, 1 failed" in out and "6 of 6: " in err
    over = simulated(tmp_path)
    for point in points(tmp_path).values():
        report = tmp_path / point["folder"] / "report.json"
        assert json.loads(report.read_text())["exit_code"] == point["exit_code"]
        failed = "ValueError" in (tmp_path / point["folder"] / "log.txt").read_text()
        assert failed == (point["state"] == "failed")
    # the local engine uses these results, and makes the same ones anew
    code, _, err = sweep(text).end(LONG)
    assert code == 0 and "6 of 6 points have a result already" in err
    code, _, err = sweep(text, "--again").end(LONG)
    assert code == 0, err
    assert compared(simulated(tmp_path)) == compared(over)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_ended_goes_on(sweep, cluster, tmp_path, number):  # noqa: F811
    first = sweep(GRID, *on(cluster))
    first.line("1 of 4: ")
    wait_until(lambda: cluster.jobs_of(0) or cluster.jobs_of(1), timeout=120)
    first.process.send_signal(number)
    code, out, err = first.end(LONG)
    assert code == (130 if number == signal.SIGINT else -9)
    assert "Traceback" not in err
    wait_until(lambda: not cluster.jobs_of(0) and not cluster.jobs_of(1), timeout=60)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("points/*/result.json")}
    assert 1 <= len(kept) < 4
    code, _, err = sweep(GRID, *on(cluster, workers=0)).end(LONG)
    assert code == 0 and f"{len(kept)} of 4 points have a result already" in err
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert len(simulated(tmp_path)) == 4


def test_a_scheduler_that_goes_ends_the_sweep(sweep, cluster):  # noqa: F811
    first = sweep(GRID, *on(cluster))
    first.line("1 of 4: ")
    cluster.scheduler.kill()
    code, _, err = first.end(LONG)
    assert (
        code == 70 and "the connection to the scheduler is lost" in err and "Traceback" not in err
    )


def test_a_scheduler_that_is_not_there(sweep):  # noqa: F811
    code, out, err = sweep(GRID, "--engine", "dask", "--scheduler", "tcp://127.0.0.1:1").end(LONG)
    assert (code, out, err.count("\n")) == (2, "", 1) and "no dask scheduler answers" in err


def test_workers_whose_files_differ_are_left_out(sweep, cluster, tmp_path):  # noqa: F811
    job = tmp_path / "train.py"
    job.write_text(JOB.read_text())
    started = sweep(GRID.replace(str(JOB), str(job)), *on(cluster, workers=0))
    started.line("there is no worker yet")
    job.write_text(JOB.read_text() + "# changed\n")
    on(cluster)
    code, _, err = started.end(LONG)
    assert code == 70, err
    assert f"a worker is left out: it has another {job}; " in err and "no worker can run" in err
