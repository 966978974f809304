"""Why it exists: one run of a cheap job, struck once, and everything that must hold afterwards: the
exit code, one message, nothing left on the machine, a report that is whole or not there."""

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phantora_ns.kernels.database.database import Database
from tests.leftovers import MARK, interfaces, marked_processes
from tests.reliability.one_gpu import one_gpu
from tests.reliability.strikes import LEADER, ROLES, Strike, right_codes, role_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETTLE_S = 10
# of a report, from run to run: which rank asks for a kernel's time first is a race, and whether the job stands
# still before or after the hub knows an answer
CHANGES = ("wall_s", "hub_cpu_ns", "messages", "rollbacks", "answers_past_idle")
NOT_BURIED = 12  # lines of the job after our message
PYTHON_STARTS = "Fatal Python error: init_"  # so ends any Python that starts
# of runs that are compared: what is measured, also on a GPU of this machine, differs from run to run
REPEATING = ("--host-time", "model", "--leaders", "none")
STARTERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Run:
    """What a run came to."""

    code: int = 0
    out: str = ""
    err: str = ""
    wall_s: float = 0.0
    report: dict | None = None
    made: list[str] = field(default_factory=list)
    """Traces and pages."""
    struck: str | None = None
    """The command line of the process that was struck; None: the run had ended."""
    wrong: list[str] = field(default_factory=list)

    @property
    def messages(self) -> list[str]:
        """Our own lines."""
        return [line for line in self.err.splitlines() if line.startswith("phantora-ns:")]


@dataclass(frozen=True)
class Job:
    """What is run. `script` is its name."""

    script: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    """What it leaves behind without us too, as prefixes of paths."""
    forks_workers: bool = False
    shows: bool = False
    """It also writes traces and a page."""
    agent_catches: bool = False
    """A signal that its agent gets ends it with exit code 1, as torchrun."""
    time_out_s: int = 120
    led: bool = False
    """One rank leads on a GPU and records it. What it measures differs from run to run."""

    def started_by(self, folder: Path) -> list[str]:
        made = folder / "made"
        launcher = [sys.executable, "-m", "phantora_ns"]
        if self.led:
            launcher += ["profile", "--quiet", "--leaders", "0", "-o", str(made / "times.sqlite")]
        else:
            launcher += ["--quiet", *REPEATING]
        shown = ("--trace", str(made / "traces"), "--html", str(made / "page.html"))
        report = ("--report", str(folder / "reports" / "report.json"))
        return [*launcher, *self.options, *(shown if self.shows else ()), *report, *self.command]


def cheap(nodes: int, steps: int, shows: bool = False) -> Job:
    """Two ranks on each node, without PyTorch."""
    options = ("--nnodes", str(nodes), "--gpus-per-node", "2")
    command = ("--", sys.executable, str(HERE / "job.py"), str(steps))
    return Job("job.py", command, options, shows=shows)


def led(steps: int) -> Job:
    """The cheap job on one node, led by rank 0. The launcher sets RANK=0 for a plain command; the agent runs without
    it, or it would lead in the rank's place."""
    command = ("--", "env", "-u", "RANK", sys.executable, str(HERE / "job.py"), str(steps))
    return Job("job.py", command, ("--gpus-per-node", "2"), ("home/.cache",), led=True)


def with_torch(shows: bool = False) -> Job:
    """Two ranks of torchrun."""
    command = ("torchrun", "--nproc-per-node", "2", str(HERE / "torch_job.py"))
    # logs, sockets of DataLoaders that are killed, and the folder of a compiler that is not used
    left = ("tmp/torchelastic_", "tmp/pymp-", "tmp/torchinductor_")
    return Job("torch_job.py", command, (), left, True, shows, agent_catches=True, time_out_s=600)


class Range:
    """Where runs are struck: a folder that stands for TMPDIR, HOME and XDG_RUNTIME_DIR, and what a
    run that nothing happens to comes to."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job = folder, job
        self.roles = (*ROLES, LEADER) if job.led else ROLES
        for name in ("tmp", "runtime", "home", "reports", "made", "machine"):
            (folder / name).mkdir(mode=0o700)
        self.lives: dict[str, float] = {}
        self.fire(None)  # fills caches
        self.peaceful = self.fire(None)
        assert self.peaceful.code == 0 and not self.peaceful.wrong, self.peaceful

    def fire(self, strike: Strike | None) -> Run:
        """Runs the job, strikes it and says what is wrong afterwards."""

        def act(process: subprocess.Popen, mark: str) -> str | None:
            if strike is None:
                self.lives = self._watch(process, mark)
                return None
            return self._strike(strike, process, mark)

        run = self.once(act, strike is None or strike.harmless)
        if strike is not None:
            run.wrong += self._judge(run, strike)
        return run

    def once(
        self,
        act: Callable[[subprocess.Popen, str], str | None],
        peaceful: bool,
        variables: Mapping[str, str | bytes] | None = None,
        within: Sequence[str] = (),
    ) -> Run:
        """Runs the job, by the command `within`, with more environment `variables`, and calls
        `act(process, mark)` meanwhile. Says what is left afterwards, and what is wrong with the report.
        `peaceful`: it may fill caches."""
        if not self.job.led:
            return self._once(act, peaceful, os.environ, variables or {}, within)
        # One for each run: the fake CUPTI knows processes by their numbers, which come again in each run's nodes.
        with one_gpu(self.folder / "machine") as machine:
            more = dict(variables or {})
            if "LD_PRELOAD" in more:
                more["LD_PRELOAD"] = f"{more['LD_PRELOAD']}:{machine['LD_PRELOAD']}"
            return self._once(act, peaceful, machine, more, within)

    def _once(
        self,
        act: Callable[[subprocess.Popen, str], str | None],
        peaceful: bool,
        machine: Mapping[str, str],
        variables: Mapping[str, str | bytes],
        within: Sequence[str],
    ) -> Run:
        mark, before = uuid.uuid4().hex, self._state()
        report = self.folder / "reports" / "report.json"
        begin = time.monotonic()
        process = subprocess.Popen(
            [*within, *self.job.started_by(self.folder)],
            cwd=ROOT,
            env={**self._environment(machine, mark), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=defaults,
        )
        run = Run()
        try:
            run.struck = act(process, mark)
            run.out, run.err = process.communicate(timeout=self.job.time_out_s)
        except subprocess.TimeoutExpired:
            late = f"did not end within {self.job.time_out_s} s"
            run.wrong.append(f"{late}; left: {marked_processes(mark)}")
            process.kill()
            run.out, run.err = process.communicate()
        run.code, run.wall_s = process.returncode, time.monotonic() - begin
        run.wrong += self._left(mark, before, peaceful)
        run.wrong += self._report(run, report)
        run.made, broken = made_in(self.folder / "made")
        run.wrong += broken
        return run

    def _environment(self, machine: Mapping[str, str], mark: str) -> dict[str, str]:
        environment = {
            **machine,
            MARK: mark,
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
            "HOME": str(self.folder / "home"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
            environment.pop(name, None)
        return environment

    def _watch(self, process: subprocess.Popen, mark: str) -> dict[str, float]:
        """How long each role lives."""
        seen: dict[str, tuple[float, float]] = {}
        while process.poll() is None:
            for role in self.roles:
                if self._targets(role, process, mark):
                    now = time.monotonic()
                    seen[role] = seen.get(role, (now, now))[0], now
            time.sleep(0.05)
        return {role: end - begin for role, (begin, end) in seen.items()}

    def _strike(self, strike: Strike, process: subprocess.Popen, mark: str) -> str | None:
        """Waits for the process and strikes it; its command line, None when the run ended first."""
        while not (there := self._targets(strike.role, process, mark)):
            if process.poll() is not None:
                return None
            time.sleep(0.01)
        time.sleep(strike.after_s)
        there = self._targets(strike.role, process, mark) or there
        pid = sorted(there)[int(strike.choice * len(there))]
        try:
            os.kill(pid, strike.number)
            if strike.then is not None:
                time.sleep(strike.stop_s)
                os.kill(pid, strike.then)
        except ProcessLookupError:
            return None
        return there[pid]

    def _targets(self, role: str, process: subprocess.Popen, mark: str) -> dict[int, str]:
        if role == "launcher":
            return {process.pid: "phantora-ns"} if process.poll() is None else {}
        roles = {
            pid: (role_of(command.strip(), self.job.script), command)
            for pid, command in marked_processes(mark).items()
        }
        if self.job.forks_workers:  # they look like their ranks
            ranks = {pid for pid, (what, _) in roles.items() if what == "rank"}
            for pid in ranks:
                if parent(pid) in ranks:
                    roles[pid] = "worker", roles[pid][1]
        wanted = {"sandbox": "init", LEADER: "rank"}.get(role, role)
        found = {pid: command for pid, (what, command) in roles.items() if what == wanted}
        if self.job.led and wanted == "rank":
            found = {pid: c for pid, c in found.items() if leads(pid) == (role == LEADER)}
        if role == "agent":  # a child of it looks like it until it executes
            found = {pid: c for pid, c in found.items() if parent(pid) not in found}
        if role in ("sandbox", "init") and found:  # the first one is outside
            outer = min(found)
            return {pid: c for pid, c in found.items() if (pid == outer) == (role == "sandbox")}
        return found

    # ---- what is left ----

    def _state(self) -> dict[str, list[str]]:
        """What a run may not change."""
        return {
            "folders": sorted(
                str(path.relative_to(self.folder))
                for name in ("tmp", "runtime", "home")
                for path in (self.folder / name).rglob("*")
                if not str(path.relative_to(self.folder)).startswith(self.job.leaves)
            ),
            "shared memory": shared_memory(),
            "interfaces": interfaces(),
            "sockets": [
                line
                for line in Path("/proc/net/unix").read_text().splitlines()
                if str(self.folder) in line
            ],
            "mounts": [
                line
                for line in Path("/proc/self/mountinfo").read_text().splitlines()
                if str(self.folder) in line
            ],
        }

    def _left(self, mark: str, before: dict[str, list[str]], peaceful: bool) -> list[str]:
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            processes, now = marked_processes(mark), self._state()
            if not processes and (now == before or peaceful):
                break
            time.sleep(0.05)
        wrong = [f"process {pid} is left: {command}" for pid, command in processes.items()]
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for what, there in now.items():
            more = sorted(set(there) - set(before[what]))
            if what == "folders" and peaceful:  # a first run fills caches
                more = [name for name in more if not name.startswith("home")]
            if more:
                wrong.append(f"{what}: {more} left")
        return wrong

    def _report(self, run: Run, path: Path) -> list[str]:
        beside = [name for name in os.listdir(path.parent) if name != path.name]
        wrong = [f"beside the report: {beside}"] if beside else []
        for name in beside:
            (path.parent / name).unlink()
        if not path.exists():
            return wrong + (["no report"] if run.code == 0 else [])
        try:
            run.report = json.loads(path.read_text())
        except ValueError as error:
            return [*wrong, f"the report cannot be read: {error}"]
        finally:
            path.unlink()
        if run.code >= 0 and run.report["exit_code"] != run.code:
            wrong.append(f"the report says exit code {run.report['exit_code']}, not {run.code}")
        if (run.report["failed_by"] is None and run.report["ended_by"] is None) != (
            run.report["exit_code"] == 0
        ):
            wrong.append(
                f"the report says that {run.report['failed_by']} failed, {run.report['ended_by']} ended it"
            )
        return wrong

    # ---- what must hold ----

    def _judge(self, run: Run, strike: Strike) -> list[str]:
        wrong = []
        if "phantora_ns/" in run.err and "Traceback" in run.err:
            wrong.append("a traceback of ours")
        if run.code == 0 or strike.harmless:
            return wrong + self.differences(run, strike.harmless)
        if run.struck is None:
            return [*wrong, f"exit code {run.code} although nothing was struck"]
        pythons_own = strike.last is signal.SIGINT and PYTHON_STARTS in run.err and run.code == 1
        right = right_codes(strike, self.job.agent_catches)
        if not right(run.code) and not pythons_own:
            wrong.append(f"exit code {run.code}")
        if len(run.messages) != (0 if run.code < 0 else 1):
            wrong.append(f"{len(run.messages)} messages")
        lines = run.err.splitlines()
        told = run.messages and strike.role != "launcher"  # there the user knows why
        if told and len(lines) - lines.index(run.messages[-1]) > NOT_BURIED:
            wrong.append("the message is buried")
        if run.report is not None:
            if run.report.keys() != self.peaceful.report.keys():
                wrong.append("the report lacks keys")
            hub_gone = "the hub ended (killed" in run.err and strike.last is signal.SIGKILL
            if hub_gone and run.report["messages"] is not None:
                wrong.append("the report knows what the hub did not say")
        return wrong

    def differences(self, run: Run, quiet: bool) -> list[str]:
        """A run that ended well is as if nothing had happened to it."""
        wrong = []
        if run.code:
            return [f"exit code {run.code}"]
        if self.job.led:  # its times are measured
            same = run.made == self.peaceful.made
            return [] if same else [f"made {run.made}, not {self.peaceful.made}"]
        if sorted(run.out.splitlines()) != sorted(self.peaceful.out.splitlines()):
            wrong.append(f"output {run.out!r}, not {self.peaceful.out!r}")
        if run.made != self.peaceful.made:
            wrong.append(f"made {run.made}, not {self.peaceful.made}")
        before, after = repeating(self.peaceful.report), repeating(run.report)
        wrong += [
            f"report: {key} {after.get(key)}, not {value}"
            for key, value in before.items()
            if after.get(key) != value
        ]
        if quiet and run.err != self.peaceful.err:
            wrong.append("stderr differs")
        return wrong


def repeating(report: dict) -> dict:
    """What of a report repeats (docs/report.md)."""
    kept = {key: value for key, value in report.items() if key not in CHANGES}
    kept["ranks"] = [
        {key: value for key, value in rank.items() if key not in CHANGES}
        for rank in report["ranks"]
    ]
    return kept


def made_in(folder: Path) -> tuple[list[str], list[str]]:
    """(names of traces, pages and recordings, what is wrong with them); deletes them."""
    names, wrong = [], []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.name.endswith(".lock"):
            continue
        names.append(str(path.relative_to(folder)))
        try:
            if path.suffix == ".sqlite":
                with Database.open(path) as database:
                    assert database.runs(), "a recording without a run"
            elif path.suffix == ".gz":
                json.loads(gzip.decompress(path.read_bytes()))
            elif not path.read_text().endswith("</html>\n"):
                wrong.append(f"{names[-1]} is not whole")
        except (OSError, EOFError, ValueError, AssertionError) as error:
            wrong.append(f"{names[-1]} cannot be read: {error}")
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return names, wrong


def shared_memory() -> list[str]:
    """The entries of /dev/shm that no process has mapped. All of ours end, so what one has mapped is
    another program's of this machine."""
    there = set(os.listdir("/dev/shm"))
    for process in Path("/proc").glob("[0-9]*") if there else ():
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text()
            there.difference_update(re.findall(r" /dev/shm/(.*)$", maps, re.MULTILINE))
    return sorted(there)


def leads(pid: int) -> bool:
    """Whether it is rank 0, which leads if one does."""
    with contextlib.suppress(OSError):
        return b"RANK=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def parent(pid: int) -> int:
    """The process that started it; 0 when it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def defaults() -> None:
    """Whoever started us may have ignored signals: children would inherit that."""
    for number in STARTERS:
        signal.signal(number, signal.SIG_DFL)
