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

from phantora_ns.sim.contention import Runs, stretched_ns

UNKNOWN = -1
MOST_CHAINS = 1 << 16
"""Terms whose kernels are remembered: older ones than those of the last kernels are not asked for."""


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
        # (vertex, work, contention) of a term -> its kernels, and how many of them
        self._chains: dict[tuple[int, int, int], tuple[Runs, int]] = {}
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
            before = number, work - duration_ns, contention - contention_ns
            runs, count = self._chain(before, duration_ns, contention_ns)
            begin_ns = max(begin_ns, self.finish_ns(time_ns, runs, count - 1))
            end_ns = max(end_ns, self.finish_ns(time_ns, runs, count))
        return begin_ns, max(begin_ns, end_ns)

    def finish_ns(self, begin_ns: int, runs: Runs, count: int) -> int:
        """When the first `count` kernels of `runs` end, as Activity.finish_runs_ns of
        sim/contention.py, over all communication of the run."""
        begins, ends = self._begins, self._ends
        first = bisect_right(ends, begin_ns)
        if first == len(ends):
            return begin_ns + runs.alone[count]
        spans = ((begins[i], 0, ends[i]) for i in range(first, len(ends)))
        return stretched_ns(begin_ns, runs, count, spans)

    def _chain(
        self, before: tuple[int, int, int], duration_ns: int, contention_ns: int
    ) -> tuple[Runs, int]:
        """The kernels of a term that was `before` until a kernel came, and how many with that one.
        What is not remembered of them counts as one. Amortised O(1), but O(kernels) where two
        streams go on from one kernel."""
        vertex, work, contention = before
        runs, count = self._chains.get(before) or (
            Runs.of([work] if work else [], [contention] if work else []),
            1 if work else 0,
        )
        if len(runs.alone) > count + 1:
            runs = Runs(runs.alone[: count + 1], runs.slow[: count + 1])
        runs.alone.append(work + duration_ns)
        runs.slow.append(work + contention + duration_ns + contention_ns)
        if len(self._chains) >= MOST_CHAINS:
            for old in list(self._chains)[: MOST_CHAINS // 2]:
                del self._chains[old]
        after = vertex, work + duration_ns, contention + contention_ns
        self._chains[after] = runs, count + 1
        return runs, count + 1


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
