"""What a sleeping thread waits for, from the system call that it is in.

Why it exists: a rank that sleeps for a time will act again by itself; one that waits for an event
acts only after somebody else has (hub/stillness.py). `/proc/PID/task/TID/syscall` tells them apart.
A wait for an event with a time-out is a wait for the event: time-outs of the job count real time in
any case.
"""

from __future__ import annotations

import enum
import os
import struct
import time
from collections.abc import Callable

Reader = Callable[[int, int], bytes]
"""(address, size) -> bytes of the thread's memory. Raises OSError."""

PERIOD_NS = 200_000_000
"""A thread that waits for an event at most this long wakes up again and again, to look whether it
should end. PyTorch's NCCL watchdog does so every 100 ms, gloo's threads every 10 ms."""
PAUSE_NS = 1_000_000_000
"""A main thread that waits on a condition for at most this long may use it as a sleep
(`threading.Event().wait(0.1)`)."""


class Wait(enum.Enum):
    """What ends the sleep of a thread."""

    EVENT = "event"
    """Another thread."""
    PERIODIC = "periodic"
    """Another thread. Until then it wakes up often and does nothing."""
    TIME = "time"
    """Time alone."""
    NONE = "none"
    """It is awake."""


# System calls of x86-64 (asm/unistd_64.h) that can wait for a time; all others wait for events.
_SLEEPS = {35, 230}  # nanosleep, clock_nanosleep
_RESTARTED = 219  # a wait with a time-out goes on after SIGSTOP and SIGCONT
_MILLISECONDS = {7: 2, 232: 3, 281: 3}  # poll, epoll_wait, epoll_pwait: argument of the time-out
_INTERVALS = {23: 4, 270: 4, 271: 2, 441: 3}  # select, pselect6, ppoll, epoll_pwait2: its address
_SELECT = 23
_DESCRIPTORS = {7: 1, 23: 0, 270: 0, 271: 1}  # argument that counts the descriptors
_FUTEX = 202
_FUTEX_WAIT = 0
_FUTEX_REALTIME = 256  # FUTEX_CLOCK_REALTIME
_X86_64 = os.uname().machine == "x86_64"


def parse(line: str, main: bool, read: Reader, before: Wait | None = None) -> Wait:
    """The wait that a line of /proc/PID/task/TID/syscall shows. `main`: of a process's main thread.
    `before`: what the thread waited for before its wait was restarted, if known."""
    fields = line.split()
    if fields == ["running"]:
        return Wait.NONE
    if len(fields) < 9:  # asleep outside of a system call
        return Wait.EVENT
    number = int(fields[0])
    arguments = [int(field, 16) for field in fields[1:7]]
    if not _X86_64:
        return Wait.EVENT
    if number in _SLEEPS:
        return Wait.TIME
    if number == _RESTARTED:
        return before or Wait.TIME
    if number == _FUTEX:
        return _condition(arguments, main, read)
    left_ns = _left_ns(number, arguments, read)
    if left_ns is None:
        return Wait.EVENT
    if number in _DESCRIPTORS and not arguments[_DESCRIPTORS[number]]:
        return Wait.TIME
    return Wait.PERIODIC if left_ns <= PERIOD_NS else Wait.EVENT


def stack_pointer(line: str) -> int:
    """The stack pointer in such a line; 0 when there is none."""
    fields = line.split()
    return int(fields[-2], 16) if len(fields) > 2 else 0


def _condition(arguments: list[int], main: bool, read: Reader) -> Wait:
    """A futex, of which conditions, semaphores and locks are made."""
    if not arguments[3]:
        return Wait.EVENT
    try:
        seconds, ns = struct.unpack("=qq", read(arguments[3], 16))
    except (OSError, struct.error):
        return Wait.PERIODIC
    left_ns = seconds * 1_000_000_000 + ns
    if arguments[1] & 127 != _FUTEX_WAIT:  # all others name a moment
        realtime = arguments[1] & _FUTEX_REALTIME
        clock = time.CLOCK_REALTIME if realtime else time.CLOCK_MONOTONIC
        left_ns -= time.clock_gettime_ns(clock)
    if main:
        return Wait.TIME if left_ns <= PAUSE_NS else Wait.EVENT
    return Wait.PERIODIC if left_ns <= PERIOD_NS else Wait.EVENT


def _left_ns(number: int, arguments: list[int], read: Reader) -> int | None:
    """The time-out of a wait for descriptors; None without one."""
    if number in _MILLISECONDS:
        milliseconds = arguments[_MILLISECONDS[number]] & 0xFFFFFFFF
        return None if milliseconds & 0x80000000 else milliseconds * 1_000_000
    if number not in _INTERVALS:
        return None
    address = arguments[_INTERVALS[number]]
    if not address:
        return None
    try:
        seconds, rest = struct.unpack("=qq", read(address, 16))
    except (OSError, struct.error):
        return 0
    return int(seconds * 1_000_000_000 + rest * (1000 if number == _SELECT else 1))
