"""The flow simulator's compiled engine, through ctypes.

Why it exists: `libflows/` computes, this file converts. It has the methods of `PythonEngine` and gives
the same bits. An installation may omit the compiled library; that is not an error.
`NativeEngine.available()` reports it, and `FlowSimulator` then takes the Python engine, which gives
the same times more slowly.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable
from ctypes import POINTER, byref, c_bool, c_double, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from phantora_ns.sim._flow_check import FlowHistory, History
from phantora_ns.sim._flow_time import FOREVER_NS

LIBRARY = Path(__file__).resolve().parent.parent / "lib" / "libphantora-flows.so"

_ENDED = 3  # enum state in engine.h
_Tick = c_int64 * 2

Ints: TypeAlias = "array[int]"
Floats: TypeAlias = "array[float]"


class _Result(ctypes.Structure):
    _fields_ = [("group", c_int64), ("time_ns", c_int64)]


@cache
def _library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    signatures = {
        "new": (c_void_p, [c_int32, POINTER(c_double), c_int64]),
        "free": (None, [c_void_p]),
        "add": (None, [c_void_p, c_int64, *[c_void_p] * 7]),
        "add_group": (c_int32, [c_void_p, c_int64, c_int64, *[c_void_p] * 5]),
        "move": (None, [c_void_p, c_int32, c_int64]),
        "withdraw": (None, [c_void_p, c_int32, c_int64]),
        "set_capacity": (None, [c_void_p, c_int64, c_int32, c_double]),
        "settle": (None, [c_void_p]),
        "completion": (c_int64, [c_void_p, c_int32]),
        "changed": (c_int64, [c_void_p]),
        "commit": (c_int64, [c_void_p, c_int64]),
        "results": (POINTER(_Result), [c_void_p]),
        "statistics": (None, [c_void_p, POINTER(c_int64)]),
        "now": (None, [c_void_p, _Tick, _Tick]),
        "flow": (c_int, [c_void_p, c_int32, _Tick, _Tick, c_double * 2, c_int64 * 2]),
        "group": (c_bool, [c_void_p, c_int32, POINTER(c_int64), _Tick]),
        "log": (
            None,
            [
                c_void_p,
                c_int32,
                c_void_p,
                POINTER(c_double),
                POINTER(c_double),
                POINTER(c_int32),
                POINTER(c_double),
            ],
        ),
        "capacities": (c_int32, [c_void_p, c_int32, c_void_p, POINTER(c_double)]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"ph_flows_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _tick(halves: ctypes.Array[c_int64]) -> int:
    high, low = halves
    return (int(high) << 64) | (int(low) & 0xFFFF_FFFF_FFFF_FFFF)


def _address(values: array[Any]) -> int:
    return values.buffer_info()[0]


class NativeEngine:
    """Groups of flows by number. Times of its methods are nanoseconds; links are indices into
    `capacities`."""

    name = "native"

    def __init__(self, capacities: Iterable[float], budget: int = 0):
        """`budget`: log entries (48 bytes each) to keep before history is thinned out; 0 means about
        131,000."""
        values = list(capacities)
        self._link_count = len(values)
        self._library = _library(LIBRARY)
        self._engine = self._library.ph_flows_new(
            len(values), (c_double * len(values))(*values), budget
        )
        self._time = c_int64()

    def __del__(self) -> None:
        if getattr(self, "_engine", None):
            self._library.ph_flows_free(self._engine)

    @staticmethod
    def available() -> bool:
        """Whether the library has been built."""
        return LIBRARY.exists()

    def add_batch(
        self, starts: Ints, sizes: Floats, caps: Floats, counts: Ints, offsets: Ints, links: Ints
    ) -> Ints:
        """As `PythonEngine.add_batch`."""
        groups = array("i", bytes(4 * len(starts)))
        arrays: tuple[array[Any], ...] = (starts, sizes, caps, counts, offsets, links, groups)
        self._library.ph_flows_add(self._engine, len(starts), *map(_address, arrays))
        return groups

    def add_group(
        self, start_ns: int, sizes: Floats, caps: Floats, counts: Ints, offsets: Ints, links: Ints
    ) -> int:
        """As `PythonEngine.add_group`."""
        arrays: tuple[array[Any], ...] = (sizes, caps, counts, offsets, links)
        number: int = self._library.ph_flows_add_group(
            self._engine, start_ns, len(sizes), *map(_address, arrays)
        )
        return number

    def move(self, group: int, start_ns: int) -> None:
        """Moves the group's start to `start_ns`, as if it had been added with it."""
        self._library.ph_flows_move(self._engine, group, start_ns)

    def withdraw(self, group: int) -> None:
        """As `PythonEngine.withdraw`."""
        self._library.ph_flows_withdraw(self._engine, group, FOREVER_NS)

    def start_ns(self, group: int) -> int:
        """When the group starts."""
        self._library.ph_flows_group(self._engine, group, byref(self._time), _Tick())
        return self._time.value

    def set_capacity(self, at_ns: int, link: int, bytes_per_ns: float) -> None:
        self._library.ph_flows_set_capacity(self._engine, at_ns, link, bytes_per_ns)

    def completion_ns(self, group: int) -> int:
        completion_ns: int = self._library.ph_flows_completion(self._engine, group)
        return completion_ns

    def changed(self) -> list[tuple[int, int]]:
        """(group, new time) of reported completions that moved, in order of group."""
        return sorted(self._results(self._library.ph_flows_changed(self._engine)))

    def commit(self, before_ns: int) -> list[tuple[int, int]]:
        """Runs up to `before_ns` and drops history. Returns (group, completion) of the groups that
        are forgotten for good."""
        return self._results(self._library.ph_flows_commit(self._engine, before_ns))

    def settle(self) -> None:
        self._library.ph_flows_settle(self._engine)

    def end_tick(self, group: int) -> int | None:
        """The exact end, in ticks, of a group that has ended."""
        done = _Tick()
        return (
            _tick(done)
            if self._library.ph_flows_group(self._engine, group, byref(self._time), done)
            else None
        )

    @property
    def rollbacks(self) -> int:
        return self._statistics()[0]

    @property
    def events(self) -> int:
        return self._statistics()[1]

    def retained(self) -> int:
        """Number of objects that history and present hold: flows, log entries, past references,
        queue entries, capacity changes."""
        return self._statistics()[2]

    def history(self) -> History:
        """As `PythonEngine.history`. Thinned history is complete only from a later tick on, at worst
        from now on."""
        now, since = _Tick(), _Tick()
        self._library.ph_flows_now(self._engine, now, since)
        flows = [
            flow
            for slot in range(self._statistics()[3])
            if (flow := self._flow(slot, _tick(since)))
        ]
        capacities = [self._capacities(link) for link in range(self._link_count)]
        return _tick(now), min(_tick(since), _tick(now)), flows, capacities

    def _results(self, count: int) -> list[tuple[int, int]]:
        results = self._library.ph_flows_results(self._engine)
        return [(results[i].group, results[i].time_ns) for i in range(count)]

    def _statistics(self) -> list[int]:
        values = (c_int64 * 4)()
        self._library.ph_flows_statistics(self._engine, values)
        return list(values)

    def _flow(self, slot: int, complete_from: int) -> FlowHistory | None:
        start, done, size_cap, lengths = _Tick(), _Tick(), (c_double * 2)(), (c_int64 * 2)()
        state = self._library.ph_flows_flow(self._engine, slot, start, done, size_cap, lengths)
        if not state:
            return None
        since, left, rate = (
            (_Tick * lengths[0])(),
            (c_double * lengths[0])(),
            (c_double * lengths[0])(),
        )
        links, weights = (c_int32 * lengths[1])(), (c_double * lengths[1])()
        self._library.ph_flows_log(self._engine, slot, since, left, rate, links, weights)
        log = [(_tick(since[i]), left[i], rate[i]) for i in reversed(range(lengths[0]))]
        first = next((i for i in range(len(log) - 1, 0, -1) if log[i][0] < complete_from), 0)
        entries = tuple(sorted(zip(links, map(int, weights), strict=True)))
        end = _tick(done) if state == _ENDED else None
        return slot, _tick(start), size_cap[0], size_cap[1], entries, log[first:], end

    def _capacities(self, link: int) -> list[tuple[int, float]]:
        count = self._library.ph_flows_capacities(self._engine, link, None, None)
        since, values = (_Tick * count)(), (c_double * count)()
        self._library.ph_flows_capacities(self._engine, link, since, values)
        return [(_tick(since[i]), values[i]) for i in range(count)]
