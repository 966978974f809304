"""The vertices of the event graph, and time expressions over them.

Why it exists: a vertex is a point in virtual time. A rank describes every moment of its own by a
max-plus expression over vertices (docs/wire-protocol.md). The arithmetic is small (a maximum of
sums) and runs for every message of every rank. Rule: a time is a pure function of its terms. It is
never adjusted but always evaluated again, as if all terms had been known from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from phantora_ns.sim.contention import Activity, Runs

LATEST_NS = 1 << 60
"""No vertex is later (36 years). A sum beyond it comes from nonsensical durations; the vertex then
has this time, so that 64 bits hold every time, and `EventGraph.overrun` says so."""


class StretchedTerm(NamedTuple):
    """A term that communication on the same GPU stretches: `work_ns` of compute that begins
    `lag_ns` after `vertex`: the kernels of `runs`, one after another.

    `vertex` is None when its time is final; `lag_ns` then counts from 0. `activity` is the
    communication on that GPU.
    """

    vertex: Vertex | None
    lag_ns: int
    work_ns: int
    runs: Runs
    activity: Activity

    @property
    def known(self) -> bool:
        """Whether the vertex has a time."""
        return self.vertex is None or self.vertex.time_ns is not None

    def begin_ns(self) -> int:
        """When the work begins; the vertex must be known."""
        if self.vertex is None:
            return self.lag_ns
        assert self.vertex.time_ns is not None
        return self.vertex.time_ns + self.lag_ns


def with_stretched(
    terms: Iterable[StretchedTerm], time_ns: int, settled_ns: int
) -> tuple[int, int]:
    """Includes stretched terms in a maximum. The result is final only when no communication can begin
    before it any more."""
    for vertex, begin_ns, _, runs, activity in terms:
        if vertex is not None:
            assert vertex.time_ns is not None and vertex.settled_ns is not None
            begin_ns += vertex.time_ns
            if vertex.settled_ns > settled_ns:
                settled_ns = vertex.settled_ns
        finish_ns = activity.finish_runs_ns(begin_ns, runs)
        if finish_ns > time_ns:
            time_ns = finish_ns
    return time_ns, max(settled_ns, time_ns)


class TimeExpression:
    """The maximum of `base_ns`, of (time of vertex + weight) over `terms`, and of `stretched`.

    Vertices whose time is final are folded into `base_ns` when the expression is made, so that
    expressions do not keep history alive.
    """

    __slots__ = ("base_ns", "terms", "stretched")

    def __init__(
        self,
        base_ns: int,
        terms: list[tuple[Vertex, int]],
        stretched: Sequence[StretchedTerm] = (),
    ) -> None:
        self.base_ns = base_ns
        self.terms = terms
        self.stretched = stretched

    def vertices(self) -> Iterator[Vertex]:
        """The vertices of all terms, except those that were final when the expression was made."""
        for vertex, _ in self.terms:
            yield vertex
        for term in self.stretched:
            if term.vertex is not None:
                yield term.vertex

    def sources(self) -> Iterator[object]:
        """What the time depends on: vertices, and the communication that stretches terms."""
        yield from self.vertices()
        for term in self.stretched:
            yield term.activity

    def reach(self) -> tuple[int, int] | None:
        """(time_ns, settled_ns), or None while one of its vertices has no time."""
        time_ns = self.base_ns
        settled_ns = 0
        for term in self.stretched:
            if term.vertex is not None and term.vertex.time_ns is None:
                return None
        for vertex, weight in self.terms:
            if vertex.time_ns is None or vertex.settled_ns is None:
                return None
            if vertex.time_ns + weight > time_ns:
                time_ns = vertex.time_ns + weight
            if vertex.settled_ns > settled_ns:
                settled_ns = vertex.settled_ns
        if self.stretched:
            return with_stretched(self.stretched, time_ns, settled_ns)
        return time_ns, settled_ns

    def reached(self) -> tuple[int, int]:
        """As `reach`, for an expression whose vertices all have times."""
        reached = self.reach()
        assert reached is not None
        return reached


class Vertex:
    """A point in virtual time: the maximum over its terms of (their time + weight), never below
    `base_ns`.

    The weights of `stretched` terms depend on the communication that overlaps them. A vertex with
    such terms becomes final only when the lower bound on time stamps has reached its own time. Until
    then, overlapping communication may still begin.

    `settled_ns` lies just after the latest end, over all ancestors, of flows that share links with
    others. Once the lower bound on time stamps has reached it, nothing can move this vertex any more
    (sim/graph.py gives the argument). `time_ns` and `settled_ns` are None until everything that the
    vertex depends on is known. `missing` counts what is unknown: terms without a time, and
    contributors that have not come. `queued` is its entry in the work queue. Whoever sends the time
    to a client sets `reported`.
    """

    __slots__ = (
        "time_ns",
        "settled_ns",
        "base_ns",
        "terms",
        "stretched",
        "dependents",
        "missing",
        "queued",
        "retired",
        "reported",
    )

    def __init__(self, contributors: int = 0) -> None:
        self.time_ns: int | None = None
        self.settled_ns: int | None = None
        self.base_ns = 0
        self.terms: dict[Vertex, int] = {}
        self.stretched: list[StretchedTerm] = []
        self.dependents: list[Vertex] = []
        self.missing = contributors
        self.queued: tuple[int, int, int, Vertex] | None = None
        self.retired = False
        self.reported = False

    def absorb(self, expression: TimeExpression) -> None:
        """Adds the terms of an expression; two terms over one vertex keep the larger weight."""
        if expression.base_ns > self.base_ns:
            self.base_ns = expression.base_ns
        terms = self.terms
        for vertex, weight in expression.terms:
            known = terms.get(vertex)
            if known is None:
                terms[vertex] = weight
                vertex.dependents.append(self)
                if vertex.time_ns is None:
                    self.missing += 1
            elif weight > known:
                terms[vertex] = weight
        for term in expression.stretched:
            self.stretched.append(term)
            if term.vertex is not None:
                term.vertex.dependents.append(self)
                if term.vertex.time_ns is None:
                    self.missing += 1

    def reach(self) -> tuple[int, int]:
        """(time_ns, settled_ns) of the maximum over the terms; all of them must be known."""
        time_ns = self.base_ns
        settled_ns = 0
        for vertex, weight in self.terms.items():
            reached_ns: int = vertex.time_ns + weight  # type: ignore[operator]
            if reached_ns > time_ns:
                time_ns = reached_ns
            if vertex.settled_ns > settled_ns:  # type: ignore[operator]
                settled_ns = vertex.settled_ns  # type: ignore[assignment]
        if self.stretched:
            return with_stretched(self.stretched, time_ns, settled_ns)
        return time_ns, settled_ns

    def earliest_ns(self) -> int:
        """As `reach`, but without what communication adds to stretched terms: never later."""
        time_ns = self.base_ns
        for vertex, weight in self.terms.items():
            reached_ns: int = vertex.time_ns + weight  # type: ignore[operator]
            if reached_ns > time_ns:
                time_ns = reached_ns
        for term in self.stretched:
            time_ns = max(time_ns, term.begin_ns() + term.work_ns)
        return time_ns

    def retire(self) -> None:
        """Drops the terms of a vertex whose time is final. Its dependents keep the time as a plain
        number."""
        self.retired = True
        self.terms = {}
        self.stretched = []
        self.dependents = []


class Rendezvous(Vertex):
    """All members of a communicator meet: the latest of them, and one nanosecond.

    The nanosecond makes a rendezvous strictly later than every member. The answer to a query relies
    on that: a vertex that is not known yet is later than the lower bound on time stamps. NCCL's
    real start-up time is not modelled.
    """

    __slots__ = ()

    def reach(self) -> tuple[int, int]:
        """(time_ns, settled_ns), one nanosecond after the last member."""
        time_ns, settled_ns = super().reach()
        return time_ns + 1, settled_ns
