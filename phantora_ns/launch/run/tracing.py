"""The processes that write the traces after the job, one for each CPU of this machine.

Why it exists: writing traces takes CPU time in proportion to the ranks. Like the hub, these
processes are started through `phantora-sandbox guard`, so that nothing survives us. The runner
watches them, so that a signal ends them like everything else.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from phantora_ns.launch.errors import LaunchError, say
from phantora_ns.launch.machine.installation import SANDBOX, cannot_start
from phantora_ns.launch.machine.own_python import own_command

LOOK_S = 0.05  # between two checks of the processes


class TraceWriters:
    """The processes that write the traces of `run_dir`."""

    def __init__(self, run_dir: Path, page: bool = False) -> None:
        """Starts them; for a `page` they also take excerpts of the traces. Raises LaunchError when
        that is impossible, and OSError when the folder of the traces cannot be made."""
        trace = json.loads((run_dir / "run.json").read_text())["trace"]
        folder = Path(trace["folder"])
        folder.mkdir(exist_ok=True)
        # what is in the run directory goes with it, so nobody is sent there
        self._folder = None if folder.is_relative_to(run_dir) else folder
        logs = len(list((run_dir / "trace").glob("*.log")))
        shares = min(len(os.sched_getaffinity(0)), max(1, logs))
        self._processes: list[subprocess.Popen] = []
        self._logs = logs
        try:
            for share in range(shares):
                self._processes.append(
                    subprocess.Popen(
                        [
                            SANDBOX,
                            "guard",
                            str(os.getpid()),
                            *own_command(
                                "phantora_ns.page.job" if page else "phantora_ns.trace.job",
                                str(run_dir),
                                str(share),
                                str(shares),
                            ),
                        ],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        start_new_session=True,
                    )
                )
        except OSError as error:
            self.stop()
            raise LaunchError(cannot_start("the writer of traces", error)) from error

    @property
    def busy(self) -> bool:
        """Whether any of them still writes."""
        return any(process.poll() is None for process in self._processes)

    def stop(self) -> None:
        """Kills them. Traces that are not complete are not kept."""
        for process in self._processes:
            process.kill()

    def finish(self, quiet: bool, explained: bool) -> bool:
        """Says what was written, once they have ended, unless `quiet`, and which traces are missing, unless the user
        knows why (`explained`). False when one is missing."""
        entries: list[dict] = []
        failed = False
        for process in self._processes:
            assert process.stdout is not None
            with process.stdout:
                entries += [json.loads(line) for line in process.stdout if line.endswith(b"\n")]
            failed |= process.wait() != 0
        written = [entry for entry in entries if "failed" not in entry]
        reasons: dict[str, list[str]] = {}
        for entry in entries:
            if "failed" in entry:
                reasons.setdefault(entry["failed"], []).append(entry["file"])
        where = f"; in {self._folder}" if self._folder else "; the page has no timeline of them"
        for reason, files in reasons.items() if not explained else ():
            others = f" and {len(files) - 1} more" if len(files) > 1 else ""
            say(f"no trace {files[0]}{others}: {reason}{where}")
        if failed and not explained:
            say(
                f"{self._logs - len(entries)} of {self._logs} traces were not written"
                f"{where}; the writer's message, if it had one, is above"
            )
        if not quiet and written:
            ranks = f"{len(written)} rank{'s' if len(written) > 1 else ''}"
            events = sum(entry["events"] for entry in written)
            say(
                f"traces of {ranks}, {written[0]['steps']} steps of each, {events} events; "
                f"in {self._folder}"
            )
        left_out = sum(entry["leftOutEvents"] for entry in written)
        if left_out and not quiet:
            say(
                f"warning: {left_out} events are not in the traces, because they had no final time "
                "when the run ended"
            )
        return not failed and not reasons
