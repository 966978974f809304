"""Where a step's time goes: each nanosecond has one owner.

Why it exists: an error in step time is useful only when it is known which part of the step it comes
from. Parts that overlap cannot be added up, so each nanosecond of the step gets one owner:

- the compute kernel (or copy) that runs in it; if several run, the one that began first;
- else the communication that runs in it, which is then exposed;
- else nothing: the GPU is idle.

The kernels' time, the exposed communication and the idle gaps add up to the step exactly. So do the
differences between two steps.

An idle gap is the host's when the activity that ends it was launched after the gap had begun: with
the host ahead there would have been no gap. It is also the host's when no activity ends it. It is
`queued` when that activity was launched before the gap: the usual pause between kernels on a GPU with
work waiting. It is `unknown` when the trace does not say when the activity was launched.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from phantora_ns.trace.kineto import Activity, Step


@dataclass
class Breakdown:
    """Parts of one step or of several, in ns. step = compute + exposed + idle_host + idle_queued +
    idle_unknown.

    `hidden`: communication that overlaps compute, a part of `compute`. `kernel_sum`: the plain sum of
    compute durations, in which overlapping kernels count twice. `communication`: the time in which at
    least one communication ran.
    """

    step_ns: int = 0
    compute_ns: int = 0
    hidden_ns: int = 0
    exposed_ns: int = 0
    idle_host_ns: int = 0
    idle_queued_ns: int = 0
    idle_unknown_ns: int = 0
    kernel_sum_ns: int = 0
    launches: int = 0

    @property
    def idle_ns(self) -> int:
        return self.idle_host_ns + self.idle_queued_ns + self.idle_unknown_ns

    @property
    def communication_ns(self) -> int:
        return self.hidden_ns + self.exposed_ns

    def add(self, other: Breakdown) -> None:
        """Adds another step's parts to these."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass
class Owned:
    """A step's activities, how long each ran inside the step, how much of the step it owns, and the
    step's parts."""

    activities: list[Activity] = field(default_factory=list)
    lengths_ns: list[int] = field(default_factory=list)
    owned_ns: list[int] = field(default_factory=list)
    parts: Breakdown = field(default_factory=Breakdown)


def own(activities: Sequence[Activity], step: Step) -> Owned:
    """Gives every nanosecond of the step its owner. Activities are clipped to the step. O(n log n)."""
    result = Owned()
    edges: list[tuple[int, int, int]] = []  # (time, 0 end or 1 start, index)
    for activity in activities:
        start, end = max(activity.start_ns, step.start_ns), min(activity.end_ns, step.end_ns)
        if start < end or (
            start == end == activity.start_ns == activity.end_ns and start < step.end_ns
        ):
            index = len(result.activities)
            result.activities.append(activity)
            result.lengths_ns.append(end - start)
            if start < end:
                edges += [(start, 1, index), (end, 0, index)]
    result.owned_ns = [0] * len(result.activities)
    parts = result.parts
    parts.step_ns = step.end_ns - step.start_ns
    parts.launches = len(result.activities)
    parts.kernel_sum_ns = sum(
        n for a, n in zip(result.activities, result.lengths_ns, strict=True) if a.collective is None
    )
    edges.sort()
    # Heaps of (start, index): compute, communication. An ended activity leaves when it is on top.
    running: tuple[list, list] = ([], [])
    ended = [False] * len(result.activities)
    active = [0, 0]
    now = step.start_ns
    for time, starts, index in edges:
        if time > now:
            _pass(
                result,
                running,
                ended,
                active,
                now,
                time,
                result.activities[index] if starts else None,
            )
            now = time
        activity = result.activities[index]
        kind = 0 if activity.collective is None else 1
        if starts:
            heapq.heappush(running[kind], (activity.start_ns, index))
            active[kind] += 1
        else:
            ended[index] = True
            active[kind] -= 1
    if step.end_ns > now:
        following = next(
            (a for a in activities if a.start_ns == step.end_ns and a.end_ns > a.start_ns), None
        )
        if following is None:
            parts.idle_host_ns += step.end_ns - now  # no further activity in this step
        else:
            _pass(result, running, ended, active, now, step.end_ns, following)
    return result


def _pass(
    result: Owned,
    running,
    ended: list[bool],
    active: list[int],
    now: int,
    time: int,
    next_one: Activity | None,
) -> None:
    """Accounts for the time from `now` to `time`, in which nothing begins or ends. `next_one` begins
    at `time`."""
    parts, length = result.parts, time - now
    for kind in (0, 1):
        heap = running[kind]
        while heap and ended[heap[0][1]]:
            heapq.heappop(heap)
        if heap:
            result.owned_ns[heap[0][1]] += length
            if kind:
                parts.exposed_ns += length
            else:
                parts.compute_ns += length
                parts.hidden_ns += length if active[1] else 0
            return
    launched = next_one.launched_ns if next_one else None
    if launched is None:
        parts.idle_unknown_ns += length
    elif launched > now:
        parts.idle_host_ns += length
    else:
        parts.idle_queued_ns += length
