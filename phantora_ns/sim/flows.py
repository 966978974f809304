"""Flows over shared links: when does each transfer finish?

Why it exists: a collective becomes flows, and flows share links max-min fairly. So the end of each
depends on all that meet it, directly or not. Ranks report flows to the timeline in any order, also
before the time that has already been simulated. The rule this module keeps:

    the same flows added in any order give the same completions, to the nanosecond.

It holds by construction. Every number is a function of the set of flows (`_flow_time`, `_flow_fill`),
and a rollback restores flows to exactly their previous state (`_flow_engine`). `_flow_time` also
defines a completion: the end in the fluid max-min model in continuous time, rounded up to whole
nanoseconds.

>>> simulator = FlowSimulator({"up": 50.0, "down": 50.0})
>>> first = simulator.add(0, ["up", "down"], 1_000_000)
>>> simulator.completion_ns(first)
20000
>>> second = simulator.add(10_000, ["up"], 250_000)  # in the past: it has run to 20,000 ns
>>> simulator.completion_ns(second)
20000
>>> simulator.changed() == {first: 25000}
True
"""

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Protocol

from phantora_ns.sim._flow_check import History, check_history
from phantora_ns.sim._flow_engine import PythonEngine
from phantora_ns.sim._flow_native import NativeEngine
from phantora_ns.sim._flow_time import alone_ns

_MOST = 2**31  # equal flows in one class; counts times routes must be exact as floats


FlowArguments = (
    tuple[Sequence[Hashable], int]
    | tuple[Sequence[Hashable], int, float | None]
    | tuple[Sequence[Hashable], int, float | None, int]
)
"""A flow of a group: links, size_bytes, rate_cap, count; see `FlowSimulator.group`."""


class Flow:
    """A handle. Opaque, hashable, compared by identity. It may outlive the simulator's history of the
    flow."""

    __slots__ = ("_slot", "_final_ns")

    def __init__(self, slot: int | None, final_ns: int | None = None) -> None:
        self._slot = slot
        self._final_ns = final_ns

    @property
    def slot(self) -> int:
        """The number that the engine gave the flow."""
        assert self._slot is not None
        return self._slot


class Engine(Protocol):
    """The computing part: groups of flows by number (a slot), times in nanoseconds, links by
    number."""

    name: str

    @property
    def rollbacks(self) -> int: ...
    @property
    def events(self) -> int: ...
    def add_batch(self, *arrays: Any) -> Sequence[int]: ...
    def add_group(self, start_ns: int, *arrays: Any) -> int: ...
    def move(self, number: int, start_ns: int, /) -> None: ...
    def withdraw(self, number: int, /) -> None: ...
    def set_capacity(self, at_ns: int, link: int, bytes_per_ns: float) -> None: ...
    def start_ns(self, number: int, /) -> int: ...
    def completion_ns(self, number: int, /) -> int: ...
    def changed(self) -> list[tuple[int, int]]: ...
    def commit(self, before_ns: int) -> list[tuple[int, int]]: ...
    def settle(self) -> None: ...
    def history(self) -> History: ...
    def retained(self) -> int: ...


class FlowGroup:
    """Flows in the form that the engines take: parallel arrays. Made by `FlowSimulator.group`;
    opaque."""

    __slots__ = ("sizes", "caps", "counts", "offsets", "links")

    def __init__(self) -> None:
        self.sizes, self.caps, self.counts = array("d"), array("d"), array("q")
        self.offsets, self.links = array("q", [0]), array("i")

    def append(self, numbers: Sequence[int], size: float, cap: float, count: int) -> None:
        """Adds one flow with validated values, over links by number."""
        self.sizes.append(size)
        self.caps.append(cap)
        self.counts.append(count)
        self.links.extend(numbers)
        self.offsets.append(len(self.links))


@dataclass(frozen=True)
class FlowStatistics:
    """`rollbacks`: insertions that put flows back; `events`: instants at which something was
    computed, repetitions after a rollback included; `retained`: objects held for present and
    history; `engine`: which engine runs."""

    rollbacks: int
    events: int
    retained: int
    engine: str


class FlowSimulator:
    """Max-min fair flows over links of given capacity, with automatic rollback."""

    def __init__(
        self, capacities: Mapping[Any, float], engine: Callable[[list[float]], Engine] | None = None
    ) -> None:
        """`capacities`: link id -> bytes per nanosecond, > 0, from the beginning of time.

        `engine` chooses an engine class; by default the compiled one where it has been built.
        Raises ValueError for a capacity that is not positive and finite.
        """
        self._links = {link: number for number, link in enumerate(capacities)}
        if engine is None:
            engine = NativeEngine if NativeEngine.available() else PythonEngine
        self._engine: Engine = engine(
            [_positive(value, f"capacity of link {link!r}") for link, value in capacities.items()]
        )
        self._handles: dict[int, Flow] = {}
        self._committed_ns: int | None = None
        self._new_batch()

    def add(
        self,
        start_ns: int,
        links: Iterable[Hashable],
        size_bytes: int,
        rate_cap: float | None = None,
        count: int = 1,
    ) -> Flow:
        """A flow of `size_bytes` from `start_ns` over `links`; returns its handle.

        `start_ns` may lie before the simulated time. A link listed twice is used twice by every
        byte. `rate_cap` is in bytes/ns. With `count`, one object stands for that many equal flows:
        each has `size_bytes`, and they finish together. A flow of no bytes, or with neither links nor
        cap, completes at its start; one without links moves at its cap.

        Raises KeyError for an unknown link; ValueError for a size below 0, a cap that is not
        positive, a count below 1 or above 2^31, or a start before the time given to `commit`;
        OverflowError for a start beyond 64 bits. O(links), plus the rollback that the next query
        performs.
        """
        start_ns = index(start_ns)
        self._refuse_committed(start_ns)
        numbers, size, cap = self._validate(links, size_bytes, rate_cap, count)
        if not size:
            return Flow(None, start_ns)
        if not numbers:
            return Flow(None, alone_ns(start_ns, size, cap))
        handle = Flow(None)
        self._starts.append(start_ns)
        self._unsent.append(handle)
        self._batch.append(numbers, size, cap, count)
        return handle

    def add_many(
        self,
        start_ns: int,
        routes: Iterable[Sequence[Hashable]],
        size_bytes: int,
        rate_cap: float | None = None,
        count: int = 1,
    ) -> list[Flow]:
        """One flow per route, equal in everything else. Returns the handles in the order of
        `routes`."""
        return [self.add(start_ns, links, size_bytes, rate_cap, count) for links in routes]

    def group(self, flows: Iterable[FlowArguments]) -> FlowGroup:
        """Flows that start together, prepared to be added any number of times, such as those of a
        collective.

        `flows`: (links, size_bytes), (links, size_bytes, rate_cap) or (links, size_bytes, rate_cap,
        count) each, as in `add`. Raises as `add` does, and ValueError for a flow of some bytes
        without links, because no other flow could affect its end.
        """
        prepared = FlowGroup()
        for flow in flows:
            rate_cap = flow[2] if len(flow) > 2 else None
            count = flow[3] if len(flow) > 3 else 1
            numbers, size, cap = self._validate(flow[0], flow[1], rate_cap, count)
            if size and not numbers:
                raise ValueError(
                    "a flow of a group needs links: one that meets nobody can be computed apart"
                )
            if size:
                prepared.append(numbers, size, cap, count)
        return prepared

    def add_group(self, start_ns: int, group: FlowGroup) -> Flow:
        """Adds all flows of `group` (made by this simulator) from `start_ns`, under one handle. It
        is complete when the last of them is.

        This is one object for the caller and one call for the engine. A group without bytes completes
        at its start. Raises as `add`.
        """
        start_ns = index(start_ns)
        self._refuse_committed(start_ns)
        if not group.sizes:
            return Flow(None, start_ns)
        slot = self._engine.add_group(
            start_ns, group.sizes, group.caps, group.counts, group.offsets, group.links
        )
        handle = self._handles[slot] = Flow(slot)
        return handle

    def move(self, handle: Flow, start_ns: int) -> None:
        """Moves the flow's start to `start_ns`, as if it had been added with it. Cost as of `add`.

        For communication whose start depends on completions that have moved. Raises ValueError when
        the old or the new start lies before the time given to `commit`, or when no other flow can
        affect the flow (no bytes, no links).
        """
        start_ns = index(start_ns)
        self._refuse_committed(start_ns)
        self._engine.move(self._movable(handle), start_ns)

    def withdraw(self, handle: Flow) -> None:
        """Takes the flow away, as if it had never been added. Nobody may ask for its completion any
        more, and `changed` does not tell of it. Cost and errors as of `move`."""
        self._engine.withdraw(self._movable(handle))

    def set_capacity(self, at_ns: int, link: Hashable, bytes_per_ns: float) -> None:
        """Sets the capacity of `link` to `bytes_per_ns` (> 0) from `at_ns` until the next change: a
        degraded or a repaired link.

        `at_ns` may lie in the simulator's past, as in `add`. Setting the same link at the same time
        again replaces the value. Raises KeyError for an unknown link, ValueError for a capacity that
        is not positive, or a time before `commit`'s.
        """
        number = self._links[link]
        value = _positive(bytes_per_ns, f"capacity of link {link!r}")
        self._refuse_committed(index(at_ns))
        self._flush()
        self._engine.set_capacity(index(at_ns), number, value)

    def completion_ns(self, handle: Flow) -> int:
        """When the flow is complete, given all flows added so far. Simulates as far as needed."""
        if handle._final_ns is not None:
            return handle._final_ns
        self._flush()
        return self._engine.completion_ns(handle.slot)

    def changed(self) -> dict[Flow, int]:
        """Completions that were reported, by `completion_ns` or here, and have moved since, with
        their new times in ns."""
        self._flush()
        return {self._handles[slot]: time_ns for slot, time_ns in self._engine.changed()}

    def commit(self, before_ns: int) -> None:
        """Simulates up to `before_ns` and drops the history. Nothing that starts earlier may be added
        any more.

        Handles keep the completions of forgotten flows. Committing an earlier time than before
        changes nothing.
        """
        before_ns = index(before_ns)
        if self._committed_ns is not None and before_ns <= self._committed_ns:
            return
        self._flush()
        self._committed_ns = before_ns
        for slot, time_ns in self._engine.commit(before_ns):
            self._handles.pop(slot)._final_ns = time_ns

    def check(self) -> None:
        """Asserts every invariant at every instant that history still covers: see `_flow_check`.
        Slow: for tests."""
        self._flush()
        self._engine.settle()
        check_history(*self._engine.history())

    @property
    def statistics(self) -> FlowStatistics:
        retained = self._engine.retained() + len(self._handles) + len(self._unsent)
        return FlowStatistics(
            self._engine.rollbacks, self._engine.events, retained, self._engine.name
        )

    @property
    def rollbacks(self) -> int:
        """Insertions so far that rolled flows back."""
        return self._engine.rollbacks

    @property
    def events(self) -> int:
        """Instants computed so far, repetitions included."""
        return self._engine.events

    def _movable(self, handle: Flow) -> int:
        """The engine's number of a flow that has not begun before the committed time."""
        self._flush()
        if handle._final_ns is not None:
            raise ValueError(
                "the flow's completion is final: it has no bytes, no links, or lies before what has been committed"
            )
        self._refuse_committed(self._engine.start_ns(handle.slot))
        return handle.slot

    def _validate(
        self,
        links: Iterable[Hashable],
        size_bytes: int,
        rate_cap: float | None,
        count: int,
    ) -> tuple[list[int], float, float]:
        size = float(size_bytes)
        if not 0 <= size < math.inf:
            raise ValueError(f"size_bytes must be at least 0 and finite, not {size_bytes}")
        cap = math.inf if rate_cap is None else _positive(rate_cap, "rate_cap", infinite=True)
        if not 1 <= index(count) <= _MOST:
            raise ValueError(f"count {count} must be from 1 to {_MOST}")
        return [self._links[link] for link in links], size, cap

    def _new_batch(self) -> None:
        """Single flows are handed to the engine in batches: one call for many."""
        self._starts, self._batch = array("q"), FlowGroup()
        self._unsent: list[Flow] = []

    def _flush(self) -> None:
        if not self._unsent:
            return
        unsent, batch = self._unsent, self._batch
        slots = self._engine.add_batch(
            self._starts, batch.sizes, batch.caps, batch.counts, batch.offsets, batch.links
        )
        self._new_batch()
        for handle, slot in zip(unsent, slots, strict=True):
            handle._slot = slot
            self._handles[slot] = handle

    def _refuse_committed(self, time_ns: int) -> None:
        if self._committed_ns is not None and time_ns < self._committed_ns:
            raise ValueError(
                f"{time_ns} ns lies before {self._committed_ns} ns, which has been committed"
            )


def _positive(value: float, what: str, infinite: bool = False) -> float:
    value = float(value)
    if not value > 0 or (math.isinf(value) and not infinite):
        raise ValueError(f"{what} must be positive{'' if infinite else ' and finite'}, not {value}")
    return value
