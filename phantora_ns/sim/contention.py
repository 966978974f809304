"""How long compute takes when communication on the same GPU overlaps it.

Why it exists: an active communication kernel holds multiprocessors and memory bandwidth, so compute
on that GPU proceeds at a lower rate. A piece of work takes `work` ns alone, and `work + contention`
ns when communication overlaps all of it. `contention` is a sum over its kernels, because each class
of kernel is slowed differently. Partial overlap is modelled as a fluid: the work advances at rate 1
alone, and at work / (work + contention) during communication, however many communications there are.
All arithmetic is in integers, exact but for one rounding up at the end.

A communicator of one rank only copies inside its GPU. A copy fills the multiprocessors and the
memory's bandwidth, so other work stands still until it ends. In real one-GPU FSDP steps, kernels of 8
and 24 us beside copies of 0.12 and 0.41 ms end 3 to 20 us after the copy (tests/sim/test_contention.py).

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

from collections.abc import Iterable, Iterator
from itertools import chain

from sortedcontainers import SortedList

FOREVER_NS = 1 << 62


class Spans:
    """A set of intervals [begin, end), each belonging to an owner."""

    __slots__ = ("_intervals", "_of", "_open", "_longest_ns", "_sequence")

    def __init__(self) -> None:
        self._intervals: SortedList = SortedList()  # (begin, sequence, end)
        self._of: dict[object, tuple[int, int, int]] = {}
        self._open: dict[object, int] = {}  # begins of intervals with no known end; only a few
        self._longest_ns = 0
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._intervals) + len(self._open)

    def put(self, owner: object, begin_ns: int, end_ns: int | None) -> int | None:
        """As Activity.put. O(log intervals + those without end)."""
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

    def since(self, begin_ns: int) -> Iterator[tuple[int, int, int]]:
        """(begin, anything, end) of the intervals with an end, in order of begin; none that ends
        after `begin_ns` is missing."""
        first = self._intervals.bisect_left((begin_ns - self._longest_ns,))
        found: Iterator[tuple[int, int, int]] = self._intervals.islice(first)
        return found

    def open_ns(self) -> int:
        """From where on one of the intervals has no known end."""
        return min(self._open.values(), default=FOREVER_NS)

    def forget(self, before_ns: int) -> None:
        """Drops intervals that ended by `before_ns`."""
        while self._intervals:
            first = self._intervals[0]
            if first[2] > before_ns:
                return
            del self._intervals[0]
        self._longest_ns = 0

    def release(self, owner: object) -> None:
        """Marks the interval of `owner` as final. It stays until it is forgotten."""
        self._of.pop(owner, None)  # an interval that is final has an end


class Activity:
    """When communication ran on one GPU.

    >>> activity = Activity()
    >>> activity.put("a", 100, 200)           # returns the first time that changed
    100
    >>> activity.finish_ns(50, 100, 100)      # 50 alone; the 50 left take 100
    200
    >>> activity.finish_ns(50, 110, 110)      # the last 10 are alone again
    210
    >>> activity.put("b", 60, 70, copies=True)
    60
    >>> activity.finish_ns(50, 30, 30)        # nothing from 60 to 70
    90
    """

    __slots__ = ("_communication", "_copies")

    def __init__(self) -> None:
        self._communication = Spans()
        self._copies = Spans()

    def __len__(self) -> int:
        return len(self._communication) + len(self._copies)

    def put(
        self, owner: object, begin_ns: int, end_ns: int | None, copies: bool = False
    ) -> int | None:
        """Sets when `owner`'s communication runs: from begin_ns to end_ns, or without an end while
        end_ns is None (not known yet). Replaces what was set before. `copies`: it is a copy inside
        the GPU; always the same for one owner.

        Returns the first time at which anything changed, None when nothing did. O(log intervals +
        those without end).
        """
        return (self._copies if copies else self._communication).put(owner, begin_ns, end_ns)

    def finish_ns(self, begin_ns: int, work_ns: int, contention_ns: int) -> int:
        """When work that begins at `begin_ns` is done. O(log intervals + intervals that overlap the
        work)."""
        if contention_ns <= 0 or work_ns <= 0 or not (self._communication or self._copies):
            return begin_ns + work_ns
        spans, open_ns = self._communication.since(begin_ns), self._communication.open_ns()
        if not self._copies:
            return stretched_ns(begin_ns, work_ns, contention_ns, spans, open_ns)
        return halted_ns(
            begin_ns, work_ns, contention_ns, spans, self._copies.since(begin_ns), open_ns
        )

    def forget(self, before_ns: int) -> None:
        """Drops intervals that ended by `before_ns`. No later call may ask about work that begins
        earlier."""
        self._communication.forget(before_ns)
        self._copies.forget(before_ns)

    def release(self, owner: object) -> None:
        """Marks the interval of `owner` as final. It stays until it is forgotten."""
        self._communication.release(owner)
        self._copies.release(owner)


def halted_ns(
    begin_ns: int,
    work_ns: int,
    contention_ns: int,
    spans: Iterable[tuple[int, int, int]],
    copies: Iterable[tuple[int, int, int]],
    open_ns: int = FOREVER_NS,
) -> int:
    """As `stretched_ns`, where work stands still during `copies`, given like `spans`. O(copies times
    spans that overlap the work).

    >>> halted_ns(0, 10, 5, [(4, 0, 10)], [(2, 0, 5), (4, 0, 7)])  # 2, 5 halted, 3 for 2, 6 alone
    16
    """
    halts: list[tuple[int, int]] = []  # the copies' union, as far as the work can reach
    latest_ns = begin_ns + work_ns + contention_ns
    for start, _, end in copies:
        start = max(start, halts[-1][1] if halts else begin_ns)
        if start >= latest_ns:
            break
        if end > start:
            halts.append((start, end))
            latest_ns += end - start

    def before(time_ns: int) -> int:
        """The time without the halts that lie before it."""
        return time_ns - sum(min(time_ns, end) - start for start, end in halts if start < time_ns)

    moved = ((before(start), 0, before(end)) for start, _, end in spans)
    open_ns = open_ns if open_ns == FOREVER_NS else before(open_ns)
    time_ns = stretched_ns(begin_ns, work_ns, contention_ns, moved, open_ns)
    for start, end in halts:
        if start >= time_ns:
            break
        time_ns += end - start
    return time_ns


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
