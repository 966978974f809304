"""Runs one job from a checked request to its exit code, and leaves nothing behind, whatever happens.

Why it exists: a signal, the hub's end, a failing node or a deadline may come at any moment, and the
first of them decides how the run ends. `outcome` decides what an event means; `sandbox` and
`hub_process` act. The order is: run directory, hub, sandbox; and backwards at the end.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from phantora_ns.config import ConfigError
from phantora_ns.cures import cure_of
from phantora_ns.hub.deaths import ENDS, memory_kills
from phantora_ns.launch.errors import EXIT_OURS, LaunchError, say
from phantora_ns.launch.machine.gpus import GpuLock, RealGpu
from phantora_ns.launch.machine.sandbox import Message, Sandbox
from phantora_ns.launch.record.host_speed import EVERY_S, HostSpeed
from phantora_ns.launch.record.leaders import Leading
from phantora_ns.launch.run.events import EventLoop, Interrupted
from phantora_ns.launch.run.hub_process import HubProcess
from phantora_ns.launch.run.outcome import Outcome, Verdict, ended_how
from phantora_ns.launch.run.progress import INTERVAL_S, Progress
from phantora_ns.launch.run.results import Results
from phantora_ns.launch.run.run_request import RunRequest
from phantora_ns.launch.run.rundir import RunDir, about_error
from phantora_ns.launch.run import step_hold
from phantora_ns.launch.run.setup import Prepared, lay_out, prepare, sandbox_spec
from phantora_ns.launch.run.step_hold import Seen, StepHold
from phantora_ns.launch.run.tracing import LOOK_S, TraceWriters
from phantora_ns.launch.run.values_compiler import compile_if_needed

HUB_START_S = 60.0  # imports on a busy machine; only a hub that hangs takes longer
OTHERS_GRACE_S = 1.0  # after one node failed, for the others to fail by themselves and say why
TERM_GRACE_S = 2.0  # from SIGTERM to SIGKILL
HUB_STOP_S = 60.0  # to write hub.json and the traces' times, on a busy machine
HUB_STOP_HASTY_S = 1.5  # after a failure: the whole end has to fit 5 s
SANDBOX_STOP_S = 1.0
GPU_POLL_S = 0.5  # between attempts to get the GPU that another run leads on


class Runner:
    """One run. `run()` may be called once."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._outcome = Outcome(request.shape.nodes, memory_kills())
        self._loop = EventLoop()
        self._run_dir: RunDir | None = None
        self._hub: HubProcess | None = None
        self._hub_ready = False
        self._sandbox: Sandbox | None = None
        self._progress: Progress | None = None
        self._start = time.monotonic()
        self._gpu: RealGpu | None = None
        self._gpu_lock: GpuLock | None = None
        self._hold: StepHold | None = None
        self._speed: HostSpeed | None = None
        self.values_kept = 0
        """How many values of a leader's GPU this run has recorded."""
        self.report: dict[str, Any] | None = None
        """The report of the run, once it has ended; None when it could not be built."""
        self.message: str | None = None
        """What was said of a failure; None when nothing was."""
        self.failed_by: str | None = None
        """As in the report."""
        self.ended_by: str | None = None
        """As in the report."""

    # ---- from start to end ----

    def run(self) -> int:
        """Runs the job; returns the exit code for the shell. Says at most one message for a
        failure."""
        with self._loop.signals(self._on_signal):
            try:
                self._start_everything()
                while self._sandbox is not None and self._outcome.nodes_left:
                    self._loop.step()
            except LaunchError as error:
                self._outcome.fail(Verdict(EXIT_OURS, error.failed_by, str(error)))
            except Interrupted as error:
                self._outcome.interrupted(error.number)
            except ConfigError as error:  # a file that could be read when the request was checked
                self._outcome.fail(Verdict(EXIT_OURS, "launcher", str(error)))
            except OSError as error:
                what = error.strerror or error
                where = (
                    error.filename
                    or f"in {self._run_dir.path if self._run_dir else 'the launcher'}"
                )
                message = f"{what}; {where}; {cure_of(error, 'see phantora-ns doctor')}"
                self._outcome.fail(Verdict(EXIT_OURS, "launcher", message))
            finally:
                verdict = self._end()
        self.failed_by, self.ended_by = verdict.failed_by, verdict.ended_by
        return verdict.exit_code

    def _start_everything(self) -> None:
        request = self._request
        if request.leading is not None and not self._take_gpu(request.leading):
            return
        self._run_dir = RunDir()
        if not request.keep_run_dir:
            self._run_dir.delete_when_we_die()
        path = self._run_dir.path
        lay_out(path)
        compile_if_needed(request.torch, path, request.quiet, self._loop, self._outcome)
        if self._outcome.failure is not None:
            return
        with self._loop.interruptible():
            prepared = prepare(request, path, self._gpu)
        if prepared.host.run.get("host_time_measures"):
            self._speed = HostSpeed(path)
            self._look_at_speed()
        self._progress = Progress(path, request.running, not request.quiet, request.progress)
        self._hub = HubProcess(path)
        self._loop.watch(self._hub.stdout, self._on_hub_output)
        self._loop.after("hub start", HUB_START_S, self._hub_late)
        while not self._hub_ready and self._outcome.failure is None:
            self._loop.step()
        if self._outcome.failure is None:
            self._start_nodes(prepared)

    def _take_gpu(self, leading: Leading) -> bool:
        """Waits until no other run leads on one of our GPUs; False when the user ends that."""
        self._gpu_lock = GpuLock(leading.candidates)
        self._gpu = self._gpu_lock.take()
        if self._gpu is None:
            say(
                "waiting for another run's leader to end; "
                f"on this machine's {leading.candidates[0].name}; Ctrl-C gives up"
            )
        while self._gpu is None and self._outcome.failure is None:
            self._loop.after("gpu", GPU_POLL_S, lambda: None)
            self._loop.step()
            self._gpu = self._gpu_lock.take()
        if self._gpu is not None and self._gpu_lock.remark is not None:
            say(
                "warning: other users' leaders are not waited for, and may disturb what this one "
                f"measures: {self._gpu_lock.remark}; ask its owner to remove it, or use "
                "--leaders none"
            )
        return self._outcome.failure is None

    def _start_nodes(self, prepared: Prepared) -> None:
        request = self._request
        if request.hold is not None:
            self._hold = StepHold(prepared.path, request.running, request.hold)
            self._loop.after("hold", step_hold.LOOK_S, self._look_at_steps)
        spec = sandbox_spec(request, prepared, self._gpu)
        terminal = self._progress.terminal if self._progress is not None else None
        if request.output is not None:
            self._sandbox = Sandbox(spec, request.output, request.output)
        elif terminal is None:
            self._sandbox = Sandbox(spec)
        else:
            self._sandbox = Sandbox(spec, terminal.stdout, terminal.stderr)
        self._loop.watch(self._sandbox.channel, self._on_sandbox)
        if terminal is not None:
            self._loop.watch(terminal.controller, self._on_output)
        if self._progress is not None and self._progress.active:
            self._draw()

    # ---- events ----

    def _on_signal(self, number: int) -> None:
        first = self._outcome.interrupted(number)
        if self._sandbox is None:
            return
        self._mark_the_end()
        if first:
            self._announce()
            self._sandbox.signal(signal.Signals(number))
            self._loop.after("kill", TERM_GRACE_S, self._kill_all)
        else:
            self._kill_all()

    def _on_output(self) -> None:
        assert self._progress is not None
        self._progress.pass_on()

    def _draw(self) -> None:
        assert self._progress is not None
        self._progress.show()
        self._loop.after("progress", INTERVAL_S, self._draw)

    def _look_at_speed(self) -> None:
        assert self._speed is not None
        self._speed.look()
        self._loop.after("speed", EVERY_S, self._look_at_speed)

    def _look_at_steps(self) -> None:
        assert self._hold is not None
        if self._hold.look():
            self._outcome.stop()
            self._kill_all()
        else:
            self._loop.after("hold", step_hold.LOOK_S, self._look_at_steps)

    @property
    def seen(self) -> Seen | None:
        """Why the run was ended after its first steps; None when it ended by itself."""
        return self._hold and self._hold.seen

    def _on_hub_output(self) -> None:
        assert self._hub is not None
        line = self._hub.stdout.readline()
        if line == b"ready\n":
            self._hub_ready = True
            self._loop.cancel("hub start")
        elif not line:
            self._loop.unwatch(self._hub.stdout)
            if not self._hub_ready:
                how = self._hub.describe_end()
                raise LaunchError(
                    f"the hub did not start ({how}); its message, if it had one, is above; "
                    "run phantora-ns doctor",
                    "hub",
                )
            self._hub_lost()

    def _hub_late(self) -> None:
        raise LaunchError(
            f"the hub did not start within {HUB_START_S:.0f} s; on this machine; "
            "try when it is less busy",
            "hub",
        )

    def _hub_lost(self) -> None:
        assert self._hub is not None
        if self._outcome.hub_ended(self._hub.describe_end()):
            self._announce()
        self._kill_all()

    def _on_sandbox(self) -> None:
        assert self._sandbox is not None
        message = self._sandbox.receive()
        if message is not None:
            self._on_message(message)
            return
        self._loop.unwatch(self._sandbox.channel)
        if self._outcome.sandbox_ended(ended_how(self._sandbox.process.wait())):
            self._announce()
        for node in self._outcome.nodes_left:
            self._outcome.node_gone(node)

    def _on_message(self, message: Message) -> None:
        outcome, node = self._outcome, message.node
        if message.kind == "failed":
            where = "" if node is None else f"; on node-{node}"
            raise LaunchError(f"cannot build the cluster: {message.text}{where}")
        if node is None:
            return
        failed = message.kind == "signal" or (message.kind == "exit" and message.number != 0)
        if failed and not (self._hub is not None and self._hub.alive):
            self._hub_lost()  # ranks die of a dead hub, and their end may be heard of first
        decisive = False
        if message.kind == "noexec":
            outcome.command_not_run(node, message.text)
        elif message.kind == "exit":
            decisive = outcome.command_exited(node, message.number)
        elif message.kind == "signal":
            decisive = outcome.command_killed(node, message.number)
        elif message.kind == "gone":
            decisive = outcome.node_gone(node)
        if decisive and outcome.commands_left:
            self._loop.after("others", OTHERS_GRACE_S, self._terminate_others)

    # ---- the end ----

    def _terminate_others(self) -> None:
        assert self._sandbox is not None
        self._mark_the_end()
        for node in self._outcome.commands_left:
            self._sandbox.signal(signal.SIGTERM, node)
        self._loop.after("kill", TERM_GRACE_S, self._kill_all)

    def _kill_all(self) -> None:
        self._mark_the_end()
        if self._sandbox is not None:
            self._sandbox.kill()

    def _mark_the_end(self) -> None:
        """Tells the hub that processes end by our will from now on."""
        if self._run_dir is not None:
            with suppress(OSError):
                (self._run_dir.path / ENDS).touch()

    def _announce(self) -> None:
        """Says why the run ends, once, as soon as it is known."""
        failure = self._outcome.failure
        if failure is not None and failure.message is not None:
            if self._progress is not None:
                self._progress.clear()
            error = ""
            if failure.failed_by == "job" and self._run_dir is not None:
                error = about_error(self._run_dir.path)
            self.message = failure.message + error + self._outcome.about_memory(memory_kills())
            if self._request.output is None:
                say(self.message)
            self._outcome.failure = replace(failure, message=None)

    def _end(self) -> Verdict:
        """Stops what runs, in reverse order, keeps the results, and removes the run directory.
        Never raises for a job's failure."""
        self._loop.cancel_all()
        if self._speed is not None:
            self._speed.close()
        if self._sandbox is not None:
            self._kill_all()
            self._sandbox.close(SANDBOX_STOP_S)
        self._stop_hub()
        if self._progress is not None:
            self._progress.close()
        if self._gpu_lock is not None:
            self._gpu_lock.release()
        self._announce()
        if self._run_dir is None:
            return self._outcome.verdict()
        if self._sandbox is not None and self._request.trace is not None:
            self._write_traces(self._run_dir.path)
        verdict = self._outcome.verdict()
        if self._sandbox is not None:
            verdict = self._keep_results(self._run_dir.path, verdict)
        if self._request.keep_run_dir:
            self._run_dir.keep()
            say(f"run directory kept; {self._run_dir.path}; delete it when you are done")
        else:
            self._run_dir.remove()
        return verdict

    def _stop_hub(self) -> None:
        if self._hub is None:
            return
        # Also after a failure, traces need the last times that the hub knows.
        good = self._outcome.failure is None or self._request.trace is not None
        if not self._hub.alive:
            if self._sandbox is not None and good:
                # It ended after the last rank had, and without its part of the report.
                self._outcome.hub_ended(self._hub.describe_end())
            self._hub.stdout.close()
        elif not self._hub.stop(HUB_STOP_S if good else HUB_STOP_HASTY_S, self._given_up) and good:
            message = (
                f"the hub did not end within {HUB_STOP_S:.0f} s; after the job; "
                "the report lacks its part, please report this as a defect"
            )
            self._outcome.fail(Verdict(EXIT_OURS, "hub", message))
        elif good and self._hub.process.returncode:
            message = (
                f"the hub could not write its part of the report ({self._hub.describe_end()}); "
                "its message, if it had one, is above; without it the run has no result"
            )
            self._outcome.fail(Verdict(EXIT_OURS, "hub", message))

    def _given_up(self, within_s: float = 0.0) -> bool:
        """Whether the user gives up the wait: a signal has come."""
        numbers = self._loop.wait_for_signals(within_s)
        for number in numbers[:1]:
            self._outcome.interrupted(number)
        return bool(numbers)

    def _write_traces(self, path: Path) -> None:
        """Also after a failure or a Ctrl-C, so that what ran until then can be looked at. Another
        signal ends it."""
        try:
            writers = TraceWriters(path, page=self._request.html is not None)
            failure = self._outcome.failure
            explained = failure is not None and failure.failed_by == "hub"
            while writers.busy:
                if self._given_up(LOOK_S):
                    writers.stop()
                    explained = True
            trace = self._request.trace
            quiet = self._request.quiet or trace is None or trace.folder is None
            complete = writers.finish(quiet, explained)
        except (LaunchError, OSError) as error:
            is_file_error = isinstance(error, OSError)
            what = f"{error.strerror}; {error.filename}" if is_file_error else str(error)
            say(f"cannot write the traces: {what}")
            complete = False
        if not complete:
            self._outcome.fail(Verdict(EXIT_OURS, "launcher"))
        self._announce()

    def _keep_results(self, path: Path, verdict: Verdict) -> Verdict:
        results = Results(self._request, path, verdict)
        try:
            with self._loop.interruptible():
                results.keep(time.monotonic() - self._start)
        except Interrupted as error:
            results.interrupted(error.number)
        self.report, self.values_kept = results.report, results.values_kept
        self.message = self.message or results.problem
        return results.verdict
