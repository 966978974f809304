"""A terminal of the job's own, whose output we copy to the real one.

Why it exists: a progress line and a job that prints cannot share a terminal unless one of them
knows of the other. So the job writes to a pty, and formats its output as for any terminal. Bytes
are not changed: only the real terminal processes output.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import termios

_STDOUT, _STDERR = 1, 2
_READ_BYTES = 65536


class JobTerminal:
    """A pty whose contents go to the terminal on stderr. `stdout`, `stderr`: what the job is to be
    started with."""

    def __init__(self) -> None:
        """Raises OSError when there is no pty to be had."""
        self.controller, self._job_end = os.openpty()
        os.set_blocking(self.controller, False)
        modes = termios.tcgetattr(self._job_end)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(self._job_end, termios.TCSANOW, modes)
        same = os.isatty(_STDOUT) and os.fstat(_STDOUT).st_rdev == os.fstat(_STDERR).st_rdev
        self.stdout: int | None = self._job_end if same else None
        self.stderr: int = self._job_end
        self.at_line_start = True
        self._size = b""
        self.copy_size()

    def copy_size(self) -> int:
        """Gives the job's terminal the size of the real one, which the user may have changed.
        Returns the number of columns."""
        size = fcntl.ioctl(_STDERR, termios.TIOCGWINSZ, bytes(8))
        if size != self._size:
            fcntl.ioctl(self.controller, termios.TIOCSWINSZ, size)
            self._size = size
        return struct.unpack("HHHH", size)[1] or 80

    def read(self) -> bytes:
        """What the job has printed; empty when there is nothing (more)."""
        try:
            return os.read(self.controller, _READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:  # on Linux: the other end is closed
                raise
            return b""

    def write(self, data: bytes) -> None:
        """Writes everything to the real terminal. A closed terminal is no failure."""
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(_STDERR, data) :]

    def close_job_end(self) -> None:
        """Closes our own descriptor of the job's end."""
        if self._job_end >= 0:
            os.close(self._job_end)
            self._job_end = -1

    def close(self) -> None:
        """Frees the pty."""
        self.close_job_end()
        os.close(self.controller)
