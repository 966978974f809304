"""Why it exists: runs one job from a validated request to its exit code, and leaves nothing behind,
whatever happens.

One loop over everything that can happen: a signal, a message of the sandbox, the hub's end, a
deadline. Order: run directory, hub, sandbox; then backwards. The parts: `outcome` decides what an
event means, `sandbox` and `hub_process` act.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora_ns.config.description import write_cluster
from phantora_ns.launch.command.command import JobCommand
from phantora_ns.launch.errors import EXIT_OURS, LaunchError, say
from phantora_ns.launch.machine import environment, gpus, interposition
from phantora_ns.launch.machine.sandbox import Message, Sandbox, write_spec
from phantora_ns.launch.record import host_time, leaders, recorded_values
from phantora_ns.launch.run.hub_process import HubProcess
from phantora_ns.launch.run.outcome import Outcome, Verdict
from phantora_ns.launch.run.progress import INTERVAL_S, Progress
from phantora_ns.launch.run.rundir import RunDir
from phantora_ns.launch.run.tracing import LOOK_S, TraceWriters
from phantora_ns.trace.options import TraceOptions

HUB_START_S = 60.0  # imports on a busy machine; only a hub that hangs takes longer
OTHERS_GRACE_S = 1.0  # after one node failed, for the others to fail by themselves and say why
TERM_GRACE_S = 2.0  # from the polite signal to the kill
HUB_STOP_S = 10.0  # to write hub.json after a good run
HUB_STOP_HASTY_S = 1.5  # after a failure: the whole end has to fit 5 s
SANDBOX_STOP_S = 1.0
GPU_POLL_S = 0.5  # between tries to get the GPU that another run leads on
RECORDING = "recording.sqlite"  # hub/recording.py
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Request:
    """All that a run needs, validated. `cluster` is config.Cluster."""

    command: JobCommand
    cluster: Any
    shape: environment.Shape
    cwd: str
    report: Path | None = None
    host: host_time.HostTime = host_time.HostTime()
    sync: str = "conservative"
    values: recorded_values.Values = recorded_values.Values()
    keep_run_dir: bool = False
    quiet: bool = False
    databases: tuple[str, ...] = ()
    trace: TraceOptions | None = None
    options: tuple[
        str, ...
    ] = ()  # of our own that shape the cluster, as the user would type them again
    leading: leaders.Leading | None = None
    name: str = ""  # of the job's configuration, for the recording
    record_into: Path | None = (
        # the database, or file of values, that gets what is recorded; None: it serves this run only
        None
    )


class Runner:
    """One run. `run()` may be called once."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._outcome = Outcome(request.shape.nodes)
        self._selector = selectors.DefaultSelector()
        self._deadlines: dict[str, tuple[float, Callable[[], None]]] = {}
        self._run_dir: RunDir | None = None
        self._hub: HubProcess | None = None
        self._hub_ready = False
        self._sandbox: Sandbox | None = None
        self._progress: Progress | None = None
        self._start = time.monotonic()
        self._gpu: gpus.RealGpu | None = None
        self._gpu_lock: gpus.GpuLock | None = None
        self.values_kept = 0
        """Values of a leader's GPU that this run has recorded."""
        self.report: dict[str, Any] | None = None
        """What was reported of the run, once it has ended; None when that could not be built."""

    # ---- the whole ----

    def run(self) -> int:
        """Runs the job; returns the exit code for the shell. Says at most one message for a
        failure."""
        with self._signals():
            try:
                self._start_everything()
                self._attend()
            except LaunchError as error:
                self._outcome.fail(Verdict(EXIT_OURS, error.failed_by, str(error)))
            except OSError as error:
                where = error.filename or "in the launcher"
                self._outcome.fail(
                    Verdict(
                        EXIT_OURS,
                        "launcher",
                        f"{error.strerror or error}; {where}; see phantora-ns doctor",
                    )
                )
            finally:
                verdict = self._end()
        return verdict.exit_code

    def _start_everything(self) -> None:
        request = self._request
        if request.leading is not None and not self._take_gpu(request.leading):
            return
        self._run_dir = RunDir()
        self._prepare(self._run_dir.path)
        per_node = request.command.processes_per_node or request.shape.gpus_per_node
        self._progress = Progress(
            self._run_dir.path, request.shape.nodes * per_node, not request.quiet
        )
        self._hub = HubProcess(self._run_dir.path)
        self._selector.register(self._hub.stdout, selectors.EVENT_READ, self._on_hub_output)
        self._after("hub start", HUB_START_S, self._hub_late)
        while not self._hub_ready and self._outcome.failure is None:
            self._step()
        if self._outcome.failure is None:
            self._start_nodes(self._run_dir.path)

    def _take_gpu(self, leading: leaders.Leading) -> bool:
        """Waits until no other run leads on one of our GPUs; False when the user ends that."""
        self._gpu_lock = gpus.GpuLock(leading.candidates)
        self._gpu = self._gpu_lock.take()
        if self._gpu is None:
            say(
                f"waiting for another run's leader to end; on this machine's {leading.candidates[0].name}; Ctrl-C gives up"
            )
        while self._gpu is None and self._outcome.failure is None:
            self._after("gpu", GPU_POLL_S, lambda: None)
            self._step()
            self._gpu = self._gpu_lock.take()
        return self._outcome.failure is None

    def _prepare(self, path: Path) -> None:
        request = self._request
        environment.link_installation(path)
        self._host = host_time.prepare(
            request.host, request.cluster.gpu_model, request.databases, path, request.quiet
        )
        run = {
            "cluster": os.path.abspath(request.cluster.file),
            "nodes": request.shape.nodes,
            "gpus_per_node": request.shape.gpus_per_node,
            **self._host.run,
            "sync": request.sync,
            "values": request.values.policy if environment.VALUES_LIBRARY.is_file() else "none",
            "databases": list(request.databases),
            "leader": None,
            "recording": None,
            "command": list(request.command.argv),
            "options": list(request.options),
            "warnings": interposition.warnings(request.command.program),
        }
        if request.leading is not None:
            assert self._gpu is not None
            known = leaders.describe_run(
                request.leading,
                request.cluster.gpu_model.model,
                environment.find_torch(request.command.program),
                request.command.argv,
                request.name,
            )
            run |= {
                "leader": request.leading.rank,
                "records": request.leading.record,
                "recording": known | {"device": self._gpu.name, "clocks": self._gpu.clocks},
            }
        if request.host.record is not None:
            run["recording"] = host_time.recording_meta(
                request.cluster.gpu_model, request.command.argv
            )
        if request.trace is not None:
            run["trace"] = request.trace.describe()
            (path / "trace").mkdir()
        (path / "run.json").write_text(json.dumps(run, indent=1) + "\n")
        write_cluster(request.cluster, path)
        if request.values.file is not None:
            shutil.copyfile(request.values.file, path / recorded_values.TABLE)
        gpu = request.cluster.gpu_model
        self._kernel_info = environment.find_kernel_info(
            request.command.program, 10 * gpu.compute_major + gpu.compute_minor, path
        )
        (path / "hosts").write_text(environment.hosts_file(request.command, request.shape.nodes))

    def _start_nodes(self, path: Path) -> None:
        request, outer = self._request, environment.outer_environment()
        isolated = request.shape.isolated
        job = (
            environment.job_environment(outer, path, request.shape, self._kernel_info)
            | self._host.environment
        )
        job |= {"PHANTORA_VALUES": request.values.policy}
        if request.trace is not None:
            job |= request.trace.environment()
        if request.leading is not None:
            assert self._gpu is not None
            job |= leaders.leader_environment(
                request.leading,
                self._gpu,
                path / "lib" / environment.LEADER_LIBRARY.name,
                environment.find_torch(request.command.program),
                outer,
                job,
            )
            if request.command.torchrun is not None or request.command.deepspeed is not None:
                # its workers have ranks; it has none, whatever is exported around us
                job.pop("RANK", None)
        spec = write_spec(
            program=request.command.program,
            argv=request.command.argv,
            cwd=request.cwd,
            isolated=isolated,
            env=job,
            node_envs=[
                own | environment.gpu_faults(request.cluster.faults, node)
                for node, own in enumerate(
                    environment.node_environments(request.command, request.shape, outer)
                )
            ],
            fake_gpus=request.shape.gpus_per_node if isolated else 0,
            hosts=str(path / "hosts") if isolated else None,
            remove=None if request.keep_run_dir else str(path),
        )
        terminal = self._progress.terminal if self._progress is not None else None
        self._sandbox = (
            Sandbox(spec) if terminal is None else Sandbox(spec, terminal.stdout, terminal.stderr)
        )
        self._selector.register(self._sandbox.channel, selectors.EVENT_READ, self._on_sandbox)
        if terminal is not None:
            self._selector.register(terminal.controller, selectors.EVENT_READ, self._on_output)
            self._draw()

    # ---- events ----

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals arrive as bytes on a pipe, so that the loop handles them like everything else."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        old_handlers = {
            number: signal.signal(number, lambda *_: None)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }  # nohup stays nohup
        old_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._selector.register(reader, selectors.EVENT_READ, lambda: self._on_signals(reader))
        self._signal_reader = reader
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(reader)
            os.close(writer)

    def _after(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        self._deadlines[name] = (time.monotonic() + seconds, action)

    def _step(self) -> None:
        """Waits for one thing to happen, and acts on it."""
        soonest = min((when for when, _ in self._deadlines.values()), default=None)
        timeout = None if soonest is None else max(0.0, soonest - time.monotonic())
        for key, _ in self._selector.select(timeout):
            key.data()
        for name, (when, action) in list(self._deadlines.items()):
            if when <= time.monotonic() and self._deadlines.get(name) == (when, action):
                del self._deadlines[name]
                action()

    def _attend(self) -> None:
        while self._sandbox is not None and self._outcome.nodes_left:
            self._step()

    def _on_signals(self, reader: int) -> None:
        for number in os.read(reader, 64):
            if number not in _SIGNALS:
                continue
            first = self._outcome.interrupted(number)
            if self._sandbox is None:
                continue
            if first:
                self._announce()
                self._sandbox.signal(signal.Signals(number))
                self._after("kill", TERM_GRACE_S, self._kill_all)
            else:
                self._kill_all()

    def _on_output(self) -> None:
        assert self._progress is not None
        self._progress.pass_on()

    def _on_hub_output(self) -> None:
        assert self._hub is not None
        line = self._hub.stdout.readline()
        if line == b"ready\n":
            self._hub_ready = True
            self._deadlines.pop("hub start", None)
        elif not line:
            self._selector.unregister(self._hub.stdout)
            if not self._hub_ready:
                how = self._hub.describe_end()
                raise LaunchError(
                    f"the hub did not start ({how}); its message is above; run phantora-ns doctor",
                    "hub",
                )
            self._hub_lost()

    def _hub_late(self) -> None:
        raise LaunchError(
            f"the hub did not start within {HUB_START_S:.0f} s; on this machine; try when it is less busy",
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
        if message is None:
            self._selector.unregister(self._sandbox.channel)
            code = self._sandbox.process.wait()
            if self._outcome.sandbox_ended(
                f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            ):
                self._announce()
            for node in self._outcome.nodes_left:
                self._outcome.node_gone(node)
            return
        self._on_message(message)

    def _on_message(self, message: Message) -> None:
        outcome, node = self._outcome, message.node
        if message.kind == "failed":
            where = "" if node is None else f"; on node-{node}"
            raise LaunchError(f"cannot build the cluster: {message.text}{where}")
        if node is None:
            return
        # ranks die of a dead hub, and may be heard of first
        if (
            message.kind in ("exit", "signal")
            and message.kind + str(message.number) != "exit0"
            and not self._hub_alive()
        ):
            self._hub_lost()
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
            self._after("others", OTHERS_GRACE_S, self._terminate_others)

    def _hub_alive(self) -> bool:
        return self._hub is not None and self._hub.alive

    # ---- ending ----

    def _terminate_others(self) -> None:
        assert self._sandbox is not None
        for node in self._outcome.commands_left:
            self._sandbox.signal(signal.SIGTERM, node)
        self._after("kill", TERM_GRACE_S, self._kill_all)

    def _kill_all(self) -> None:
        if self._sandbox is not None:
            self._sandbox.kill()

    def _draw(self) -> None:
        assert self._progress is not None
        self._progress.show()
        self._after("progress", INTERVAL_S, self._draw)

    def _announce(self) -> None:
        """Says why the run ends, once, as soon as it is known."""
        failure = self._outcome.failure
        if failure is not None and failure.message is not None:
            if self._progress is not None:
                self._progress.clear()
            say(failure.message)
            self._outcome.failure = Verdict(failure.exit_code, failure.failed_by)

    def _end(self) -> Verdict:
        """Stops what runs, in reverse order, writes the report, removes the run directory. Never
        raises for a job's failure."""
        self._deadlines.clear()
        if self._sandbox is not None:
            self._kill_all()
            self._sandbox.close(SANDBOX_STOP_S)
        self._stop_hub()
        if self._progress is not None:
            self._progress.close()
        if self._gpu_lock is not None:
            self._gpu_lock.release()
        self._announce()
        if (
            self._request.trace is not None
            and self._run_dir is not None
            and self._sandbox is not None
        ):
            self._write_traces(self._run_dir.path)
        verdict = self._outcome.verdict()
        if self._run_dir is None:
            return verdict
        if self._sandbox is not None:
            verdict = self._keep_record(
                self._run_dir.path, self._report(self._run_dir.path, verdict)
            )
            verdict = self._keep_recording(self._run_dir.path, verdict)
        if self._request.keep_run_dir:
            self._run_dir.keep()
            say(f"run directory kept; {self._run_dir.path}; delete it when you are done")
        else:
            self._run_dir.remove()
        return verdict

    def _stop_hub(self) -> None:
        if self._hub is None:
            return
        good = (
            self._outcome.failure is None or self._request.trace is not None
        )  # traces want the last times
        if not self._hub.alive:
            if (
                self._sandbox is not None and good
            ):  # it died after the last rank had ended, and took the report with it
                self._outcome.hub_ended(self._hub.describe_end())
            self._hub.stdout.close()
        elif not self._hub.stop(HUB_STOP_S if good else HUB_STOP_HASTY_S) and good:
            self._outcome.fail(
                Verdict(
                    EXIT_OURS,
                    "hub",
                    f"the hub did not end within {HUB_STOP_S:.0f} s; after the job; the "
                    "report lacks its part, please report this as a defect",
                )
            )

    def _keep_record(self, path: Path, verdict: Verdict) -> Verdict:
        file = self._request.host.record
        if file is None:
            return verdict
        try:
            host_time.keep(path, file)
        except LaunchError as error:
            say(str(error))
            return verdict if verdict.exit_code else Verdict(EXIT_OURS, "launcher")
        return verdict

    def _write_traces(self, path: Path) -> None:
        """Also after a failure or a Ctrl-C: what ran until then can be looked at. Another signal
        ends it."""
        quiet = self._request.quiet
        try:
            writers = TraceWriters(path)
            while writers.busy:
                if select.select([self._signal_reader], [], [], LOOK_S)[0]:
                    numbers = [
                        number for number in os.read(self._signal_reader, 64) if number in _SIGNALS
                    ]
                    if numbers:
                        writers.stop()
                        self._outcome.interrupted(numbers[0])
            complete = writers.finish(quiet)
        except (LaunchError, OSError) as error:
            where = (
                f"{error.strerror}; {error.filename}" if isinstance(error, OSError) else str(error)
            )
            say(f"cannot write the traces: {where}")
            complete = False
        if not complete:
            self._outcome.fail(Verdict(EXIT_OURS, "launcher"))
        self._announce()

    def _report(self, path: Path, verdict: Verdict) -> Verdict:
        from phantora_ns.report.run_report import build_report, summary_lines

        try:
            report = build_report(
                path,
                exit_code=verdict.exit_code,
                failed_by=verdict.failed_by,
                wall_s=time.monotonic() - self._start,
            )
            self.report = report
            if not self._request.quiet:
                for line in summary_lines(report):
                    say(line)
        except (OSError, ValueError, KeyError) as error:
            say(
                f"cannot build the report: {error}; in {path}; the hub ended without writing its part"
            )
            return verdict if verdict.exit_code else Verdict(EXIT_OURS, "hub")
        if self._request.report is not None:
            try:
                write_report(self._request.report, report)
            except OSError as error:
                say(
                    f"cannot write the report: {error.strerror}; {self._request.report}; the job itself ended with exit code "
                    f"{verdict.exit_code}"
                )
                return verdict if verdict.exit_code else Verdict(EXIT_OURS, "launcher")
        return verdict

    def _keep_recording(self, path: Path, verdict: Verdict) -> Verdict:
        """Adds what was measured to the user's database, or values to their file, of a run that
        failed too."""
        from phantora_ns.kernels.database import databases
        from phantora_ns.kernels.database.schema import DatabaseError

        request, recording = self._request, path / RECORDING
        if request.record_into is None:
            return verdict
        try:
            if request.leading is not None and request.leading.record == leaders.VALUES:
                about = recorded_values.describe(request.command.argv, request.cwd)
                self.values_kept = recorded_values.keep(
                    path, request.record_into, request.leading.rank, about
                )
            elif recording.is_file():
                databases.add(request.record_into, [recording])
        except (DatabaseError, LaunchError) as error:
            say(f"what was recorded is not kept: {error}")
            return verdict if verdict.exit_code else Verdict(EXIT_OURS, "launcher")
        return verdict


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Writes JSON whole or not at all, so that a reader never sees half a report. Raises
    OSError."""
    text = json.dumps(report, indent=2) + "\n"
    if path.exists() and not path.is_file():  # a pipe or a terminal
        path.write_text(text)
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
