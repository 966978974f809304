"""Whether absent ranks would have been told what their representative was told.

Why it exists: a process acts on what the hub answers. If every answer to a representative is also
what the absent rank would have got, then the absent rank would have gone on in the same way, and its
timeline is exact. Answers differ where links do (docs/folding.md). Each difference is counted, and the
report shows how large they are.
"""

from __future__ import annotations

from phantora_ns.hub.registry import Absent, Client
from phantora_ns.sim.graph import EventGraph, TimeExpression, Vertex


class Likeness:
    """Counts the answers to representatives, one for each absent rank, and those that would have been
    different."""

    def __init__(self, graph: EventGraph) -> None:
        self._graph = graph
        self._open: list[tuple[Vertex, int]] = []
        """Times that were told to representatives while those of the absent ranks could still move."""
        self.answers = 0
        self.different = 0
        self.most_ns = 0
        """The largest difference of a time."""
        self.never = 0
        """How many of the different ones have no time at all for the absent rank: it would still wait."""

    def times(self, told_ns: int, own: Vertex, lbts_ns: int | None) -> bool:
        """A representative was told `told_ns`, and the absent rank's own time is that of `own`. Returns
        whether that one is final, and the same."""
        self.answers += 1
        if own.settled_ns is None or (lbts_ns is not None and own.settled_ns > lbts_ns):
            self._open.append((own, told_ns))
            return False
        return self._compare(told_ns, own)

    def stalls(self, client: Client, absent: Absent, lengths: list[int], until_ns: int) -> None:
        """A representative was told how long its streams had waited for communication."""
        absent.told.extend(lengths)
        for own_ns in self._graph.tell_stalls(absent.number, until_ns)[1]:
            told_ns = absent.told.popleft() if absent.told else -1
            self._note(abs(own_ns - told_ns))

    def query(self, told: bool, own: TimeExpression, host: TimeExpression) -> None:
        """A representative was told whether an expression had been reached."""
        self.answers += 1
        at, now = own.reach(), host.reach()
        reached = at is not None and now is not None and at[0] <= now[0]
        self.different += reached != told

    def elapsed(self, told_ns: list[int], own: list[TimeExpression]) -> None:
        """A representative was told the times of expressions. What a job takes from them is their
        differences."""
        self.answers += 1
        times = [reached[0] for one in own if (reached := one.reach()) is not None]
        if len(times) != len(told_ns) or any(
            a - told_ns[0] != b - times[0] for a, b in zip(told_ns, times, strict=True)
        ):
            self.different += 1

    def commit(self) -> None:
        """Looks again at times that could still move."""
        still = []
        for own, told_ns in self._open:
            if own.retired:
                self._compare(told_ns, own)
            else:
                still.append((own, told_ns))
        self._open = still

    def finish(self) -> None:
        """The run has ended: no time will move any more."""
        for own, told_ns in self._open:
            self._compare(told_ns, own)
        self._open = []

    def _compare(self, told_ns: int, own: Vertex) -> bool:
        if own.time_ns is None:
            self.different += 1
            self.never += 1
            return False
        return self._note(abs(own.time_ns - told_ns))

    def _note(self, by_ns: int) -> bool:
        self.different += by_ns > 0
        self.most_ns = max(self.most_ns, by_ns)
        return by_ns == 0
