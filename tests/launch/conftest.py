"""Why it exists: starts the launcher as a user would, and then proves that nothing of it is left on
the machine."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from tests.leftovers import MARK, assert_nothing_left, interfaces, marked_processes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class Launch:
    """A running launcher whose processes, files and interfaces can be told from all others."""

    def __init__(
        self, arguments, *, as_nobody=False, env=None, folder=None, within=None, **options
    ):
        self.mark = uuid.uuid4().hex
        # short, and open to other users
        self.folder = folder or Path(tempfile.mkdtemp(prefix="pl-", dir="/tmp"))
        self.folder.chmod(0o777)
        self.interfaces = interfaces()
        environment = {
            **os.environ,
            **(env or {}),
            MARK: self.mark,
            "TMPDIR": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        environment.pop("XDG_RUNTIME_DIR", None)
        command = [sys.executable, str(HERE / "drive.py"), *map(str, arguments)]
        if as_nobody:
            command = unprivileged(command, self.folder)
        if within is not None:
            command = within(command)
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        self.process = subprocess.Popen(
            command,
            cwd=options.pop("cwd", ROOT),
            env=environment,
            start_new_session=True,
            text=True,
            **options,
        )

    def finish(self, timeout=60):
        """Waits for the end; returns (exit code, stdout, stderr) and asserts that nothing is
        left."""
        out, err = self.process.communicate(timeout=timeout)
        self.assert_nothing_left()
        return self.process.returncode, out, err

    def line(self):
        """The next line of the job's stdout."""
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=30)
        return line.strip()

    def processes(self):
        """{pid: command line} of everything that this launch has started and that lives."""
        return marked_processes(self.mark)

    def find(self, text):
        """The pid of the only process whose command line contains `text`."""
        pids = [pid for pid, command in self.processes().items() if text in command]
        assert len(pids) == 1, (text, self.processes())
        return pids[0]

    def assert_nothing_left(self, run_dir=True):
        """No process, mount, interface, or run directory of ours."""
        assert_nothing_left(self.mark, self.folder, self.interfaces, run_dir)

    def clean_up(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with self.process:  # waits, and closes its pipes
            pass
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def unprivileged(command, folder):
    """`command` run by an ordinary user without capabilities. As root: as uid 65534, with what is
    needed made readable.

    The interpreter may lie below a home that others may not enter: then that home is covered, in a
    mount namespace of the test's own, by an empty one that shows just the interpreter.
    """
    if os.geteuid():
        return command
    if not all(shutil.which(tool) for tool in ("unshare", "setpriv", "mount")):
        pytest.skip("needs unshare, setpriv and mount to become another user")
    script = ["set -e", "mount --make-rprivate /"]
    for number, tree in enumerate({Path(sys.base_prefix).resolve(), ROOT}):
        hidden = [path for path in reversed(tree.parents) if not path.stat().st_mode & 0o001]
        if hidden:
            keep, tree, cover = (
                shlex.quote(str(path)) for path in (folder / f"keep{number}", tree, hidden[0])
            )
            script += [
                f"mkdir {keep}",
                f"mount --bind {tree} {keep}",
                f"mount -t tmpfs -o mode=0755 cover {cover}",
                f"mkdir -p {tree}",
                f"mount --bind {keep} {tree}",
                f"umount {keep}",
                f"rmdir {keep}",
            ]
    script.append(
        'exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --no-new-privs "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", "\n".join(script), "sh", *command]


@pytest.fixture
def launch():
    """Starts launches; whatever a failing test leaves is removed."""
    started = []

    def start(*arguments, **options):
        started.append(Launch(arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.clean_up()


@pytest.fixture
def sandbox_binary():
    """phantora-sandbox; fails, rather than skips, when `make build` has not been run."""
    path = ROOT / "phantora_ns" / "lib" / "phantora-sandbox"
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make build`")
    return path
