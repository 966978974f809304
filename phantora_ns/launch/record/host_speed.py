"""How fast this machine is while a run measures host time, against the reference machine.

Why it exists: ranks bring what they measure to the speed of the reference machine. So the probe
(host_probe.py) runs beside them, on the same cores and beside the same load, and they read its mean from
RUN_DIR/host.smp. Rule: a sample costs the launcher's loop a few ms, at most 5 % of one core.
"""

from __future__ import annotations

import mmap
import statistics
import struct
from pathlib import Path

from phantora_ns.protocol import HOST_SAMPLES_FILE, HOST_SAMPLES_HEADER_AT

REFERENCE_NS = 1_620_000
"""What the probe takes on the reference machine, an H200 server
(docs/host-time.md#the-speed-of-a-machine)."""
EVERY_S = 0.1
_FAR = 4
"""What takes so many times the median is an interruption."""


class HostSpeed:
    """The probe's samples of one run."""

    def __init__(self, run_dir: Path) -> None:
        """Raises OSError."""
        with open(run_dir / HOST_SAMPLES_FILE, "r+b") as file:
            self._file = mmap.mmap(file.fileno(), 0)
        self._samples: list[int] = []
        self._beside_ranks = False

    def look(self) -> None:
        """One more sample. Those from before the first rank measured give way to later ones."""
        from phantora_ns.launch.record.host_probe import probe  # only a first run needs it

        if not self._beside_ranks and self._read("measuring"):
            self._beside_ranks = True
            self._samples.clear()
        self._samples.append(probe())
        far = _FAR * statistics.median(self._samples)
        usual = [sample for sample in self._samples if sample <= far]
        struct.pack_into(
            "=Q", self._file, HOST_SAMPLES_HEADER_AT["probe_ns"], sum(usual) // len(usual)
        )

    def _read(self, field: str) -> int:
        return int(struct.unpack_from("=Q", self._file, HOST_SAMPLES_HEADER_AT[field])[0])

    def close(self) -> None:
        """The file keeps the last mean."""
        self._file.close()
