"""How long compute takes when communication on the same GPU overlaps it.

Why it exists: an active communication kernel holds multiprocessors and memory bandwidth, so compute
on that GPU proceeds at a lower rate. A kernel takes `work` ns alone, and `work + contention` ns when
communication overlaps all of it. Each has its own share, so kernels are followed one by one (`Runs`).
Partial overlap is modelled as a fluid: a kernel advances at rate 1 alone, and at
work / (work + contention) during communication, however many communications there are. All
arithmetic is in integers, exact but for one rounding up at the end of each kernel.

What the model leaves out, and how much that is in the calibration steps:

- Compute slows a collective by one share, whatever compute it is, until its GPU waits for the
  collective's end. Whether there is compute, and how long it waits, is what came true in the last
  step (libintercept/time/beside.c, gaps.c). The collective is given one rate with which it ends when
  it should.
- A collective whose blocks find no free multiprocessor begins when a kernel ends. That is 0.2 ms
  later, a quarter of a kernel, where one collective follows another under a backward pass. Compute
  hides these delays.
- A GPU that is ahead of the others waits inside its collectives, which continue to slow its compute.
  Differences between GPUs are not modelled. In 8-GPU FSDP a fifth to a quarter of the collectives'
  time is such waiting.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from sortedcontainers import SortedList

FOREVER_NS = 1 << 62


class Runs(NamedTuple):
    """Kernels that run one after another: sums over the first 0, 1, 2, ... of them, of their times
    alone and of those during communication."""

    alone: list[int]
    slow: list[int]

    @classmethod
    def of(cls, works: Iterable[int], contentions: Iterable[int]) -> Runs:
        """From each kernel's time alone, and what communication adds to it: nothing to a kernel that takes
        no time, because none of it overlaps. O(kernels)."""
        works = list(works)
        if 0 in works:
            contentions = [added if work else 0 for work, added in zip(works, contentions)]
        alone = list(accumulate(works, initial=0))
        added = accumulate(contentions, initial=0)
        return cls(alone, list(map(int.__add__, alone, added)))


class Activity:
    """When communication ran on one GPU: a set of intervals [begin, end), each belonging to an
    owner.

    Their union is kept beside them, and made anew from where it changed when it is asked for: work is looked
    at far more often than communication moves, and in a pipeline many intervals are long.

    >>> activity = Activity()
    >>> activity.put("a", 100, 200)           # returns the first time that changed
    100
    >>> activity.finish_ns(50, 100, 100)      # 50 alone; the 50 left take 100
    200
    >>> activity.finish_ns(50, 110, 110)      # the last 10 are alone again
    210
    """

    __slots__ = ("_intervals", "_of", "_open", "_sequence", "_starts", "_ends", "_stale_ns")

    def __init__(self) -> None:
        self._intervals: SortedList = SortedList()  # (begin, sequence, end)
        self._of: dict[object, tuple[int, int, int]] = {}
        self._open: dict[object, int] = {}  # begins of intervals with no known end; only a few
        self._sequence = 0
        # The union of the intervals that end, in order; no two touch. Right up to `_stale_ns`, None when
        # right everywhere.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._stale_ns: int | None = None

    def __len__(self) -> int:
        return len(self._intervals)

    def put(self, owner: object, begin_ns: int, end_ns: int | None) -> int | None:
        """Sets when `owner`'s communication runs: from begin_ns to end_ns, or without an end while
        end_ns is None (not known yet). Replaces what was set before.

        Returns the first time at which anything changed, None when nothing did. O(log intervals +
        those without end).
        """
        old = self._of.pop(owner, None)
        old_begin_ns = self._open.pop(owner, None) if old is None else old[0]
        old_end_ns = FOREVER_NS if old is None else old[2]
        if old is not None:
            self._intervals.remove(old)
            self._spoil(old[0])
        if end_ns is None:
            self._open[owner] = begin_ns
            end_ns = FOREVER_NS
        else:
            self._sequence += 1
            entry = self._of[owner] = (begin_ns, self._sequence, end_ns)
            self._intervals.add(entry)
            self._spoil(begin_ns)
        if old_begin_ns is None:
            return begin_ns
        if old_begin_ns != begin_ns:
            return min(old_begin_ns, begin_ns)
        return None if old_end_ns == end_ns else min(old_end_ns, end_ns)

    def finish_ns(self, begin_ns: int, work_ns: int, contention_ns: int) -> int:
        """When one kernel that begins at `begin_ns` is done."""
        return self.finish_runs_ns(begin_ns, Runs.of([work_ns], [contention_ns]))

    def finish_runs_ns(self, begin_ns: int, runs: Runs) -> int:
        """When kernels are done that run one after another, the first from `begin_ns` on. O(log
        intervals + parts of their union that overlap the kernels x log kernels), and once after each
        change O(intervals from there on)."""
        if self._stale_ns is not None:
            self._unite(self._stale_ns)
        starts, ends = self._starts, self._ends
        first = bisect_right(ends, begin_ns)
        start_ns = starts[first] if first < len(starts) else FOREVER_NS
        open_ns = min(self._open.values()) if self._open else FOREVER_NS
        alone_ns, slow_ns = begin_ns + runs.alone[-1], begin_ns + runs.slow[-1]
        if alone_ns <= min(start_ns, open_ns):
            return alone_ns
        if open_ns <= begin_ns or (start_ns <= begin_ns and slow_ns <= ends[first]):
            return slow_ns
        spans = ((starts[at], 0, ends[at]) for at in range(first, len(starts)))
        return stretched_ns(begin_ns, runs, len(runs.alone) - 1, spans, open_ns)

    def forget(self, before_ns: int) -> None:
        """Drops intervals that ended by `before_ns`. No later call may ask about work that begins
        earlier."""
        while self._intervals and self._intervals[0][2] <= before_ns:
            del self._intervals[0]
        over = bisect_right(self._ends, before_ns)
        del self._starts[:over], self._ends[:over]

    def release(self, owner: object) -> None:
        """Marks the interval of `owner` as final. It stays until it is forgotten."""
        self._of.pop(owner, None)  # an interval that is final has an end

    def _spoil(self, from_ns: int) -> None:
        """The union is not right any more from then on."""
        if self._stale_ns is None or from_ns < self._stale_ns:
            self._stale_ns = from_ns

    def _unite(self, from_ns: int) -> None:
        """Makes the union right again from `from_ns` on. No interval reaches from one of its parts into
        another, so the parts that end before stay, and what is left begins after them."""
        starts, ends = self._starts, self._ends
        keep = bisect_left(ends, from_ns)
        del starts[keep:], ends[keep:]
        after = (ends[-1], FOREVER_NS) if ends else (-1,)
        last_ns = -1
        for begin_ns, _, end_ns in self._intervals.irange(after):
            if begin_ns >= end_ns:  # its end is not up to date yet
                continue
            if begin_ns > last_ns:
                starts.append(begin_ns)
                ends.append(end_ns)
                last_ns = end_ns
            elif end_ns > last_ns:
                ends[-1] = last_ns = end_ns
        self._stale_ns = None


def stretched_ns(
    begin_ns: int,
    runs: Runs,
    count: int,
    spans: Iterable[tuple[int, int, int]],
    open_ns: int = FOREVER_NS,
) -> int:
    """When the first `count` kernels of `runs` are done, the first of which begins at `begin_ns` and
    each other one when the one before it has ended.

    `spans`: (begin, anything, end) of communication, in order of begin. From `open_ns` on,
    communication never ends. O(spans that overlap the kernels x log kernels).

    >>> stretched_ns(0, Runs.of([10], [5]), 1, [(4, 0, 10)])  # 4 ns alone, 6 at two thirds, 2 alone
    12
    >>> stretched_ns(0, Runs.of([4, 6], [4, 3]), 2, [(4, 0, 7)])  # one alone, one covered by a third
    11
    """
    alone, slow = runs
    now, done = begin_ns, 0
    merged = _merged(spans, open_ns)
    start, end = next(merged)
    while done < count:
        while end <= now:
            start, end = next(merged)
        # All kernels that end before anything changes.
        sums, change = (alone, start) if now < start else (slow, end)
        first, done = done, bisect_right(sums, sums[done] + change - now, done, count + 1) - 1
        if done > first:
            now += sums[done] - sums[first]
            continue
        # One during which it changes.
        work = alone[done + 1] - alone[done]
        slow_ns = slow[done + 1] - slow[done]
        left = work * slow_ns  # in units of 1 / slow_ns ns of work
        while True:
            rate, until = (slow_ns, start) if now < start else (work, end)
            if left <= (until - now) * rate:
                now += -(-left // rate)
                break
            left -= (until - now) * rate
            now = until
            if until == end:
                start, end = next(merged)
        done += 1
    return now


def _merged(spans: Iterable[tuple[int, int, int]], open_ns: int) -> Iterator[tuple[int, int]]:
    """The union of the spans and of what begins at `open_ns` and never ends, in order. Never ends
    itself."""
    start = end = -1
    for begin, _, stop in spans:
        if begin >= open_ns:
            break
        if begin <= end:
            end = max(end, stop)
        else:
            if end > start:
                yield start, end
            start, end = begin, stop
    if end >= open_ns:
        open_ns = start
    elif end > start:
        yield start, end
    yield open_ns, FOREVER_NS
    while True:
        yield FOREVER_NS, FOREVER_NS
