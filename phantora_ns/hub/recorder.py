"""Writes what leaders measure into RUN_DIR/recording.sqlite.

Why it exists: a leader's samples must survive a crash of the job. A full disk may cost the recording,
but not the job. The file is created with the first measurement; hub.json reports its state. The
launcher decides where the recording is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phantora_ns.kernels.database import durations, records
from phantora_ns.kernels.database.host_table import joined
from phantora_ns.kernels.database.recording import Recording
from phantora_ns.kernels.signature import SignatureError

FILE = "recording.sqlite"
FLUSH_MS = 1000


class Recorder:
    """The recording of one run. `meta` as for kernels.recording.Recording: the GPU model and where
    the run takes place."""

    def __init__(self, path: Path, meta: Mapping[str, Any]) -> None:
        self.path = path
        self.problem: str | None = None
        """Why the recording is missing or incomplete; None without a problem."""
        self.samples = 0
        self._meta = dict(meta)
        self._recording: Recording | None = None
        self._seen: set[bytes] = set()
        self.host_recorded = False
        """Whether a leader has reported its host's costs of calls."""
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
        """Adds samples of a signature. The first ones were taken with the GPU stopped around them
        (docs/leading.md).

        Never raises for a file that cannot be written; `problem` reports that. Raises
        SignatureError for what no file can keep.
        """
        data = records.pack(kind, fields)
        records.pack_context(context)
        try:
            durations.check(durations_ns)
        except ValueError as error:
            raise SignatureError(str(error)) from None
        first = data not in self._seen
        self._seen.add(data)
        self.samples += len(durations_ns)
        self._write(
            lambda recording: recording.add(kind, fields, context, durations_ns, first=first)
        )

    def host(self, costs: Mapping[str, Any], leads: bool) -> None:
        """Adds a process's costs on its host. A leader reports costs of a real driver, which replace
        those of all other processes. Those of the others add up.

        Raises DatabaseError for an invalid HOST message.
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
        """Whether a file is open that may hold back samples until the next `flush`."""
        return self._recording is not None and self.problem is None

    def flush(self) -> None:
        """Writes samples that have waited long enough. Call it at most FLUSH_MS after samples
        came."""
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
