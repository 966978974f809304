"""Run directories: private, short-lived, swept after their owner's death; no other folder is ever
deleted."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phantora_ns.launch.machine.installation import SANDBOX
from phantora_ns.launch.run import rundir


@pytest.fixture
def base(monkeypatch, tmp_path):
    """The folder in which run directories are made."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def make_old(path):
    os.utime(path, (time.time() - 3600,) * 2)


def forget(base):
    """A run directory whose owner was killed."""
    script = (
        "import os; from phantora_ns.launch.run import rundir\n"
        "print(rundir.RunDir().path, flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": str(base)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == -9, done.stderr
    return base / os.path.basename(done.stdout.strip())


def test_a_directory_whose_owner_died_is_swept(base):
    path = forget(base)
    assert (path / "ranks").is_dir()
    rundir.RunDir().remove()
    assert not path.exists()


def test_a_directory_in_use_is_not_swept(base):
    one = rundir.RunDir()
    rundir.RunDir().remove()
    assert (one.path / "ranks").is_dir()
    one.remove()
    assert not one.path.exists()


def test_a_users_folder_with_our_prefix_is_never_touched(base):
    """An unpacked source archive, even one whose name has the shape of ours."""
    folders = [base / f"phantora-ns-{name}" for name in ("main", "0.2.0", "overview", "abcdefgh")]
    for path in folders:
        path.mkdir(mode=0o700)
        (path / "README.md").write_text("mine")
    (folders[-1] / "owner.lock").touch()  # a lock without the marker is not ours
    for path in folders:
        make_old(path)
    rundir.RunDir().remove()
    for path in folders:
        assert (path / "README.md").read_text() == "mine"


@pytest.mark.parametrize("change", ["mode", "name", "link", "lock_is_link"])
def test_a_marker_alone_does_not_suffice(base, change):
    path = forget(base)
    if change == "mode":
        path.chmod(0o755)
    elif change == "name":
        path = path.rename(base / "phantora-ns-copy-of-run")
    elif change == "link":
        target = path.rename(base / "elsewhere")
        path.symlink_to(target)
    else:
        (path / "owner.lock").rename(base / "lock")
        (path / "owner.lock").symlink_to(base / "lock")
    make_old(path)
    rundir.RunDir().remove()
    assert (path / "ranks").is_dir()


def test_an_owner_that_died_before_it_wrote_the_marker(base):
    """It left an empty directory. One that is new may be another run's, which is about to lock."""
    empty, new = base / "phantora-ns-aaaaaaaa", base / "phantora-ns-bbbbbbbb"
    for path in (empty, new):
        path.mkdir(mode=0o700)
    make_old(empty)
    rundir.RunDir().remove()
    assert not empty.exists() and new.exists()


def test_a_directory_that_goes_while_it_is_looked_at_is_passed_over(base, monkeypatch):
    """Another run has ended between the list of the folder and the look at its entry."""
    glob = Path.glob
    gone = base / "phantora-ns-abcdefgh"
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [gone, *glob(path, pattern)])
    rundir.sweep(base)
    assert not gone.exists()


def test_a_sweep_between_making_and_locking_costs_another_attempt_only(base, monkeypatch):
    made = rundir.tempfile.mkdtemp
    taken = []

    def swept(**options):
        path = made(**options)
        if not taken:
            os.rmdir(path)
            taken.append(path)
        return path

    monkeypatch.setattr(rundir.tempfile, "mkdtemp", swept)
    run_dir = rundir.RunDir()
    assert taken and run_dir.path.is_dir() and str(run_dir.path) != taken[0]
    with open(run_dir.path / "owner.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    run_dir.remove()


def test_a_run_directory_is_private_short_and_gone_afterwards(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_dir = rundir.RunDir()
    assert run_dir.path.parent == tmp_path and run_dir.path.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(run_dir.path / "hub.sock")) <= 107
    run_dir.remove()
    assert not run_dir.path.exists()


def test_a_kept_directory_survives_the_next_run(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_dir = rundir.RunDir()
    run_dir.keep()
    rundir.RunDir().remove()
    assert (run_dir.path / "ranks").is_dir()


def test_a_folder_too_deep_for_a_socket_is_not_used(monkeypatch, tmp_path):
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert rundir.base_folders()[0] == tmp_path


WATCHES = "while [ -e {}/here ]; do :; done; echo 'my file is gone'; sleep 60"


def test_the_sweeper_ends_the_processes_of_a_run_before_its_files(tmp_path):
    """Else they complain of missing files, in the terminal of a launcher that was killed."""
    folders = [tmp_path / name for name in ("run", "run2")]
    watchers = []
    for folder in folders:
        folder.mkdir()
        (folder / "here").touch()
        watchers.append(
            subprocess.Popen(
                ["sh", "-c", WATCHES.format(folder)],
                env={**os.environ, "PHANTORA_RUN_DIR": str(folder)},
                stdout=subprocess.PIPE,
            )
        )
    try:
        subprocess.run([SANDBOX, "sweep", folders[0]], stdin=subprocess.DEVNULL, check=True)
        assert not folders[0].exists() and folders[1].exists()
        assert watchers[0].wait(10) == -signal.SIGKILL and watchers[0].stdout.read() == b""
        assert watchers[1].poll() is None, "another run's"
    finally:
        for watcher in watchers:
            watcher.kill()
            watcher.communicate()
