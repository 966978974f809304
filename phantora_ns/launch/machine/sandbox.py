"""How we start phantora-sandbox and talk to it.

The format of its spec is that of launcher/spec.c, its messages are those of launcher/supervise.c.
Rule: this is the mechanism; the runner decides whom to stop and when.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine.installation import SANDBOX, cannot_start
from phantora_ns.launch.nodes import node_address, node_name

_MESSAGE_MAX = 4096


@dataclass(frozen=True)
class Message:
    """One message of the sandbox: kind step, failed, up, noexec, exit, signal or gone."""

    kind: str
    node: int | None = None
    number: int = 0  # exit code or signal
    text: str = ""


def parse_message(data: bytes) -> Message:
    """Decodes one datagram. Raises LaunchError for what this version does not know."""
    kind, _, rest = data.decode(errors="replace").partition(" ")
    first, _, tail = rest.partition(" ")
    try:
        if kind == "up":
            return Message(kind)
        if kind == "step":
            return Message(kind, text=rest)
        if kind == "failed":
            return Message(kind, None if first == "-" else int(first), text=tail)
        if kind == "noexec":
            return Message(kind, int(first), text=tail)
        if kind in ("exit", "signal"):
            return Message(kind, int(first), int(tail))
        if kind == "gone":
            return Message(kind, int(first))
    except ValueError:
        pass
    raise LaunchError(
        f"unknown message {data!r} from phantora-sandbox; in {SANDBOX.parent}; run make build, so that both are of "
        "one version"
    )


def _record(key: str, value: str) -> bytes:
    return (
        f"{key} ".encode()
        + os.fsencode(value).replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
        + b"\n"
    )


@dataclass(frozen=True)
class SandboxSpec:
    """A cluster, and the command that runs on each of its nodes.

    `env` is for all nodes, `node_envs` has what differs, one entry for each node. `hosts`: a file
    that becomes every node's /etc/hosts. `fake_gpus`: how many /dev/nvidiaN each node shows.
    `steps`: report every step (phantora-ns doctor).
    """

    program: str
    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    node_envs: Sequence[Mapping[str, str]]
    isolated: bool
    fake_gpus: int = 0
    hosts: str | None = None
    steps: bool = False

    def encode(self) -> bytes:
        """The spec in the format of launcher/spec.c."""
        isolation = "namespaces" if self.isolated else "none"
        lines = [b"phantora-sandbox 1\n", _record("isolation", isolation)]
        if self.steps:
            lines.append(_record("steps", "yes"))
        if self.hosts:
            lines.append(_record("hosts", self.hosts))
        lines.append(_record("fake-gpus", str(self.fake_gpus)))
        lines.append(_record("cwd", self.cwd))
        lines.append(_record("program", self.program))
        lines += [_record("arg", argument) for argument in self.argv]
        lines += [_record("env", f"{name}={value}") for name, value in self.env.items()]
        prefix = 16 if self.isolated else 8
        for node, node_env in enumerate(self.node_envs):
            address = f"{node_address(node, self.isolated)}/{prefix}"
            lines.append(_record("node", f"{node_name(node)} {address}"))
            lines += [_record("env", f"{name}={value}") for name, value in node_env.items()]
        return b"".join(lines)


class Sandbox:
    """A running phantora-sandbox. Nothing of it survives us: its channel closes when we die."""

    def __init__(
        self, spec: SandboxSpec, stdout: int | None = None, stderr: int | None = None
    ) -> None:
        """Starts the helper. `stdout`, `stderr`: descriptors for the job (default: our own). Raises
        LaunchError when that is impossible."""
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = os.memfd_create("phantora-spec")  # no file: others must not read the environment
        try:
            with os.fdopen(os.dup(memory), "wb") as file:
                file.write(spec.encode())
            # a session of its own: Ctrl-C reaches only us, and we pass it on once
            self.process = subprocess.Popen(
                [SANDBOX, "run", f"/proc/self/fd/{memory}", str(theirs.fileno())],
                pass_fds=(memory, theirs.fileno()),
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            self.channel.close()
            raise LaunchError(cannot_start("phantora-sandbox", error)) from error
        finally:
            os.close(memory)
            theirs.close()

    def receive(self) -> Message | None:
        """The next message, None when the sandbox has ended. Blocks."""
        try:
            data = self.channel.recv(_MESSAGE_MAX)
        except ConnectionResetError:
            return None
        return parse_message(data) if data else None

    def _send(self, text: str) -> None:
        try:
            self.channel.send(text.encode())
        except OSError:
            pass  # it has ended, and its nodes with it

    def signal(self, number: signal.Signals, node: int | None = None) -> None:
        """Signals the command's process group on one node, or on all."""
        self._send(f"signal {'all' if node is None else node} {int(number)}")

    def kill(self, node: int | None = None) -> None:
        """Kills all processes of one node, or of all."""
        self._send(f"kill {'all' if node is None else node}")

    def close(self, timeout_s: float) -> None:
        """Waits until the helper has ended, and kills it after `timeout_s`. Its nodes end with
        it."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.channel.close()
