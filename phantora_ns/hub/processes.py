"""The job's processes and their threads, as the kernel reports them.

Why it exists: whether somebody can still act (hub/stillness.py) is a question about all threads of the
job: ranks, their workers, agents, and whoever runs the store. /proc answers it, from outside. Reading
a thread takes about 20 us, so this is done only when the hub cannot go on otherwise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from phantora_ns.hub.waits import Wait, parse, stack_pointer

NAMED_WATCHERS = frozenset({"pt_nccl_watchdg", "pt_nccl_heartbt"})
"""Threads that PyTorch names, which only watch."""
RETRIES = 3
"""How often to look again at a thread that is awake but only looks whether it should end."""
RETRY_S = 1e-4

_SWITCHES = b"\nvoluntary_ctxt_switches:\t"
ENDED = b"ZXx"
"""States of a process or a thread that has ended."""


class Stat(NamedTuple):
    """A process or a thread, as its `stat` in /proc shows it (proc(5)). `status`: how it has ended, as
    `wait` gives it."""

    name: bytes
    state: bytes
    parent: int
    status: int


class Thread(NamedTuple):
    """A thread at one look. `switches`: how often it has gone to sleep, all its life. `slept`: its
    stack pointer when it was last seen asleep, and what it waited for then."""

    name: str
    wait: Wait
    switches: int
    slept: tuple[int, Wait | None]


class Process:
    """One process and its threads, as they were at the last look."""

    __slots__ = ("pid", "threads", "children", "hidden", "_cpu_ns")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.threads: dict[int, Thread] = {}
        self.children: list[int] = []
        self.hidden = False
        """Whether the kernel does not show what its threads wait for. All of them then count as
        waiting for an event."""
        self._cpu_ns: int | None = -1

    def look(self) -> Iterator[tuple[int, Thread]]:
        """Looks at the threads, one after another. Raises OSError when the process has ended.

        A thread that has not been awake since the last look is waiting for the same as then.
        """
        cpu_ns = cpu_time_ns(self.pid)
        ran = cpu_ns is None or cpu_ns != self._cpu_ns
        folder = f"/proc/{self.pid}/task"
        tids = [int(name) for name in os.listdir(folder)]
        for tid in tids:
            before = self.threads.get(tid)
            thread = self._thread(f"{folder}/{tid}", tid, before)
            if thread is None:
                self.threads.pop(tid, None)
                continue
            self.threads[tid] = thread
            yield tid, thread
        if ran:
            for tid in self.threads.keys() - set(tids):
                del self.threads[tid]
            self.children = _children(folder, tids)
        self._cpu_ns = cpu_ns

    def _thread(self, folder: str, tid: int, before: Thread | None) -> Thread | None:
        """One thread; None when it has ended."""
        for _ in range(RETRIES):
            try:
                name, state, switches = _status(f"{folder}/status")
                if state in ENDED:
                    return None
                thread = Thread(name, Wait.NONE, switches, before.slept if before else (0, None))
                if state == b"S":
                    if before and before.switches == switches and before.wait is not Wait.NONE:
                        return before
                    thread = self._asleep(folder, tid, thread)
            except (FileNotFoundError, ProcessLookupError):
                return None
            if thread.wait is not Wait.NONE or before is None or before.wait is not Wait.PERIODIC:
                break
            time.sleep(RETRY_S)
        return thread

    def _asleep(self, folder: str, tid: int, thread: Thread) -> Thread:
        """A sleeping thread, with what it waits for."""
        try:
            with open(f"{folder}/syscall") as file:
                line = file.read()
        except PermissionError:
            self.hidden = True
            return thread._replace(wait=Wait.EVENT)
        stack, known = thread.slept
        if stack != stack_pointer(line):
            known = None
        wait = parse(line, tid == self.pid, self._memory, known)
        if wait is Wait.NONE:
            return thread
        return thread._replace(wait=wait, slept=(stack_pointer(line), wait))

    def _memory(self, address: int, size: int) -> bytes:
        memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(memory, size, address)
        finally:
            os.close(memory)


def read_stat(pid: int, tid: int | None = None) -> Stat:
    """A process, or one of its threads. Raises OSError when it is gone."""
    with open(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat", "rb") as file:
        # the name may hold any byte, so it ends at the last parenthesis
        name, _, rest = file.read().partition(b"(")[2].rpartition(b") ")
    state, parent, *_, status = rest.split()
    return Stat(name, state, int(parent), int(status))


def parent_of(pid: int) -> int:
    """The PID of a process's parent; 0 when there is none, or the process has ended."""
    try:
        return read_stat(pid).parent
    except OSError:
        return 0


def cpu_time_ns(pid: int) -> int | None:
    """CPU time of all threads of a process; None when it is gone. Clock number: CPUCLOCK_SCHED of
    linux/posix-timers.h."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return None


def active_ns(pid: int, tid: int) -> int | None:
    """How long a thread has run and waited for a processor, all its life; None when it has ended, or
    the kernel does not say (CONFIG_SCHED_INFO)."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            running, waiting, _ = file.read().split()
    except (OSError, ValueError):
        return None
    return int(running) + int(waiting)


def _status(path: str) -> tuple[str, bytes, int]:
    """Name, state and voluntary context switches of a thread."""
    with open(path, "rb") as file:
        text = file.read()
    name = text[6 : text.index(b"\n")].decode(errors="replace")
    at = text.index(b"\nState:\t") + 8
    switches = text.index(_SWITCHES) + len(_SWITCHES)
    return name, text[at : at + 1], int(text[switches : text.index(b"\n", switches)])


def _children(folder: str, tids: list[int]) -> list[int]:
    """A process's children. Kernels without CONFIG_PROC_CHILDREN do not list them."""
    found: list[int] = []
    for tid in tids:
        try:
            with open(f"{folder}/{tid}/children") as children:
                found += map(int, children.read().split())
        except OSError:
            continue
    return found
