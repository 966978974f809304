"""Ranks that end by a signal.

Why it exists: a process that the kernel kills cannot say so. Its parent reports a number, and often
which rank it was only among many other lines. The launcher says it in the run's last line, and the
report keeps it. The hub has a descriptor of each client's process, which tells how it ended. The first
that ends by a signal is named; the others follow from it. Nothing is noted when a rank failed by itself
before that, when the launcher ends the job, or when whoever started the rank has ended too: others
report these.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from phantora_ns.hub.processes import ENDED, parent_of, read_stat
from phantora_ns.hub.registry import Client
from phantora_ns.whole_file import replacing

ENDS = "ends"
"""A file in RUN_DIR: the launcher makes it before it ends the job."""
ERROR = "error"
"""A file in RUN_DIR: the first error of a rank, which the launcher adds to its last line (startup/sitecustomize.py)."""
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals by which torchrun and people ask for an end."""
WAITED_TRIES, WAITED_S = 3, 0.001
"""How often, and how long after another, to ask how a process has ended."""
TOGETHER_S = 0.1
"""Processes that are killed together, such as those of a node, end within this time."""
# linux/pidfd.h: struct pidfd_info, PIDFD_GET_INFO, PIDFD_INFO_EXIT (from Linux 6.15 on)
_INFO = struct.Struct("QQ11Ii")
_GET_INFO = 0xC000FF0B | _INFO.size << 16
_INFO_EXIT = 1 << 3


class Watched(NamedTuple):
    """A client's process, and the one that started it."""

    client: Client
    pid: int
    parent: int


class Deaths:
    """Watches the processes of clients. `keep(text)` keeps what happened for the report."""

    def __init__(self, run_dir: Path, keep: Callable[[str], None]) -> None:
        self._ends = run_dir / ENDS
        self._error = run_dir / ERROR
        self._keep = keep
        self._watched: dict[int, Watched] = {}
        self._failed = False
        """Whether a rank has failed since the job was started, or started again."""
        self._memory_kills = memory_kills()

    @cached_property
    def _epoll(self) -> select.epoll:
        """Made when it is needed: a hub that is not served watches nothing."""
        return select.epoll()

    def fileno(self) -> int:
        """A descriptor that is readable when a process has ended."""
        return self._epoll.fileno()

    def watch(self, client: Client) -> None:
        """Watches a client's process, if it can be seen."""
        pid = client.stats.owner()
        if not pid or pid == os.getpid():
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # it has ended, or the kernel refuses
            return
        if not self._watched:  # the job has been started again
            self._failed = False
        self._watched[descriptor] = Watched(client, pid, parent_of(pid))
        self._epoll.register(descriptor, select.EPOLLIN)

    def look(self) -> list[Client]:
        """Looks which processes have ended since the last call, and returns their clients. Keeps the name of
        the first that a signal ended."""
        ended = []
        for descriptor, _ in self._epoll.poll(0):
            watched = self._watched.pop(descriptor)
            status = _wait_status(descriptor, watched.pid)
            os.close(descriptor)
            ended.append(watched.client)
            if status and not self._failed:
                self._failed = True
                if os.WIFSIGNALED(status):
                    self._signaled(watched, os.WTERMSIG(status))
        return ended

    def close(self) -> None:
        """Closes all descriptors."""
        for descriptor in self._watched:
            os.close(descriptor)
        self._epoll.close()

    def _signaled(self, watched: Watched, number: int) -> None:
        if number in ASKED:
            return
        time.sleep(TOGETHER_S)
        if self._ends.exists() or not _reports(watched.parent):
            return
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        client = watched.client
        text = f"{client.name} was killed by {name}"
        self._keep(f"{text}; on node-{client.node}")
        # What the kernel killed for lack of memory, the launcher counts itself.
        if number == signal.SIGKILL and memory_kills() == self._memory_kills:
            text += "; another program sent it, or the kernel: see dmesg"
        if number in (signal.SIGKILL, signal.SIGXCPU):
            text += _cpu_limit(number)
        with suppress(OSError):  # the report has it in any case
            self._tell_first(text)

    def _tell_first(self, text: str) -> None:
        """Before an error of another rank, which may be quicker to say what follows from this. Raises OSError."""
        with suppress(FileNotFoundError):
            text += f"; {self._error.read_text(errors='replace')}"
        with replacing(self._error) as scratch:
            scratch.write_text(text)


def _cpu_limit(number: int) -> str:
    """What to add where a limit of CPU time may have been the reason, of which the kernel logs nothing. The hub
    has the limits that the job began with."""
    limit_s = resource.getrlimit(resource.RLIMIT_CPU)[number == signal.SIGKILL]
    if limit_s == resource.RLIM_INFINITY:
        return ""
    return f"; a process may use {limit_s} s of CPU time here: raise ulimit -t"


def memory_kills(events: Path = Path("/proc/vmstat")) -> int:
    """How many processes of this machine the kernel has killed for lack of memory since the machine
    started; 0 when the kernel does not count them."""
    try:
        words = events.read_text().split()
    except OSError:
        return 0
    counts = dict(zip(words[::2], words[1::2]))
    return int(counts.get("oom_kill", 0))


def _wait_status(descriptor: int, pid: int) -> int:
    """How a process has ended, as `wait` gives it; 0 when the kernel does not say.

    /proc says it until the process's parent has waited for it, the descriptor from then on. So the order
    of the two questions counts. Neither says it for a moment while the parent does."""
    for _ in range(WAITED_TRIES):
        try:
            stat = read_stat(pid)
            if stat.state == b"Z":
                return stat.status
        except OSError:
            pass
        try:
            request = _INFO.pack(_INFO_EXIT, *[0] * 13)
            answer = _INFO.unpack(fcntl.ioctl(descriptor, _GET_INFO, request))
        except OSError:  # a kernel before 6.15
            return 0
        if answer[0] & _INFO_EXIT:
            status: int = answer[-1]
            return status
        time.sleep(WAITED_S)
    return 0


def _reports(parent: int) -> bool:
    """Whether the process that started a rank lives and is the job's own. The launcher reports the
    end of what phantora-sandbox starts."""
    try:
        stat = read_stat(parent)
    except OSError:
        return False
    return stat.state not in ENDED and not stat.name.startswith(b"phantora-sandbo")
