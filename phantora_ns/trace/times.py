"""When work ran: evaluates time expressions over the final times of one process's vertices.

Why it exists: work begins and ends where events recorded before and after it would be. Time
expressions describe these points. They are evaluated here after the run, with the event graph's own
arithmetic (sim/graph.py, sim/contention.py), from the times that the hub wrote (hub/trace_times.py).
Integer nanoseconds; the only rounding is the graph's.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from phantora_ns.sim.contention import stretched_ns

UNKNOWN = -1


class Launch(NamedTuple):
    """A launch of communication: when this process reached it, when it started (once all members
    had reached it), and NCCL's choices for it."""

    reached_ns: int
    started_ns: int
    algorithm: str
    protocol: str
    channels: int


class Times:
    """The times of one process's vertices, and when communication ran on its GPU."""

    def __init__(self, vertices: Iterable[Sequence]) -> None:
        """`vertices`: the arrays of a times file (hub/trace_times.py). O(n log n)."""
        self._times = array("q", [0])
        self._launches: dict[int, tuple[int, int, int]] = {}
        self._plans: dict[tuple[str, str, int], int] = {}
        spans = []
        for number, time_ns, *launch in vertices:
            times = self._times
            if number >= len(times):
                times.extend([UNKNOWN] * (number - len(times) + 1))
            times[number] = time_ns
            if launch:
                reached_ns, started_ns, *plan = launch
                self._launches[number] = (
                    reached_ns,
                    started_ns,
                    self._plans.setdefault(tuple(plan), len(self._plans)),
                )
                spans.append((reached_ns, time_ns))
        self._plan_list = list(self._plans)
        self._begins, self._ends = _union(spans)

    @classmethod
    def read(cls, path: Path) -> Times:
        """Reads a times file. An incomplete last line is ignored. Raises OSError, ValueError."""
        with open(path) as file:
            return cls(json.loads(line) for line in file if line.endswith("\n"))

    def vertex(self, number: int) -> int | None:
        """When vertex `number` was reached; None when its time was never known."""
        time_ns = self._times[number] if number < len(self._times) else UNKNOWN
        return None if time_ns == UNKNOWN else time_ns

    def launch(self, number: int) -> Launch | None:
        """The launch of communication that ends at vertex `number`."""
        launch = self._launches.get(number)
        return None if launch is None else Launch(launch[0], launch[1], *self._plan_list[launch[2]])

    def span(
        self, terms: Iterable[tuple[int, int, int, int]], duration_ns: int, contention_ns: int
    ) -> tuple[int, int] | None:
        """(begin, end) of the last piece of work in a time expression; None when a time is not
        known. A term is (vertex, lag, work, contention)."""
        begin_ns = end_ns = 0
        for number, lag, work, contention in terms:
            time_ns = self.vertex(number)
            if time_ns is None:
                return None
            time_ns += lag
            before, contention_before = work - duration_ns, contention - contention_ns
            begin_ns = max(begin_ns, self.finish_ns(time_ns, before, contention_before))
            end_ns = max(end_ns, self.finish_ns(time_ns, work, contention))
        return begin_ns, max(begin_ns, end_ns)

    def finish_ns(self, begin_ns: int, work_ns: int, contention_ns: int) -> int:
        """When work ends that takes `contention_ns` longer if communication overlaps all of it.

        As Activity.finish_ns of sim/contention.py, over all communication of the run. O(log launches
        + launches that overlap the work).
        """
        ends = self._ends
        if contention_ns <= 0 or work_ns <= 0 or not ends:
            return begin_ns + work_ns
        begins = self._begins
        return stretched_ns(
            begin_ns,
            work_ns,
            contention_ns,
            ((begins[i], 0, ends[i]) for i in range(bisect_right(ends, begin_ns), len(ends))),
        )


def _union(spans: list[tuple[int, int]]) -> tuple[array, array]:
    """Begins and ends of the union of [begin, end) intervals."""
    begins, ends = array("q"), array("q")
    for begin, end in sorted(spans):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            begins.append(begin)
            ends.append(end)
    return begins, ends
