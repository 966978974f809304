"""What is left of a run once it has ended: the report, and what was recorded.

Why it exists: these files are made after the job, of a failed one too, and none of them may hide
why the job failed. Rule: a failure in here is said in one line, all that have one cause together,
and decides the exit code only where the job itself ended well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phantora_ns.cures import cure_of
from phantora_ns.launch.errors import EXIT_OURS, LaunchError, say
from phantora_ns.launch.record import host_time, leaders, recorded_values
from phantora_ns.launch.record import learned_host_times as learned_times
from phantora_ns.launch.run.outcome import Verdict, signal_name
from phantora_ns.launch.run.run_request import RunRequest
from phantora_ns.launch.run.setup import job_of
from phantora_ns.launch.run.unkept import Unkept, system_error
from phantora_ns.report.ended_part import failed_text
from phantora_ns.report.host_part import will_be_measured_again
from phantora_ns.whole_file import replacing


class Results:
    """The results of one run, made from its run directory. `verdict` is the run's so far; `report`,
    `values_kept` and `problem`, the last failure in here, are filled in."""

    def __init__(self, request: RunRequest, run_dir: Path, verdict: Verdict) -> None:
        self._request = request
        self._run_dir = run_dir
        self.verdict = verdict
        self.report: dict[str, Any] | None = None
        self.values_kept = 0
        self.problem: str | None = None
        self._unkept = Unkept()

    def _refused(self, file: object, message: str, error: Exception) -> None:
        """`file` could not be written."""
        self._note(file, message, error)
        self._fail(message, "launcher")

    def _note(self, file: object, message: str, error: Exception) -> None:
        """As `_refused`, of a file that the run can do without."""
        cause = system_error(error)
        if cause is None:
            say(message)
        else:
            self._unkept.add(cause, file, message)

    def _fail(self, message: str, failed_by: str) -> None:
        self.problem = message
        if self.verdict.exit_code == 0:
            self.verdict = Verdict(EXIT_OURS, failed_by)
        self._say_how_it_ended()

    def interrupted(self, number: int) -> None:
        """A signal ended the making of the results."""
        say(f"{signal_name(number)}: ending before the report and what was recorded are kept")
        if self.verdict.exit_code == 0:
            self.verdict = Verdict(128 + number, None, ended_by=signal_name(number))
        self._say_how_it_ended()

    def _say_how_it_ended(self) -> None:
        """Puts the verdict into the report, which may have been made before the last failure."""
        if self.report is not None:
            ended = self.verdict
            self.report |= {
                "exit_code": ended.exit_code,
                "failed_by": ended.failed_by,
                "ended_by": ended.ended_by,
            }

    def keep(self, wall_s: float) -> None:
        """Makes and keeps all of them. Page and report come last: they say how the run
        ended."""
        try:
            self._keep(wall_s)
        finally:
            for line in self._unkept.lines():
                say(line)
                if self.problem is not None:
                    self.problem = line

    def _keep(self, wall_s: float) -> None:
        for make in (
            lambda: self.make_report(wall_s),
            self.keep_host_times,
            self.keep_learned_host_times,
            self.keep_recording,
            self.make_page,
        ):
            try:
                make()
            except OSError as error:  # a limit, say, while modules are imported
                where = error.filename or self._run_dir
                cure = cure_of(error, "run it again")
                message = f"cannot keep the results: {error.strerror}; {where}; {cure}"
                self._refused(where, message, error)
        self.write_report()

    def make_report(self, wall_s: float) -> None:
        """Builds the report and prints its summary."""
        from phantora_ns.report.run_report import build_report
        from phantora_ns.report.summary import summary_lines

        ended = self.verdict
        try:
            self.report = build_report(
                self._run_dir,
                exit_code=ended.exit_code,
                failed_by=ended.failed_by,
                ended_by=ended.ended_by,
                wall_s=wall_s,
            )
            self._note_refusal()
            quiet = self._request.quiet or self._request.output is not None
            for line in [] if quiet else summary_lines(self.report):
                say(line)
        except (ValueError, KeyError) as error:
            message = (
                f"cannot build the report: {error}; in {self._run_dir}; "
                "the hub ended without writing its part"
            )
            say(message)
            self._fail(message, "hub")

    def write_report(self) -> None:
        """Writes the report where the user wants it."""
        path = self._request.report
        if self.report is None or path is None:
            return
        try:
            write_report(path, self.report)
        except OSError as error:
            message = (
                f"cannot write the report: {error.strerror}; {path}; "
                f"the run ended with exit code {self.verdict.exit_code}"
            )
            self._refused(path, message, error)

    def _note_refusal(self) -> None:
        """A job that ended well fails all the same when it turned out, at its end, that it could not be
        folded."""
        assert self.report is not None
        folding = self.report.get("folding")
        if folding is None or not folding.get("refusal") or self.verdict.exit_code != 0:
            return
        self.verdict = Verdict(EXIT_OURS, "hub")
        self._say_how_it_ended()

    def make_page(self) -> None:
        """Writes the page of --html."""
        file = self._request.html
        if file is None or self.report is None:
            return
        from phantora_ns.page.run_page import write_page

        try:
            write_page(self._run_dir, self.report, file)
        except (OSError, ValueError, KeyError) as error:
            what = f"{error.strerror}; {file}" if isinstance(error, OSError) else f"{error}; {file}"
            self._refused(file, f"cannot write the page: {what}", error)
            return
        if not self._request.quiet:
            cure = "" if failed_text(self.report) else "; open it in a browser"
            say(f"page written; {file}{cure}")

    def keep_host_times(self) -> None:
        """Adds the host times that ranks recorded to the database of --record-host."""
        file = self._request.host.record
        if file is None:
            return
        try:
            host_time.keep(self._run_dir, file)
        except LaunchError as error:
            self._refused(file, str(error), error)

    def keep_learned_host_times(self) -> None:
        """Keeps what ranks measured with --host-time auto, for the next run of the job."""
        if self._request.host.mode != host_time.AUTO or self.report is None:
            return
        if self.verdict.exit_code != 0:
            return
        run = json.loads((self._run_dir / "run.json").read_text())
        try:
            again = will_be_measured_again(self.report["host_time"])
            host_time.keep_learned(self._run_dir, job_of(self._request), run, again)
        except LaunchError as error:
            self._note(learned_times.path(), str(error), error)

    def keep_recording(self) -> None:
        """Adds what a leader measured to the user's database, or its values to their file."""
        request, into = self._request, self._request.record_into
        if into is None:
            return
        from phantora_ns.kernels.database import databases
        from phantora_ns.kernels.database.schema import DatabaseError

        recording = self._run_dir / host_time.RECORDING
        try:
            if request.leading is not None and request.leading.record == leaders.VALUES:
                about = recorded_values.describe(request.command.argv, request.cwd)
                rank = request.leading.rank
                self.values_kept = recorded_values.keep(self._run_dir, into, rank, about)
            elif recording.is_file():
                databases.add(into, [recording])
        except (DatabaseError, LaunchError) as error:
            # the hub knows why its file is not whole
            why = ((self.report or {}).get("leading") or {}).get("problem") or error
            self._refused(into, f"what was recorded is not kept: {why}", error)


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Writes JSON whole or not at all, so that a reader never sees half a report. Raises
    OSError."""
    text = json.dumps(report, indent=2) + "\n"
    if path.exists() and not path.is_file():  # a pipe or a terminal
        path.write_text(text)
        return
    with replacing(path) as scratch:
        scratch.write_text(text)
