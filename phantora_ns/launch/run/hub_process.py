"""The hub as a process of its own.

Why it exists: a busy hub must not delay a Ctrl-C, and its end must be an event like others. It is
started through `phantora-sandbox guard`, so that the kernel kills it when we die, of kill -9 too.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine.installation import SANDBOX, cannot_start
from phantora_ns.launch.machine.own_python import own_command
from phantora_ns.launch.run.outcome import ended_how

LOOK_S = 0.05  # between two checks whether it has ended


def hub_command(run_dir: Path) -> list[str]:
    """The command that starts a hub on `run_dir`."""
    return own_command("phantora_ns.hub", str(run_dir))


class HubProcess:
    """A running hub on `run_dir`. It is ready when its stdout says "ready", and has ended when its
    stdout is closed."""

    def __init__(self, run_dir: Path) -> None:
        """Starts it. Raises LaunchError when that is impossible."""
        env = dict(os.environ)
        # Its matrices are small: more threads only wait for one another, and round differently.
        env["OPENBLAS_NUM_THREADS"] = "1"
        try:
            self.process = subprocess.Popen(
                [SANDBOX, "guard", str(os.getpid()), *hub_command(run_dir)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(cannot_start("the hub", error), "hub") from error
        assert self.process.stdout is not None
        self.stdout = self.process.stdout

    def describe_end(self) -> str:
        """How the hub ended, in words. Waits for its end."""
        return ended_how(self.process.wait())

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def stop(self, timeout_s: float, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Asks it to write hub.json and end; False when it had to be killed after `timeout_s`, or
        because `given_up`, which is called meanwhile, was true."""
        self.process.terminate()
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(LOOK_S)
                    return True
                if given_up() or time.monotonic() >= deadline:
                    self.process.kill()
                    self.process.wait()
                    return False
        finally:
            self.stdout.close()
