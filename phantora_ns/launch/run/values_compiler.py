"""Makes sure, before a job starts, that there is a values library for its torch.

Why it exists: a values library serves one version of torch. The one that a job lacks is compiled
here, once and before any rank runs, because ranks would wait for one another. It takes half a
minute, so it is a process of its own, which a signal can end. Rule: a job never fails because of it;
the ranks say why they have none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from phantora_ns.launch.machine import values_libraries
from phantora_ns.launch.machine.installation import SANDBOX
from phantora_ns.launch.machine.own_python import own_command
from phantora_ns.launch.machine.values_recipe import Torch, read_torch
from phantora_ns.launch.run.events import EventLoop
from phantora_ns.launch.run.outcome import Outcome


def is_needed(torch: Torch, run_dir: Path) -> bool:
    """Whether the library for `torch` is to be compiled. If there is none and it cannot be, the
    ranks are told why."""
    if values_libraries.serves(run_dir, torch):
        return False
    reason = values_libraries.obstacle(torch)
    if reason is not None:
        values_libraries.explain(run_dir, torch, reason)
    return reason is None


class ValuesCompiler:
    """A running compilation for the run in `run_dir`. It has ended when its stdout is closed."""

    def __init__(self, torch: Torch, run_dir: Path, quiet: bool) -> None:
        """Starts it. Raises OSError."""
        self._torch, self._run_dir, self._quiet = torch, run_dir, quiet
        self._start = time.monotonic()
        command = own_command(
            "phantora_ns.launch.machine.values_libraries", str(torch.folder), str(run_dir)
        )
        self._process = subprocess.Popen(
            [SANDBOX, "guard", str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.stdout = self._process.stdout
        self._say(f"phantora-ns: compiling the values library for torch {torch.version}, once ... ")

    def _say(self, text: str) -> None:
        if not self._quiet:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
                sys.stderr.flush()

    def finish(self) -> None:
        """After its end: gives the run the library, or tells the ranks why there is none."""
        said = self.stdout.read().decode(errors="replace").strip("\n")
        self.stdout.close()
        if self._process.wait() == 0:
            self._say(f"{time.monotonic() - self._start:.0f} s{said}\n")
            values_libraries.provide(self._run_dir)
            return
        self._say("failed\n")
        reason = said or "its compilation was ended"
        values_libraries.explain(self._run_dir, self._torch, reason)

    def stop(self) -> None:
        """Ends it, and the compiler with it."""
        self._say("stopped\n")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.stdout.close()


def compile_if_needed(
    folder: Path | None, run_dir: Path, quiet: bool, loop: EventLoop, outcome: Outcome
) -> None:
    """Compiles the values library for the torch in `folder` if there is none. A failure of the run, such
    as a signal, ends it."""
    torch = folder and read_torch(folder)
    if not torch or not is_needed(torch, run_dir):
        return
    compiler = ValuesCompiler(torch, run_dir, quiet)
    running = True

    def ended() -> None:
        nonlocal running
        running = False

    loop.watch(compiler.stdout, ended)
    while running and outcome.failure is None:
        loop.step()
    loop.unwatch(compiler.stdout)
    if running:
        compiler.stop()
    else:
        compiler.finish()
