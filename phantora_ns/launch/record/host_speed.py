"""How fast this machine is while a run measures host time, against the reference machine.

Why it exists: ranks bring what they measure to the speed of the reference machine. So the probe
(host_probe.py) runs beside them, on the same cores and beside the same load, and they read its mean from
RUN_DIR/host.smp. Rule: a sample costs the launcher's loop a few ms, at most 5 % of one core.
"""

from __future__ import annotations

import bisect
import mmap
import statistics
from pathlib import Path

from phantora_ns.kernels.database.host_samples import Reference
from phantora_ns.protocol import HOST_SAMPLES_FILE, HOST_SAMPLES_HEADER_AT

REFERENCE = Reference(probe_ns=3_100_000, probe_again_ns=2_440_000)
"""A middle H200 server. Neither is what the probe takes there: a framework's code is slower on these servers than the
probe says. The first was chosen by calibration jobs, the second by what a tokenizer takes here and there
(docs/host-time.md#the-speed-of-a-machine)."""
REFERENCE_SCORE_NS = 3_040_000
"""Its CPU score. With it ten host-bound calibration jobs, as first runs charge them, agree with 84 real runs on eleven
servers whose score was measured beside them (docs/host-time.md#when-the-server-is-known)."""
EVERY_S = 0.1
_FAR = 4
"""What takes so many times the median is an interruption."""
_PROBE_NS, _AGAIN_NS, _MEASURING = (
    HOST_SAMPLES_HEADER_AT[field] // 8 for field in ("probe_ns", "probe_again_ns", "measuring")
)


def usual_mean(ordered: list[int]) -> int:
    """The mean of samples in ascending order, without interruptions. Of one sample or more. O(samples)."""
    usual = ordered[: bisect.bisect_right(ordered, _FAR * statistics.median(ordered))]
    return sum(usual) // len(usual)


class HostSpeed:
    """The probe's samples of one run."""

    def __init__(self, run_dir: Path) -> None:
        """Raises OSError."""
        with open(run_dir / HOST_SAMPLES_FILE, "r+b") as file:
            self._file = mmap.mmap(file.fileno(), 0)
        self._words = memoryview(self._file).cast("Q")
        self._first: list[int] = []
        self._second: list[int] = []
        """Of each pass, sorted: after an hour there are 36,000."""
        self._beside_ranks = False

    def look(self) -> None:
        """Takes one more sample. When the first rank begins to measure, earlier samples are dropped: there was
        another load."""
        from phantora_ns.launch.record.host_probe import probe  # only a first run needs it

        if not self._beside_ranks and self._words[_MEASURING]:
            self._beside_ranks = True
            self._first.clear()
            self._second.clear()
        passes = probe()
        bisect.insort(self._first, passes.first_ns)
        bisect.insort(self._second, passes.second_ns)
        # single stores, because ranks are reading; the first says that both are there
        self._words[_AGAIN_NS] = usual_mean(self._second)
        self._words[_PROBE_NS] = usual_mean(self._first)

    def close(self) -> None:
        """The file keeps the last mean."""
        self._words.release()
        self._file.close()
