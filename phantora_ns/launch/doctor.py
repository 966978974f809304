"""`phantora-ns doctor`: does what a run does, step by step, and prints what fails, why, and the cure.

Why it exists: "it does not start" has a dozen causes outside our code. Rule: where the real thing
can be tried, nothing is guessed from version numbers or files. A check that cannot matter after an
earlier failure is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from phantora_ns import home
from phantora_ns.config.versions import supported_versions
from phantora_ns.home import home_folder
from phantora_ns.launch.errors import LaunchError, UsageError
from phantora_ns.launch.machine import environment, installation, limits, values_libraries
from phantora_ns.launch.machine.interposition import try_preload
from phantora_ns.launch.machine.sandbox import Sandbox, SandboxSpec
from phantora_ns.launch.machine.software import read_software, remark, state
from phantora_ns.launch.machine.values_recipe import Torch, read_torch
from phantora_ns.launch.nodes import node_address
from phantora_ns.launch.run.hub_process import HubProcess
from phantora_ns.launch.run.rundir import RunDir

# On both nodes: bind the same port, and meet by name.
_MEETING = """
import os, socket, sys, time
node = int(os.environ["PHANTORA_NODE"])
assert socket.gethostname() == f"node-{node}", f"the host name is {socket.gethostname()}"
server = socket.create_server(("", 29500))
if node == 0:
    server.settimeout(20)
    server.accept()[0].sendall(b"hello")
else:
    for _ in range(200):
        try:
            connection = socket.create_connection(("node-0", 29500), timeout=20)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    assert connection.recv(5) == b"hello"
"""


class _Report:
    """Prints one line per check, and remembers whether all succeeded."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self.healthy = True

    def ok(self, what: str) -> None:
        self._write(f"ok      {what}")

    def note(self, what: str) -> None:
        """Something to know that need not be cured."""
        self._write(f"note    {what}")

    def failed(self, what: str) -> None:
        self._write(f"FAILED  {what}")
        self.healthy = False

    def attempt(self, what: str, check: Callable[[], str]) -> bool:
        """Runs a check that returns a detail, or raises LaunchError."""
        try:
            detail = check()
        except (LaunchError, OSError) as error:
            self.failed(f"{what}: {error}")
            return False
        self.ok(f"{what}: {detail}" if detail else what)
        return True


def _check_python() -> str:
    return f"{sys.version.split()[0]} at {sys.executable}"


def _check_built() -> str:
    installation.require_built()
    return str(installation.LIBRARIES)


def _check_torch(report: _Report) -> None:
    """A build that no job can find a GPU with is a failure; a version that nobody tried is not."""
    torch = installation.find_torch(shutil.which("torchrun"))
    newest = supported_versions().releases[0].torch
    if torch is None:
        report.failed(
            f"torch: not installed; neither for torchrun on PATH nor for {sys.executable}; "
            f"pip install torch=={newest}"
        )
        return
    software = read_software(torch)
    doubt = remark(software)
    if not software.torch:
        report.failed(
            f"torch: no version in {torch / 'version.py'}; a broken installation; "
            f"pip install --force-reinstall torch=={newest}"
        )
    elif not software.cuda:
        report.failed(str(doubt))
    elif doubt:
        report.note(doubt)
    else:
        words = {"tested": "tested", "works": "known to work"}
        report.ok(f"torch: {software.versions()}: {words[state(software)]}")
    if found := read_torch(torch):
        _check_values(report, found)


def _check_values(report: _Report, torch: Torch) -> None:
    """Without the library jobs run, but much reads as zero."""
    what = f"values library for torch {torch.version}"
    library = values_libraries.find(torch.version)
    reason = None if library is not None else values_libraries.obstacle(torch)
    if reason is not None:
        report.note(f"{what}: {reason}; what GPU operators compute reads as zero")
    else:
        report.ok(f"{what}: {library or 'compiled before the first job that needs it'}")


def _try_nodes(report: _Report, run_dir: Path) -> bool:
    nodes = 2
    (run_dir / "hosts").write_text(
        "".join(f"{node_address(node, True)} node-{node}\n" for node in range(nodes))
    )
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    spec = SandboxSpec(
        program=sys.executable,
        argv=["python", "-I", "-c", _MEETING],
        cwd="/",
        env=env,
        isolated=True,
        fake_gpus=1,
        node_envs=[{"PHANTORA_NODE": str(node)} for node in range(nodes)],
        hosts=str(run_dir / "hosts"),
        steps=True,
    )
    sandbox = Sandbox(spec)
    codes = []
    try:
        while (message := sandbox.receive()) is not None:
            if message.kind == "step":
                report.ok(message.text)
            elif message.kind == "failed":
                where = "" if message.node is None else f" (on node-{message.node})"
                report.failed(f"{message.text}{where}")
                return False
            elif message.kind in ("exit", "signal"):
                codes.append(message.number)
    finally:
        sandbox.kill()
        sandbox.close(5)
    if codes != [0] * nodes:
        report.failed(
            "TCP between the nodes: its messages are above; a firewall or security module of this machine interferes; "
            "let bridges pass: sudo sysctl -w net.bridge.bridge-nf-call-iptables=0"
        )
        return False
    report.ok("TCP between the nodes, by name, one port bound on both")
    return True


def _try_hub(run_dir: Path) -> str:
    from phantora_ns.config import load_cluster
    from phantora_ns.config.description import write_cluster

    cluster = load_cluster(None, 1, 1)
    (run_dir / "run.json").write_text(
        json.dumps(
            {
                "cluster": os.path.abspath(cluster.file),
                "nodes": 1,
                "gpus_per_node": 1,
                "host_time": "measured",
                "host_scale": 1.0,
                "sync": "conservative",
                "values": "none",
                "databases": [],
            }
        )
    )
    write_cluster(cluster, run_dir)
    hub = HubProcess(run_dir)
    try:
        if hub.stdout.readline() != b"ready\n":
            raise LaunchError(
                f"it ended ({hub.describe_end()}); its message is above; cure that, or install phantora-ns again"
            )
    finally:
        stopped = hub.stop(10)
    if not stopped or not (run_dir / "hub.json").is_file():
        raise LaunchError(
            f"it does not end as it should; {run_dir.parent}; install phantora-ns again"
        )
    return f"on a socket in {run_dir.parent}"


def _try_preload(run_dir: Path) -> str:
    installation.link_installation(run_dir)
    shape = environment.Shape(1, 1, True)
    try_preload(environment.job_environment({}, run_dir, shape, None))
    return f"through {run_dir.parent}"


def _check_ranks(report: _Report, ranks: int) -> None:
    """Whether so many ranks fit this machine, as far as can be said without starting them."""
    try:
        limits.require_files(ranks)
    except UsageError as error:
        report.failed(str(error))
        return
    if doubt := limits.memory_remark(ranks):
        report.note(doubt)
    else:
        report.ok(
            f"{ranks} ranks: about {ranks * limits.RANK_BYTES / 1e9:.1f} GB of memory, of "
            f"{limits.free_memory() / 1e9:.1f} GB that are free"
        )


def run_doctor(write: Callable[[str], None], ranks: int | None = None) -> int:
    """Prints a line per step through `write`; returns 0 when a run would work, else 1. `ranks`: also
    says whether so many would fit."""
    report = _Report(write)
    report.attempt("Python", _check_python)
    if home_folder() == home.NONE:
        report.note(
            "no home folder: HOME is not set, and this user is in no table; nothing is cached, and "
            "recordings need a file of their own; set HOME, or XDG_CACHE_HOME and XDG_DATA_HOME"
        )
    built = report.attempt("C parts built", _check_built)
    report.attempt("libzmq", lambda: str(installation.find_libzmq()))
    _check_torch(report)
    if ranks is not None:
        _check_ranks(report, ranks)
    if built:
        try:
            run_dir = RunDir()
            run_dir.delete_when_we_die()
        except LaunchError as error:
            report.failed(f"run directory: {error}")
            return 1
        try:
            report.ok(f"run directory in {run_dir.path.parent}")
            report.attempt("interceptor preloaded", lambda: _try_preload(run_dir.path))
            _try_nodes(report, run_dir.path)
            report.attempt("hub", lambda: _try_hub(run_dir.path))
        finally:
            run_dir.remove()
    write(
        "phantora-ns can run jobs on this machine"
        if report.healthy
        else "phantora-ns cannot run jobs here yet: cure the first FAILED line, then run phantora-ns doctor again"
    )
    return 0 if report.healthy else 1
