"""How fast a host is while a job runs on it: the probe of Python and the CPU score, over and over.

Why it exists: one job takes up to twice as long on one server as on another of the same kind. A real step that
carries its host's speed says what a cluster file's `server.cpu_score` can explain, and what it cannot.
Rule: it takes at most 5 % of one core, and no core of the job on a server with more cores than ranks.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
from types import TracebackType

from phantora_ns.calibrate.host import LIBRARY
from phantora_ns.launch.record.host_probe import probe
from phantora_ns.launch.record.host_speed import usual_mean

EVERY_S = 0.1


class Beside:
    """While it is entered, a thread measures. Raises OSError without the compiled workload."""

    def __init__(self) -> None:
        self._score = ctypes.CDLL(str(LIBRARY)).phantora_host_score
        self._score.restype = ctypes.c_uint64
        self._first: list[int] = []
        self._second: list[int] = []
        self._scores: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._ended.wait(EVERY_S):
            passes = probe()
            self._first.append(passes.first_ns)
            self._second.append(passes.second_ns)
            self._scores.append(self._score())

    def found(self) -> dict[str, int | list[int]]:
        """In ns, of the probe's first pass, its second (`probe_ns`) and the score: the mean as a first run takes it,
        without interruptions, and [least, median, most] of all samples. Nothing before the first sample."""
        found: dict[str, int | list[int]] = {}
        every = {"first_ns": self._first, "probe_ns": self._second, "score_ns": self._scores}
        for name, samples in every.items():
            if samples:
                ordered = sorted(samples)
                found[name] = usual_mean(ordered)
                found[f"{name}_range"] = [
                    ordered[0],
                    round(statistics.median(ordered)),
                    ordered[-1],
                ]
        return found
