"""A running point: a process of the command line, what it uses, and its result when it has ended.

Why it exists: a point is run as a user would run it, so its result is that of the command. It is started
through `phantora-sandbox guard`, so that it ends when the sweep is killed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from phantora_ns.hub.deaths import memory_kills
from phantora_ns.launch.machine.installation import SANDBOX
from phantora_ns.launch.machine.own_python import own_command
from phantora_ns.launch.run.events import SIGNALS
from phantora_ns.launch.run.outcome import signal_name
from phantora_ns.report.ended_part import ended_text
from phantora_ns.report.fit import refusal_text, refusals_of
from phantora_ns.sweep.admission import Measured
from phantora_ns.sweep.judge import FAILED, OK, OUT_OF_MEMORY
from phantora_ns.sweep.point import Point, child_environment
from phantora_ns.sweep.results import LOG, REPORT

_CAUSE = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$")
_OURS = "phantora-ns: "
LOOK_SHARE = 0.02
"""Of one core, for looking at the memory of a run: the kernel walks all pages of all its processes."""
GUESSED = 0.01
"""Above this share of GPU time, guessed kernel times are said (report/summary.py)."""


class PointRun:
    """The run of `point` in `folder`. It has ended when `fileno` can be read."""

    def __init__(self, point: Point, folder: Path) -> None:
        """Starts it. Raises OSError."""
        self.point, self._folder = point, folder
        self.alone = True
        """Whether no other run was beside it; its engine says when one comes."""
        self._now_bytes = self._peak_bytes = 0
        self._start = self._next_look = time.monotonic()
        self._memory_kills = memory_kills()
        words = ["--quiet", "--report", str(folder / REPORT), *point.options, "--", *point.command]
        with open(folder / LOG, "wb") as log:
            self._process = subprocess.Popen(
                [str(SANDBOX), "guard", str(os.getpid()), *own_command("phantora_ns.cli", *words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(point),
                cwd=point.cwd,
                start_new_session=True,
            )
        self._descriptor = os.pidfd_open(self._process.pid)

    def fileno(self) -> int:
        """A descriptor that is readable when the run has ended."""
        return self._descriptor

    @property
    def wall_s(self) -> float:
        """Real seconds since the start."""
        return time.monotonic() - self._start

    def send_signal(self, number: int) -> None:
        """To the command, which ends its job."""
        os.kill(self._process.pid, number)

    def look(self) -> None:
        """Takes note of the memory that its processes hold, unless the last look was too short ago."""
        if time.monotonic() < self._next_look:
            return
        total, begin = 0, time.thread_time()
        try:
            own = psutil.Process(self._process.pid)
            for process in [own, *own.children(recursive=True)]:
                total += _memory(process)
        except psutil.Error:  # it has ended
            return
        self._next_look = time.monotonic() + (time.thread_time() - begin) / LOOK_SHARE
        self._now_bytes = total
        self._peak_bytes = max(self._peak_bytes, total)

    @property
    def bytes(self) -> int:
        """What it held when it was last looked at."""
        return self._now_bytes

    def wait(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        return bool(select.select([self._descriptor], [], [], seconds)[0])

    def finish(self) -> dict[str, Any]:
        """The result, once it has ended."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        os.close(self._descriptor)
        wall_s = max(self.wall_s, 1e-3)
        cores = (usage.ru_utime + usage.ru_stime) / wall_s
        measured = Measured(self.point.ranks, cores, self._peak_bytes, self.alone)
        result = self._result(self._process.returncode)
        return result | {
            "wall_s": round(wall_s, 3),
            "machine": platform.node(),
            # any process of the machine, since the run began
            "memory_killed": memory_kills() > self._memory_kills,
            "measured": {name: getattr(measured, name) for name in Measured.__slots__},
        }

    def _result(self, code: int) -> dict[str, Any]:
        try:
            report = json.loads((self._folder / REPORT).read_text())
        except (OSError, ValueError):
            return result_of(None, code) | {"why": self._why()}
        result = result_of(report, code)
        return result if result["why"] or not code else result | {"why": self._why()}

    def _why(self) -> str:
        """The cause in the log: the job's first error, else the last line of ours."""
        cause, ours = None, None
        with open(self._folder / LOG, errors="replace") as log:
            for line in log:
                found = _CAUSE.match(line.rstrip("\n"))
                cause = cause or (found and found[1])
                ours = line.strip().removeprefix(_OURS) if line.startswith(_OURS) else ours
        return cause or ours or f"see {LOG} in its folder"


def _memory(process: psutil.Process) -> int:
    """What one process holds, its share of what it shares with others."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def result_of(report: Mapping[str, Any] | None, code: int) -> dict[str, Any]:
    """What a report says of a point. `code`: the command's exit code."""
    step = (report or {}).get("step") or {}
    band = step.get("band") or {}
    ranks = [rank for rank in (report or {}).get("ranks", ()) if rank["rank"] is not None]
    peaks = [rank["peak_driver_bytes"] for rank in ranks if rank["peak_driver_bytes"]]
    state, why = OK, None
    if report is not None and report["out_of_memory"]:
        state, why = OUT_OF_MEMORY, refusal_text(refusals_of(report))
    elif report is not None and report["ended_by"]:
        state, why = FAILED, ended_text(report)
    elif report is None or code:
        state = FAILED
    return {
        "state": state,
        "step_ns": step.get("mean_ns"),
        "low_ns": band.get("low_ns"),
        "high_ns": band.get("high_ns"),
        "peak_bytes": max(peaks, default=None),
        "exit_code": code,
        "ended_by": report["ended_by"] if report is not None else _signal_of(code),
        "why": why,
        "doubts": _doubts(report, step) if report is not None else [],
    }


def _signal_of(code: int) -> str | None:
    """The signal that ended a command before it had written its report; None when none did."""
    if code < 0:
        return signal_name(-code)
    return signal_name(code - 128) if code - 128 in SIGNALS else None


def _doubts(report: Mapping[str, Any], step: Mapping[str, Any]) -> list[str]:
    """What to check before the numbers are trusted; the report has more."""
    guessed = report["kernel_time_share"].get("guess", 0.0)
    found = [f"no band: {step['no_band']}"] if step.get("no_band") else []
    found += [f"{guessed:.0%} of GPU time is guessed"] if guessed > GUESSED else []
    for name, what in (("unsupported_calls", "calls not supported"), ("warnings", "warnings")):
        found += [f"{len(report[name])} {what}"] if report[name] else []
    return found
