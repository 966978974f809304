"""Compute slowed by communication on the same GPU: how long work takes, given when communication ran beside it.

Why it exists: DESIGN section 7. While a communication kernel is active it holds multiprocessors and memory bandwidth, so
compute on that GPU proceeds at a lower rate. A piece of work is `work` ns long alone and `work + drag` ns when communication
runs beside all of it; `drag` is a sum over its kernels, since each class of kernel suffers differently. Between the two the
work is a fluid: it advances at rate 1 alone, and at work / (work + drag) beside communication, however many communications
there are. All arithmetic is in integers, exact but for one rounding up at the end.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from sortedcontainers import SortedList

from phantora_ns.config import ConfigError, GpuModel


FOREVER_NS = 1 << 62


class Activity:
    """When communication ran on one GPU: a set of intervals [begin, end), each belonging to an owner.

    >>> activity = Activity()
    >>> activity.put("a", 100, 200)           # from when on anything changed
    100
    >>> activity.finish_ns(50, 100, 100)      # 50 alone; the 50 left take 100
    200
    >>> activity.finish_ns(50, 110, 110)      # 10 more, alone again
    210
    """

    __slots__ = ("_intervals", "_of", "_open", "_longest_ns", "_sequence")

    def __init__(self) -> None:
        self._intervals: SortedList = SortedList()  # (begin, sequence, end)
        self._of: dict[object, tuple[int, int, int]] = {}
        self._open: dict[object, int] = {}  # begins of what has no known end; few at a time
        self._longest_ns = 0
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._intervals)

    def put(self, owner: object, begin_ns: int, end_ns: int | None) -> int | None:
        """`owner`'s communication runs from begin_ns to end_ns (None: not known yet, so on and on); replaces what was known.

        Returns the first time at which anything changed, None when nothing did. O(log intervals + those without end).
        """
        old = self._of.pop(owner, None)
        old_begin_ns = self._open.pop(owner, None) if old is None else old[0]
        old_end_ns = FOREVER_NS if old is None else old[2]
        if old is not None:
            self._intervals.remove(old)
        if end_ns is None:
            self._open[owner] = begin_ns
            end_ns = FOREVER_NS
        else:
            self._sequence += 1
            entry = self._of[owner] = (begin_ns, self._sequence, end_ns)
            self._intervals.add(entry)
            self._longest_ns = max(self._longest_ns, end_ns - begin_ns)
        if old_begin_ns is None:
            return begin_ns
        if old_begin_ns != begin_ns:
            return min(old_begin_ns, begin_ns)
        return None if old_end_ns == end_ns else min(old_end_ns, end_ns)

    def finish_ns(self, begin_ns: int, work_ns: int, drag_ns: int) -> int:
        """When work that begins at `begin_ns` is done. O(log intervals + intervals beside the work)."""
        if not (self._intervals or self._open) or drag_ns <= 0 or work_ns <= 0:
            return begin_ns + work_ns
        slow = work_ns + drag_ns
        left = work_ns * slow  # in units of 1 / slow ns of work, so that both rates are whole numbers
        now = begin_ns
        open_ns = min(self._open.values(), default=FOREVER_NS)
        intervals = self._intervals.islice(self._intervals.bisect_left((begin_ns - self._longest_ns,)))
        for start, _, end in chain(intervals, ((open_ns, 0, FOREVER_NS),)):
            if end <= now:
                continue
            if start > open_ns:  # from then on there is communication for ever
                start, end = open_ns, FOREVER_NS
            if start > now:
                alone = (start - now) * slow
                if left <= alone:
                    break
                left -= alone
                now = start
            beside = (end - now) * work_ns
            if left <= beside:
                return now + -(-left // work_ns)
            left -= beside
            now = end
        return now + -(-left // slow)

    def forget(self, before_ns: int) -> None:
        """Drops intervals that ended by `before_ns`: no work that begins earlier will be asked about."""
        while self._intervals:
            first = self._intervals[0]
            if first[2] > before_ns:
                return
            del self._intervals[0]
        self._longest_ns = 0

    def release(self, owner: object) -> None:
        """`owner`'s interval will not change any more; it stays until forgotten."""
        self._of.pop(owner, None)  # what is over has an end


class Contention(NamedTuple):
    """How much longer things take beside each other on one GPU model: shares of their time alone (0.3: 30 % longer)."""

    memory: float      # memory-bound kernels, beside communication
    gemm: float        # matrix products and convolutions
    attention: float
    collective: float  # communication, beside compute

    @classmethod
    def of(cls, gpu: GpuModel) -> Contention:
        """From the `[contention]` table of the GPU model's file. Raises ConfigError when a share is missing or negative."""
        table = gpu.tables.get("contention")
        if table is None:
            raise ConfigError(f"{gpu.model}.toml", "contention", f"is missing; give the shares {', '.join(cls._fields)}")
        shares = []
        for name in cls._fields:
            text = str(table.get(name, ""))
            share = text.removesuffix("%")
            if share == text or not share.replace(".", "", 1).isdigit():
                raise ConfigError(f"{gpu.model}.toml", f"contention.{name}", 'is not of the form "30%"')
            shares.append(float(share) / 100)
        return cls(*shares)

    def drags_permille(self) -> tuple[int, int, int]:
        """By the class of a kernel (kernels/estimators/launch.py): memory-bound, compute-bound, attention."""
        return round(self.memory * 1000), round(self.gemm * 1000), round(self.attention * 1000)
