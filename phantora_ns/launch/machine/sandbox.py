"""Why it exists: speaks with phantora-sandbox; its spec format is launcher/spec.c, its messages
launcher/supervise.c.

Rule: policy (whom to stop, when) is the runner's; this is the mechanism.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phantora_ns.launch.command.command import node_address, node_name
from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine.environment import SANDBOX

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


def write_spec(
    *,
    program: str,
    argv: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    node_envs: Sequence[Mapping[str, str]],
    isolated: bool,
    fake_gpus: int = 0,
    hosts: str | None = None,
    remove: str | None = None,
    steps: bool = False,
) -> bytes:
    """The description of a cluster and of the command on each node, in the format of
    launcher/spec.c."""
    lines = [b"phantora-sandbox 1\n", _record("isolation", "namespaces" if isolated else "none")]
    if steps:
        lines.append(_record("steps", "yes"))
    if remove:
        lines.append(_record("remove", remove))
    if hosts:
        lines.append(_record("hosts", hosts))
    lines += [
        _record("fake-gpus", str(fake_gpus)),
        _record("cwd", cwd),
        _record("program", program),
    ]
    lines += [_record("arg", argument) for argument in argv]
    lines += [_record("env", f"{name}={value}") for name, value in env.items()]
    for node, node_env in enumerate(node_envs):
        lines.append(
            _record(
                "node", f"{node_name(node)} {node_address(node, isolated)}/{16 if isolated else 8}"
            )
        )
        lines += [_record("env", f"{name}={value}") for name, value in node_env.items()]
    return b"".join(lines)


class Sandbox:
    """A running phantora-sandbox. Nothing of it survives us: its channel closes when we die."""

    def __init__(self, spec: bytes, stdout: int | None = None, stderr: int | None = None) -> None:
        """Starts the helper, with our own output descriptors unless told others. Raises LaunchError
        when that is impossible."""
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = os.memfd_create("phantora-spec")  # the environment in it is nobody else's business
        try:
            with os.fdopen(os.dup(memory), "wb") as file:
                file.write(spec)
            self.process = subprocess.Popen(
                [SANDBOX, "run", f"/proc/self/fd/{memory}", str(theirs.fileno())],
                pass_fds=(memory, theirs.fileno()),
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )  # Ctrl-C reaches us alone, and is forwarded once
        except OSError as error:
            self.channel.close()
            raise LaunchError(
                f"cannot start phantora-sandbox: {error.strerror}; {SANDBOX}; run make build"
            ) from error
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

    def _order(self, text: str) -> None:
        try:
            self.channel.send(text.encode())
        except OSError:
            pass  # it has ended: what was ordered is done

    def signal(self, number: signal.Signals, node: int | None = None) -> None:
        """Signals the command's process group on one node, or on all."""
        self._order(f"signal {'all' if node is None else node} {int(number)}")

    def kill(self, node: int | None = None) -> None:
        """Ends one node, or all, at once and whole."""
        self._order(f"kill {'all' if node is None else node}")

    def close(self, timeout_s: float) -> None:
        """Waits for the helper's end, and forces it after `timeout_s`; its nodes end with it."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.channel.close()
