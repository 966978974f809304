"""RUN_DIR, the folder of the files that one run shares.

Why it exists: the folder must not outlive its run, however the run ends. Its owner holds a lock
(flock) on RUN_DIR/owner.lock for its life, so that a later run can tell a forgotten directory from
one in use without trusting process numbers. The content of that file marks the directory as ours.
Rule: a name never proves that a folder may be deleted. A sweep deletes only what has the marker,
the owner, the mode and the name of a run directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from phantora_ns.cures import cure_of
from phantora_ns.hub.deaths import ERROR
from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine.installation import SANDBOX
from phantora_ns.protocol import RANK_STATS_FILE

_PREFIX = "phantora-ns-"
_NAME = re.compile(_PREFIX + "[a-z0-9_]{8}")  # what tempfile.mkdtemp makes of the prefix
_LOCK = "owner.lock"
_ERROR_MOST = 200  # characters of it that are said
_MARKER = b"phantora-ns run directory: deleted by a later run once its owner has died\n"
_SOCKET_PATH_MAX = 107  # sizeof sockaddr_un.sun_path less the final zero (unix(7))
_SPLITS = re.compile(r"[\s:;$]")  # what the loader takes apart, or replaces, in its lists of paths
_UNLOCKED_GRACE_S = 60
"""A younger directory without a lock file may be one that another run is making."""


def _is_text(folder: Path) -> bool:
    """Whether run.json and the hub's address can name the folder: not every name is UTF-8."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        return False
    return True


def _usable(folder: Path) -> bool:
    try:
        status = folder.stat()
    except OSError:
        return False
    longest = len(os.fsencode(folder)) + len(f"/{_PREFIX}12345678/hub.sock")
    # Nodes have a /dev/shm of their own, which hides this one.
    in_shm = folder == Path("/dev/shm") or Path("/dev/shm") in folder.parents
    return (
        stat.S_ISDIR(status.st_mode)
        and os.access(folder, os.W_OK | os.X_OK)
        and longest <= _SOCKET_PATH_MAX
        and not _SPLITS.search(str(folder))
        and not in_shm
        and _is_text(folder)
    )


def base_folders() -> list[Path]:
    """Where run directories may lie, best first. Raises LaunchError when there is no such place."""
    candidates = []
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if (
        runtime
        and os.path.isabs(runtime)
        and _usable(Path(runtime))
        and os.stat(runtime).st_uid == os.geteuid()
    ):
        candidates.append(Path(runtime))
    candidates += [
        Path(folder).resolve()
        for folder in (tempfile.gettempdir(), "/tmp")
        if _usable(Path(folder).resolve())
    ]
    if not candidates:
        raise LaunchError(
            f"no folder for the run's files; {runtime or tempfile.gettempdir()} and /tmp; set XDG_RUNTIME_DIR to a "
            "writable folder with a short path in UTF-8 without spaces and colons, outside /dev/shm"
        )
    return list(dict.fromkeys(candidates))


class RunDir:
    """A fresh directory of mode 0700 that is ours until `remove`."""

    def __init__(self) -> None:
        """Sweeps forgotten directories, then makes a new one. Raises LaunchError when that is
        impossible."""
        self._sweeper: subprocess.Popen[bytes] | None = None
        self._lock = -1
        folders = base_folders()
        for folder in folders:
            sweep(folder)
        try:
            while not self._claim(folders[0]):
                pass
        except OSError as error:
            cure = cure_of(
                error, f"free some space in {folders[0]}, or set XDG_RUNTIME_DIR to another folder"
            )
            raise LaunchError(
                f"cannot make the run directory: {error.strerror}; in {folders[0]}; {cure}"
            ) from error

    def _claim(self, folder: Path) -> bool:
        """One attempt; False when another run's sweep took the new directory for a forgotten one
        before it was locked. Raises OSError; then nothing of it is left."""
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        try:
            return self._take()
        except OSError:  # a full disk, say; without the marker no sweep would take it
            self.remove()
            raise

    def _take(self) -> bool:
        lock = self.path / _LOCK
        try:
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return False
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, _MARKER)
        if not lock.exists():
            self._let_go()
            return False
        (self.path / RANK_STATS_FILE).mkdir()
        return True

    def delete_when_we_die(self) -> None:
        """From now on the directory is deleted when this process ends, even by kill -9. Raises
        LaunchError."""
        try:
            self._sweeper = subprocess.Popen(
                [SANDBOX, "sweep", self.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(
                f"cannot start {SANDBOX}: {error.strerror}; on this machine; "
                f"{cure_of(error, 'run make build')}"
            ) from error

    def remove(self) -> None:
        """Deletes the directory; nothing in it is needed any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._let_go()

    def _let_go(self) -> None:
        if self._sweeper is not None:
            with self._sweeper:  # closes its standard input, and waits
                pass
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def keep(self) -> None:
        """Leaves the directory to the user, under a name that no sweep deletes. `path` becomes that
        name."""
        kept = self.path.with_name("kept-" + self.path.name)
        self.path.rename(kept)
        self.path = kept
        self._let_go()


def about_error(path: Path) -> str:
    """What to add to the message of a job that failed: the first error of a rank, in one line; nothing when none
    told any."""
    try:
        text = (path / ERROR).read_text(errors="replace")
    except OSError:
        return ""
    return "; " + (text if len(text) <= _ERROR_MOST else text[:_ERROR_MOST] + "...")


def sweep(folder: Path) -> None:
    """Deletes this user's run directories whose owner has died, and nothing else."""
    for path in folder.glob(f"{_PREFIX}*"):
        try:
            status = path.lstat()
        except OSError:  # the run that it belonged to has just ended
            continue
        if (
            not _NAME.fullmatch(path.name)
            or not stat.S_ISDIR(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o777 != 0o700
        ):
            continue
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            # Its owner may have died before it wrote the marker: then the directory is empty.
            # Without the marker nothing but an empty directory is deleted.
            if time.time() - status.st_mtime > _UNLOCKED_GRACE_S:
                with contextlib.suppress(OSError):
                    path.rmdir()
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.pread(lock, len(_MARKER) + 1, 0) == _MARKER:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # its owner lives, or this is no file of ours
        finally:
            os.close(lock)
