"""How long compute takes when communication on the same GPU overlaps it.

Why it exists: an active communication kernel holds multiprocessors and memory bandwidth, so compute
on that GPU proceeds at a lower rate. A piece of work takes `work` ns alone, and `work + contention`
ns when communication overlaps all of it. `contention` is a sum over its kernels, because each class
of kernel is slowed differently. Partial overlap is modelled as a fluid: the work advances at rate 1
alone, and at work / (work + contention) during communication, however many communications there are.
All arithmetic is in integers, exact but for one rounding up at the end.

What the model leaves out, and how much that is in the calibration steps:

- Compute slows a collective by one share from its start to its end if compute is expected beside it
  (libintercept/time/beside.c). It does not matter what compute runs, or for how long. In the
  calibration steps, no compute overlapped 1 % to 6 % of most collectives' time, and half of the last
  one's, which is 1 % of a step.
- A collective whose blocks find no free multiprocessor begins when a kernel ends. That is 0.2 ms
  later, a quarter of a kernel, where one collective follows another under a backward pass. Compute
  hides these delays.
- A GPU that is ahead of the others waits inside its collectives, which continue to slow its compute.
  Differences between GPUs are not modelled. In 8-GPU FSDP a fifth to a quarter of the collectives'
  time is such waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from sortedcontainers import SortedList

FOREVER_NS = 1 << 62


class Activity:
    """When communication ran on one GPU: a set of intervals [begin, end), each belonging to an
    owner.

    >>> activity = Activity()
    >>> activity.put("a", 100, 200)           # returns the first time that changed
    100
    >>> activity.finish_ns(50, 100, 100)      # 50 alone; the 50 left take 100
    200
    >>> activity.finish_ns(50, 110, 110)      # the last 10 are alone again
    210
    """

    __slots__ = ("_intervals", "_of", "_open", "_longest_ns", "_sequence")

    def __init__(self) -> None:
        self._intervals: SortedList = SortedList()  # (begin, sequence, end)
        self._of: dict[object, tuple[int, int, int]] = {}
        self._open: dict[object, int] = {}  # begins of intervals with no known end; only a few
        self._longest_ns = 0
        self._sequence = 0

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

    def finish_ns(self, begin_ns: int, work_ns: int, contention_ns: int) -> int:
        """When work that begins at `begin_ns` is done. O(log intervals + intervals that overlap the
        work)."""
        if not (self._intervals or self._open) or contention_ns <= 0 or work_ns <= 0:
            return begin_ns + work_ns
        open_ns = min(self._open.values(), default=FOREVER_NS)
        intervals = self._intervals.islice(
            self._intervals.bisect_left((begin_ns - self._longest_ns,))
        )
        return stretched_ns(begin_ns, work_ns, contention_ns, intervals, open_ns)

    def forget(self, before_ns: int) -> None:
        """Drops intervals that ended by `before_ns`. No later call may ask about work that begins
        earlier."""
        while self._intervals:
            first = self._intervals[0]
            if first[2] > before_ns:
                return
            del self._intervals[0]
        self._longest_ns = 0

    def release(self, owner: object) -> None:
        """Marks the interval of `owner` as final. It stays until it is forgotten."""
        self._of.pop(owner, None)  # an interval that is final has an end


def stretched_ns(
    begin_ns: int,
    work_ns: int,
    contention_ns: int,
    spans: Iterable[tuple[int, int, int]],
    open_ns: int = FOREVER_NS,
) -> int:
    """When work is done that begins at `begin_ns`, takes `work_ns` alone and `work_ns + contention_ns`
    when communication overlaps all of it.

    `spans`: (begin, anything, end) of communication, in order of begin. From `open_ns` on,
    communication never ends. `work_ns` and `contention_ns` are positive. O(spans that overlap the
    work).

    >>> stretched_ns(0, 10, 5, [(4, 0, 10)])  # 4 ns alone, 6 at two thirds of the pace, 2 alone
    12
    """
    slow = work_ns + contention_ns
    left = work_ns * slow  # in units of 1 / slow ns of work, so that both rates are whole numbers
    now = begin_ns
    for start, _, end in chain(spans, ((open_ns, 0, FOREVER_NS),)):
        if end <= now:
            continue
        if start > open_ns:
            start, end = open_ns, FOREVER_NS
        if start > now:
            alone = (start - now) * slow
            if left <= alone:
                break
            left -= alone
            now = start
        overlapped = (end - now) * work_ns
        if left <= overlapped:
            return now + -(-left // work_ns)
        left -= overlapped
        now = end
    return now + -(-left // slow)
