"""Writes what leaders measure into RUN_DIR/recording.sqlite.

Why it exists: a leader's samples must survive a crash of the job, and a full disk must cost the
recording and not the job. The file appears with the first measurement; hub.json says what became of
it. The launcher decides who keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phantora_ns.kernels import signature
from phantora_ns.kernels.database.host_table import joined
from phantora_ns.kernels.database.recording import Recording

FILE = "recording.sqlite"
FLUSH_MS = 1000


class Recorder:
    """The recording of one run. `meta` as of kernels.recording.Recording: the GPU model and where
    the run takes place."""

    def __init__(self, path: Path, meta: Mapping[str, Any]) -> None:
        self.path = path
        self.problem: str | None = None
        """Why there is no recording, or only a part of one; None when all is well."""
        self.samples = 0
        self._meta = dict(meta)
        self._recording: Recording | None = None
        self._seen: set[bytes] = set()
        self.host_recorded = False
        """Whether a leader has reported what its host paid for calls."""
        self._leader: Mapping[str, Any] = {}
        self._others: Mapping[str, Any] = {}

    @property
    def signatures(self) -> int:
        """Signatures measured so far."""
        return len(self._seen)

    def measured(
        self,
        kind: int,
        fields: list[Any],
        context: list[Any] | None,
        durations_ns: list[int],
    ) -> None:
        """Takes samples of a signature; the first ones were taken with the GPU stopped around them
        (docs/leading.md).

        Never raises for a file that cannot be written: that is `problem`. Raises SignatureError.
        """
        data = signature.encode(kind, fields)
        first = data not in self._seen
        self._seen.add(data)
        self.samples += len(durations_ns)
        self._write(
            lambda recording: recording.add(kind, fields, context, durations_ns, first=first)
        )

    def host(self, costs: Mapping[str, Any], leads: bool) -> None:
        """Takes what a process paid on its host. A leader reports costs of a real driver, which
        replace those of all other processes; those of the others add up.

        Raises DatabaseError for what is no HOST message.
        """
        if leads:
            self._leader = joined([costs])
            self.host_recorded |= bool(self._leader.get("calls"))
        else:
            self._others = joined([self._others, costs])
        merged = {**self._others, **{name: value for name, value in self._leader.items() if value}}
        self._write(lambda recording: recording.host(merged))

    @property
    def open(self) -> bool:
        """Whether there is a file that may hold back samples until the next `flush`."""
        return self._recording is not None and self.problem is None

    def flush(self) -> None:
        """Writes what has waited for long enough; to be called FLUSH_MS after samples came, at the
        latest."""
        if self.open:
            self._write(lambda recording: recording.flush())

    def close(self) -> None:
        """Completes the file, if there is one."""
        if self._recording is not None:
            self._write(lambda recording: recording.close())
            self._recording = None

    def _write(self, action: Callable[[Recording], object]) -> None:
        if self.problem is not None:
            return
        try:
            if self._recording is None:
                self._recording = Recording(self.path, self._meta)
            action(self._recording)
        except (ValueError, OSError) as error:  # DatabaseError is a ValueError
            self.problem = str(error)
