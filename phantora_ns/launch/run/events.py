"""One loop over everything that can happen to a run: descriptors, signals, deadlines.

Why it exists: a run waits for many things at once, and a signal must end it at any moment. Signals
arrive as bytes on a pipe, so that they are handled in order with everything else and never in the
middle of something.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO, Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


Source = int | IO[bytes] | _HasDescriptor


class Interrupted(Exception):
    """A signal came in `EventLoop.interruptible`; `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class EventLoop:
    """Calls what has been registered for each thing that happens. Single-threaded."""

    def __init__(self) -> None:
        self._interruptible = False
        self._selector = selectors.DefaultSelector()
        self._deadlines: dict[str, tuple[float, Callable[[], None]]] = {}
        self._signal_reader = -1

    @contextlib.contextmanager
    def signals(self, action: Callable[[int], None]) -> Iterator[None]:
        """While it is entered, `action(number)` is called for each of SIGNALS. Signals that were
        ignored before, as under nohup, stay ignored."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        def on_signal(number: int, _frame: FrameType | None) -> None:
            # Elsewhere the byte on the pipe is what counts.
            if self._interruptible:
                self._interruptible = False
                raise Interrupted(number)

        old_handlers = {
            number: signal.signal(number, on_signal)
            for number in SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        old_descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._signal_reader = reader
        self.watch(reader, lambda: self._on_signals(action))
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_descriptor)
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(reader)
            os.close(writer)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """While it is entered, a signal raises Interrupted: for work that does not return to the
        loop, such as building tables or waiting for a lock."""
        if self._signal_reader >= 0:
            for number in self.wait_for_signals(0)[:1]:  # it came before
                raise Interrupted(number)
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def watch(self, source: Source, action: Callable[[], None]) -> None:
        """Calls `action` whenever `source` can be read."""
        self._selector.register(source, selectors.EVENT_READ, action)

    def unwatch(self, source: Source) -> None:
        """Ends a `watch`."""
        self._selector.unregister(source)

    def after(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        """Calls `action` once, in `seconds` of real time. A later deadline of the same name
        replaces it."""
        self._deadlines[name] = (time.monotonic() + seconds, action)

    def cancel(self, name: str) -> None:
        """Forgets a deadline, if there is one."""
        self._deadlines.pop(name, None)

    def cancel_all(self) -> None:
        """Forgets all deadlines."""
        self._deadlines.clear()

    def step(self) -> None:
        """Waits until something happens, and acts on it."""
        soonest = min((when for when, _ in self._deadlines.values()), default=None)
        timeout = None if soonest is None else max(0.0, soonest - time.monotonic())
        for key, _ in self._selector.select(timeout):
            key.data()
        for name, (when, action) in list(self._deadlines.items()):
            if when <= time.monotonic() and self._deadlines.get(name) == (when, action):
                del self._deadlines[name]
                action()

    def wait_for_signals(self, timeout_s: float) -> list[int]:
        """The signals that come within `timeout_s`, without calling what is registered for them."""
        if not select.select([self._signal_reader], [], [], timeout_s)[0]:
            return []
        return [number for number in os.read(self._signal_reader, 64) if number in SIGNALS]

    def _on_signals(self, action: Callable[[int], None]) -> None:
        for number in self.wait_for_signals(0):
            action(number)
