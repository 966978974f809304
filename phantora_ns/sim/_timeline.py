"""One client's vertices by number, and the sums over its communication.

Why it exists: a client names vertices by its own numbers long after they are final. A final time
takes eight bytes of an array here, not an object, so a run's history stays small.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from phantora_ns.sim._overlap import Overlap
from phantora_ns.sim._transfers import LaunchEnd, Transfer
from phantora_ns.sim._vertices import Rendezvous, StretchedTerm, TimeExpression, Vertex
from phantora_ns.sim.contention import Runs

MAX_SPAN_NS = 1 << 56
MOST_RUNS = 1 << 14  # kernels in one term
"""Largest lag or work accepted in one term (over two years). It and LATEST_NS keep sums within 64
bits, whatever a client sends."""

MAX_NUMBER_GAP = 1 << 20
"""How far a client's vertex number may exceed its largest number so far; final times are stored by
number."""

MIN_DROP = 4096
"""Forgotten entries are dropped at least this many at a time, so that forgetting costs almost nothing
per message."""

MOST_KEPT_KERNELS = 1 << 17
"""Kernels of the runs that are kept as they were read: equal steps and equal ranks have equal ones."""

_INTEGERS = {int}

MOST_SHARED = 32
"""Expressions kept as they were read; a message has a few."""

MOST_TOLD = 4096
"""A client is told of its last waits for communication only. Its side keeps as many
(libintercept/time/gaps.c)."""

Follower = Callable[[int, Vertex, TimeExpression | None], None]


class BadExpression(ValueError):
    """A client's message names a vertex that it never defined, defines one twice, or holds no time
    expression where one belongs."""


class Totals(NamedTuple):
    """Sums over a client's timeline, in ns. `comm_ns`: communication, from where the client reached
    it; `comm_wait_ns`: the part of it before the last member came; `exposed_ns`: waits of streams for
    it, by device; `latest_ns`: the latest time of any vertex."""

    comm_ns: int
    comm_wait_ns: int
    exposed_ns: dict[int, int]
    latest_ns: int


class Mark(NamedTuple):
    """The end of a training step: when the host reached it, and until then in all the time its GPU
    worked, its host worked, and its streams waited for communication; ns. `flop`: what it had multiplied
    by precision (`Precision`)."""

    time_ns: int
    busy_ns: int
    host_ns: int
    exposed_ns: int
    flop: tuple[int, ...] = ()


class _Stall(NamedTuple):
    """A wait of a stream of `device` for communication. `number`: of this client, from 0."""

    number: int
    device: int
    before: TimeExpression
    after: TimeExpression

    def expressions(self) -> tuple[TimeExpression, ...]:
        return self.before, self.after


class _OpenMark(NamedTuple):
    """A mark whose time is not final."""

    at: TimeExpression
    busy_ns: int
    host_ns: int
    flop: tuple[int, ...]

    def expressions(self) -> tuple[TimeExpression, ...]:
        return (self.at,)


class FinalTimes:
    """Final times of vertices by number. Times of numbers that will not be named again are dropped."""

    __slots__ = ("_times", "first", "keep")

    def __init__(self) -> None:
        self._times = array("q", [0])
        self.first = 0
        """Numbers below it have been dropped."""
        self.keep = 0
        """The client will name no vertex below this number again, except the origin, 0."""

    def get(self, number: int) -> int | None:
        """The time of a final vertex; None when it is not final, or forgotten."""
        if number == 0:
            return 0
        index = number - self.first
        if 0 <= index < len(self._times) and self._times[index] >= 0:
            return self._times[index]
        return None

    def put(self, number: int, time_ns: int) -> None:
        """Stores a time. O(numbers skipped)."""
        times = self._times
        index = number - self.first
        if index < 0:
            return
        if index >= len(times):
            times.extend([-1] * (index - len(times)))
            times.append(time_ns)
        else:
            times[index] = time_ns

    def forget(self, number: int) -> None:
        """The client will name no vertex below `number` again."""
        self.keep = max(self.keep, number)
        drop = min(number - self.first, len(self._times))
        if drop >= MIN_DROP and drop * 2 >= len(self._times):
            del self._times[:drop]
            self.first += drop

    def nameable(self) -> Iterator[int]:
        """The times of all vertices that the client may still name. O(those)."""
        yield from (time for time in self._times[max(0, self.keep - self.first) :] if time >= 0)
        if self.keep == 0:
            yield 0


class CommunicationAccount:
    """Sums over one client's launches of communication and the waits of its streams for them, and
    the ends of its training steps."""

    __slots__ = (
        "launched",
        "_open",
        "_marks",
        "_comm_ns",
        "_comm_wait_ns",
        "_exposed_ns",
        "_stalls",
        "_told",
        "_untold",
    )

    def __init__(self) -> None:
        self.launched: dict[int, TimeExpression] = {}
        """Where the client reached each launch that is not final, by the number of the launch's
        end."""
        self._open: deque[_Stall | _OpenMark] = deque()
        """Waits and marks that are not final, in order. One deque, because a mark has the sum of the
        waits before it."""
        self._marks: list[Mark] = []
        self._comm_ns = 0
        self._comm_wait_ns = 0
        self._exposed_ns: dict[int, int] = {}
        self._stalls = 0
        self._told = 0
        """Waits below this number were told, or will not be."""
        self._untold: deque[tuple[int, int]] = deque()
        """(end, length) of the waits from `_told` on that are final, ns."""

    def stall(self, device: int, before: TimeExpression, after: TimeExpression) -> None:
        """A stream of `device` waited between these two moments."""
        self._open.append(_Stall(self._stalls, device, before, after))
        self._stalls += 1

    def mark(self, at: TimeExpression, busy_ns: int, host_ns: int, flop: tuple[int, ...]) -> None:
        """A training step ends at `at`."""
        self._open.append(_OpenMark(at, busy_ns, host_ns, flop))

    def settle_launch(self, reached: TimeExpression, end: Vertex) -> None:
        """Adds a launch that is final."""
        comm_ns, wait_ns = _comm_span_ns(reached, end)
        self._comm_ns += comm_ns
        self._comm_wait_ns += wait_ns

    def settle(self) -> None:
        """Adds up the leading waits and marks whose ends are final. O(1) per wait and mark."""
        while self._open:
            entry = self._open[0]
            if any(not v.retired for one in entry.expressions() for v in one.vertices()):
                return
            self._open.popleft()
            self._add(entry, self._exposed_ns, self._marks)
            if isinstance(entry, _Stall) and entry.number >= self._told:
                span = _stall_span(entry)
                if span is None:  # what the client had queued was dropped: nobody asks any more
                    continue
                self._untold.append(span)
                if len(self._untold) > MOST_TOLD:
                    self._untold.popleft()
                    self._told += 1

    def tell(self, until_ns: int) -> tuple[int, list[int]]:
        """How long the waits took that were over at `until_ns` and were not told before, in order;
        and the number of the first. All times up to `until_ns` must be final. O(open waits)."""
        lengths: list[int] = []
        while self._untold and self._untold[0][0] <= until_ns:
            lengths.append(self._untold.popleft()[1])
        first, self._told = self._told, self._told + len(lengths)
        if not self._untold:
            for entry in self._open:
                if isinstance(entry, _Stall) and entry.number >= self._told:
                    span = _stall_span(entry)
                    if span is None or span[0] > until_ns:
                        break
                    lengths.append(span[1])
                    self._told += 1
        skip = max(0, self._stalls - MOST_TOLD - first)
        return first + skip, lengths[skip:]

    def known_marks(self) -> list[Mark]:
        """The marks whose times are known, final or not."""
        exposed_ns, marks = dict(self._exposed_ns), list(self._marks)
        for entry in self._open:
            self._add(entry, exposed_ns, marks)
        return marks

    def totals(self, live: dict[int, Vertex], latest_ns: int) -> Totals:
        """Sums over everything that is known, final or not."""
        comm_ns, wait_ns = self._comm_ns, self._comm_wait_ns
        for number, vertex in live.items():
            if vertex.time_ns is not None:
                latest_ns = max(latest_ns, vertex.time_ns)
                if number in self.launched:
                    spans = _comm_span_ns(self.launched[number], vertex)
                    comm_ns, wait_ns = comm_ns + spans[0], wait_ns + spans[1]
        exposed_ns = dict(self._exposed_ns)
        for entry in self._open:
            self._add(entry, exposed_ns, [])
        return Totals(comm_ns, wait_ns, exposed_ns, latest_ns)

    def open_terms(self) -> Iterator[Iterable[StretchedTerm]]:
        """The stretched terms of the waits and marks that are not final."""
        for entry in self._open:
            for expression in entry.expressions():
                yield expression.stretched

    @staticmethod
    def _add(entry: _Stall | _OpenMark, exposed_ns: dict[int, int], marks: list[Mark]) -> None:
        """Adds an entry to these sums if its time is known."""
        if isinstance(entry, _Stall):
            span = _stall_span(entry)
            if span is not None:
                exposed_ns[entry.device] = exposed_ns.get(entry.device, 0) + span[1]
        elif (reached := entry.at.reach()) is not None:
            exposed = sum(exposed_ns.values())
            marks.append(Mark(reached[0], entry.busy_ns, entry.host_ns, exposed, entry.flop))


Term = tuple[int, int, int, Runs | None]
"""A vertex's number, lag, work, and the kernels of the work if communication may stretch it."""


class TermsReader:
    """Reads time expressions as messages have them. In a folded job one message is entered for many ranks: its
    last lists are read once, and all share the result. Equal runs of kernels are read once, too."""

    __slots__ = ("_known", "_runs", "_kernels")

    def __init__(self) -> None:
        # by identity, each with its list, so that no other list takes its place in memory
        self._known: dict[int, tuple[object, list[Term]]] = {}
        self._runs: dict[tuple[object, ...], Runs] = {}
        self._kernels = 0  # in `_runs`

    def read(self, terms: object) -> list[Term]:
        """The terms of `[vertex, lag, work, ...]`, a list that nobody changes afterwards. Raises BadExpression.
        O(terms), O(1) for one of the last lists."""
        known = self._known.get(id(terms))
        if known is None:
            known = terms, self._terms(terms)
            if len(self._known) == MOST_SHARED:
                del self._known[next(iter(self._known))]
            self._known[id(terms)] = known
        return known[1]

    def _terms(self, terms: object) -> list[Term]:
        """Reads `[vertex, lag, work, ...]`; raises BadExpression."""
        if type(terms) is not list or len(terms) % 3:
            raise BadExpression("a time expression is an array of vertex, lag, work")
        found: list[Term] = []
        fields = iter(terms)
        for number, lag_ns, work_ns in zip(fields, fields, fields):
            runs = None
            if type(work_ns) is list:
                runs = self._read_runs(work_ns)
                work_ns = runs.alone[-1]
                if runs.slow[-1] == work_ns:
                    runs = None
            if (
                type(lag_ns) is not int
                or type(work_ns) is not int
                or not (0 <= lag_ns < MAX_SPAN_NS and 0 <= work_ns < MAX_SPAN_NS)
            ):
                raise BadExpression("lag and work are nanoseconds from 0 to 2^56")
            if type(number) is not int:
                raise BadExpression(f"vertex {number!r} is not an integer")
            found.append((number, lag_ns, work_ns, runs))
        return found

    def _read_runs(self, pairs: list[object]) -> Runs:
        """The kernels of a flat list of work and contention; raises BadExpression."""
        if set(map(type, pairs)) != _INTEGERS:  # else 1.0 and True would find what 1 has left
            return _runs(pairs)
        key = tuple(pairs)
        known = self._runs.get(key)
        if known is None:
            known = _runs(pairs)
            if self._kernels + len(pairs) // 2 > MOST_KEPT_KERNELS:
                self._runs.clear()
                self._kernels = 0
            self._runs[key] = known
            self._kernels += len(pairs) // 2
        return known


class Timeline:
    """One client's vertices: live ones as objects, final ones as plain numbers. `reader` reads its
    expressions."""

    __slots__ = (
        "_reader",
        "live",
        "order",
        "final",
        "account",
        "overlap",
        "follower",
        "_largest",
        "_latest_ns",
    )

    def __init__(self, reader: TermsReader) -> None:
        self._reader = reader
        self.live: dict[int, Vertex] = {}
        self.order: deque[int] = deque()
        self.final = FinalTimes()
        self.account = CommunicationAccount()
        self.overlap = Overlap()
        self.follower: Follower | None = None
        """Called with each vertex whose time is final."""
        self._largest = 0
        self._latest_ns = 0

    def check_new(self, number: object) -> None:
        """Raises BadExpression unless `number` can name a new vertex of this client."""
        if type(number) is not int or number <= 0:
            raise BadExpression(f"vertex {number!r} is not a positive integer")
        if number in self.live or self.final.get(number) is not None:
            raise BadExpression(f"vertex {number} is defined twice")
        if number > self._largest + MAX_NUMBER_GAP or number < self.final.first:
            raise BadExpression(f"vertex {number} is out of order")

    def expression(self, terms: object) -> TimeExpression:
        """Parses `[vertex, lag, work, ...]`, where work may be `[work, contention, work, contention,
        ...]`; an empty list is time 0.

        Raises BadExpression when it is something else, or names an unknown vertex.
        """
        live = self.live
        base_ns = 0
        plain: list[tuple[Vertex, int]] = []
        stretched: list[StretchedTerm] = []
        for number, lag_ns, work_ns, runs in self._reader.read(terms):
            vertex = live.get(number)
            if vertex is not None and not vertex.retired:
                if runs is not None:
                    stretched.append(
                        StretchedTerm(vertex, lag_ns, work_ns, runs, self.overlap.activity)
                    )
                else:
                    plain.append((vertex, lag_ns + work_ns))
                continue
            final_ns = self.final.get(number) if vertex is None else vertex.time_ns
            if final_ns is None:
                raise BadExpression(f"vertex {number} is not known")
            if runs is not None:
                lag_ns += final_ns
                stretched.append(StretchedTerm(None, lag_ns, work_ns, runs, self.overlap.activity))
            elif final_ns + lag_ns + work_ns > base_ns:
                base_ns = final_ns + lag_ns + work_ns
        return TimeExpression(base_ns, plain, stretched)

    def add(self, number: int, vertex: Vertex) -> None:
        """Enters a new vertex; `number` must have passed `check_new`."""
        self.live[number] = vertex
        self.order.append(number)
        if number > self._largest:
            self._largest = number

    def retire(self, before_ns: int) -> Iterator[Vertex]:
        """Makes the oldest vertices final whose time can no longer change; yields each. Amortised
        O(1) per vertex."""
        order, live = self.order, self.live
        while order:
            number = order[0]
            vertex = live[number]
            if vertex.settled_ns is None or vertex.settled_ns > before_ns:
                return
            order.popleft()
            del live[number]
            self._keep(number, vertex)
            yield vertex

    def transfers(self) -> Iterator[Transfer]:
        """The transfers that end at its live vertices: of this client, and not final."""
        for vertex in self.live.values():
            if isinstance(vertex, Transfer):
                yield vertex
            elif isinstance(vertex, LaunchEnd):
                yield from vertex.transfers

    def close(self) -> Iterator[Vertex]:
        """Makes all known times final and yields their vertices. Drops the vertices without a time,
        which will never have one: the client has ended, and no other waits for its communication. Yields
        them too, but for meetings: others may wait there."""
        order, live = self.order, self.live
        self.order, self.live = deque(), {}
        for number in order:
            vertex = live[number]
            if vertex.time_ns is not None:
                self._keep(number, vertex)
                yield vertex
                continue
            self.account.launched.pop(number, None)
            if not isinstance(vertex, Rendezvous):
                yield vertex

    def drop_unknown(self) -> Iterator[Vertex]:
        """Drops the vertices without a time, and yields them: every client has ended, so they will never have
        one. O(live vertices)."""
        unknown = [number for number in self.order if self.live[number].time_ns is None]
        for number in unknown:
            self.account.launched.pop(number, None)
            yield self.live.pop(number)
        if unknown:
            self.order = deque(number for number in self.order if number in self.live)

    def _keep(self, number: int, vertex: Vertex) -> None:
        """Stores the vertex's time as final and tells the follower. The end of a launch is added to
        the account."""
        assert vertex.time_ns is not None
        self.final.put(number, vertex.time_ns)
        self._latest_ns = max(self._latest_ns, vertex.time_ns)
        reached = self.account.launched.pop(number, None)
        if self.follower is not None:
            self.follower(number, vertex, reached)
        if reached is not None:
            self.account.settle_launch(reached, vertex)

    def forget_activity(self, before_ns: int) -> None:
        """Drops communication before `before_ns`, except where it overlaps work that is not final or
        that the client may still report."""
        keep = self.final.keep
        # Over all nameable vertices, because times do not grow with the numbers.
        before_ns = min([before_ns, *self.final.nameable()])
        for number, vertex in self.live.items():
            if number >= keep and vertex.time_ns is not None:
                before_ns = min(before_ns, vertex.time_ns)
        self.overlap.forget(before_ns, self.account.open_terms())

    def totals(self) -> Totals:
        """Sums over all vertices whose time is known, final or not."""
        return self.account.totals(self.live, self._latest_ns)


def _runs(pairs: list[object]) -> Runs:
    """The kernels of a flat list of work and contention; raises BadExpression."""
    if not pairs or len(pairs) % 2 or len(pairs) > 2 * MOST_RUNS:
        raise BadExpression("work beside communication is pairs of work and contention")
    for value in pairs:
        if type(value) is not int or not 0 <= value < MAX_SPAN_NS:
            raise BadExpression("work and contention are nanoseconds from 0 to 2^56")
    runs = Runs.of(pairs[::2], pairs[1::2])  # type: ignore[arg-type]
    if runs.slow[-1] >= MAX_SPAN_NS:
        raise BadExpression("work and contention are nanoseconds from 0 to 2^56")
    return runs


def _comm_span_ns(reached: TimeExpression, end: Vertex) -> tuple[int, int]:
    """(from `reached` to the end of communication, the part of it before all members had come)."""
    assert isinstance(end, (Transfer, LaunchEnd)) and end.time_ns is not None
    assert end.start_ns is not None
    reached_ns = reached.reached()[0]
    return end.time_ns - reached_ns, max(0, end.start_ns - reached_ns)


def _stall_span(stall: _Stall) -> tuple[int, int] | None:
    """Until when a stream waited, and how long; None while that is unknown."""
    first, second = stall.before.reach(), stall.after.reach()
    if first is None or second is None:
        return None
    return second[0], max(0, second[0] - first[0])
