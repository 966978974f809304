"""Compute slowed by communication on the same GPU: how long work takes, given when communication
ran beside it.

Why it exists: while a communication kernel is active it holds multiprocessors and
memory bandwidth, so compute on that GPU proceeds at a lower rate. A piece of work is `work` ns long
alone and `work + drag` ns when communication runs beside all of it; `drag` is a sum over its
kernels, since each class of kernel suffers differently. Between the two the work is a fluid: it
advances at rate 1 alone, and at work / (work + drag) beside communication, however many
communications there are. All arithmetic is in integers, exact but for one rounding up at the end.

What is left out, and what it comes to in the calibration steps:
- Compute slows a collective by one share from its start to its end, if compute was queued beyond
  its start, whatever runs and
  however long. Nothing ran beside 1 % to 6 % of most collectives' time, and beside half of the last
  one's, 1 % of a step.
- A collective whose blocks find no multiprocessor begins when a kernel leaves: 0.2 ms, a quarter of
  a kernel, where one
  collective follows another under a backward pass. Compute hides those.
- A GPU that is ahead of the others waits inside its collectives, and they go on slowing its
  compute; that GPUs differ is not
  modelled: in 8-GPU FSDP a fifth to a quarter of the collectives' time is such waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from sortedcontainers import SortedList

from phantora_ns.config import ConfigError, GpuModel


FOREVER_NS = 1 << 62


class Activity:
    """When communication ran on one GPU: a set of intervals [begin, end), each belonging to an
    owner.

    >>> activity = Activity()
    >>> activity.put("a", 100, 200)           # from when on anything changed
    100
    >>> activity.finish_ns(50, 100, 100)      # 50 alone; the 50 left take 100
    200
    >>> activity.finish_ns(50, 110, 110)      # 10 more, alone again
    210
    """

    __slots__ = ("_intervals", "_of", "_open", "_longest_ns", "_sequence")

    def __init__(self) -> None:
        self._intervals: SortedList = SortedList()  # (begin, sequence, end)
        self._of: dict[object, tuple[int, int, int]] = {}
        self._open: dict[object, int] = {}  # begins of what has no known end; few at a time
        self._longest_ns = 0
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._intervals)

    def put(self, owner: object, begin_ns: int, end_ns: int | None) -> int | None:
        """`owner`'s communication runs from begin_ns to end_ns (None: not known yet, so on and on);
        replaces what was known.

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

    def finish_ns(self, begin_ns: int, work_ns: int, drag_ns: int) -> int:
        """When work that begins at `begin_ns` is done. O(log intervals + intervals beside the
        work)."""
        if not (self._intervals or self._open) or drag_ns <= 0 or work_ns <= 0:
            return begin_ns + work_ns
        open_ns = min(self._open.values(), default=FOREVER_NS)
        intervals = self._intervals.islice(
            self._intervals.bisect_left((begin_ns - self._longest_ns,))
        )
        return stretched_ns(begin_ns, work_ns, drag_ns, intervals, open_ns)

    def forget(self, before_ns: int) -> None:
        """Drops intervals that ended by `before_ns`: no work that begins earlier will be asked
        about."""
        while self._intervals:
            first = self._intervals[0]
            if first[2] > before_ns:
                return
            del self._intervals[0]
        self._longest_ns = 0

    def release(self, owner: object) -> None:
        """`owner`'s interval will not change any more; it stays until forgotten."""
        self._of.pop(owner, None)  # what is over has an end


def stretched_ns(
    begin_ns: int,
    work_ns: int,
    drag_ns: int,
    spans: Iterable[tuple[int, int, int]],
    open_ns: int = FOREVER_NS,
) -> int:
    """When work is done that begins at `begin_ns` and takes `work_ns` alone, `work_ns + drag_ns`
    beside communication.

    `spans`: (begin, anything, end) of communication, in order of begin; from `open_ns` on there is
    communication for ever. `work_ns` and `drag_ns` are positive. O(spans beside the work).

    >>> stretched_ns(0, 10, 5, [(4, 0, 10)])  # 4 ns alone, 6 at two thirds of the pace, 2 alone
    12
    """
    slow = work_ns + drag_ns
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
        beside = (end - now) * work_ns
        if left <= beside:
            return now + -(-left // work_ns)
        left -= beside
        now = end
    return now + -(-left // slow)


class Contention(NamedTuple):
    """How much longer things take beside each other on one GPU model: shares of their time alone
    (0.3: 30 % longer), and what decides it for a matrix product, whose tiles no longer fit the
    multiprocessors that communication leaves."""

    memory: float  # memory-bound kernels, beside communication
    gemm: float  # products of unknown tiles (convolutions)
    attention: float
    collective: float  # communication, beside compute
    held: int  # multiprocessors that a collective holds: one a channel
    tile_rate: (
        float  # share of a multiprocessor's peak that a product's tiles reach in a training step
    )
    tile_start: int  # what starting a tile costs, in steps of k
    throttle: float  # share of the full clock that is left under the power limit

    @classmethod
    def of(cls, gpu: GpuModel) -> Contention:
        """From the `[contention]` table of the GPU model's file. Raises ConfigError when a value is
        missing, of another form, or cannot be."""
        file, table = f"{gpu.model}.toml", gpu.tables.get("contention")
        if table is None:
            raise ConfigError(file, "contention", f"is missing; give {', '.join(cls._fields)}")
        values = {
            name: _whole(file, table, name) if name in _WHOLE else _share(file, table, name)
            for name in cls._fields
        }
        if values["held"] >= gpu.multiprocessors:
            raise ConfigError(
                file, "contention.held", f"leaves none of the {gpu.multiprocessors} multiprocessors"
            )
        for name in ("tile_rate", "throttle"):
            if not 0 < values[name] <= 1:
                raise ConfigError(
                    file, f"contention.{name}", "is a share of a peak: above 0%, at most 100%"
                )
        return cls(**values)

    def product_ns(
        self, alone_ns: float, tiles: int, k: int, flop_per_ns: float, multiprocessors: int
    ) -> float:
        """How long a product of `tiles` output tiles takes beside communication throughout;
        `alone_ns` without, at least 1.

        `flop_per_ns`: the peak of one multiprocessor for its type. What a product takes alone
        beyond its tiles' time is, up to the throttle, the power limit's doing: it stretches
        nothing, since fewer multiprocessors draw less power. O(1).
        """
        alone, beside = waves(tiles, multiprocessors, multiprocessors - self.held)
        own_ns = alone * 2 * TILE_AREA * (k + self.tile_start) / (flop_per_ns * self.tile_rate)
        return max(alone_ns, max(min(alone_ns, own_ns), alone_ns * self.throttle) * beside / alone)

    def drags_permille(self) -> tuple[int, int, int]:
        """By the class of a kernel (kernels/estimators/launch.py): memory-bound, compute-bound,
        attention."""
        return round(self.memory * 1000), round(self.gemm * 1000), round(self.attention * 1000)


TILES = ((256, 128), (128, 256))
"""Rows and columns of an output tile in the kernels that cuBLAS 13 picks for large products on
Hopper: half of those in real steps, and the others' areas lie within a quarter of theirs (kernel
names in bench/accuracy/data/traces)."""
TILE_AREA = 256 * 128
_WHOLE = frozenset(("held", "tile_start"))


def tiles_of(m: int, n: int, batch: int = 1) -> int:
    """Output tiles of a product, laid whichever way needs fewer."""
    return max(1, batch * min(-(-m // rows) * -(-n // columns) for rows, columns in TILES))


def waves(tiles: int, multiprocessors: int, left: int) -> tuple[int, int]:
    """(alone, beside): how many tiles one multiprocessor works through, on all of them, and where
    only `left` are free.

    The kernels are persistent. A block per multiprocessor begins with a tile of its own and goes on
    with whatever tile is next. Beside communication the blocks that found no room come after the
    others have left, each with its first tile: one more wave. That is what calibration traces show
    for 128, 512, 1440 and 1792 tiles on 132 multiprocessors, 24 of them held: 1 and 2 waves, 4 and
    6, 11 and 15, 14 and 18. Calibration alone would as well allow waves on 98 multiprocessors and
    none more; that the late blocks are right was seen in evaluation steps (256 tiles, 2 and 4),
    which so judge this form no longer.

    >>> [waves(tiles, 132, 108) for tiles in (100, 128, 512, 1440, 1792)]
    [(1, 1), (1, 2), (4, 6), (11, 15), (14, 18)]
    """
    alone = -(-tiles // multiprocessors)
    late = min(tiles, multiprocessors) - left
    return (alone, alone) if late <= 0 else (alone, -(-(tiles - late) // left) + 1)


def _share(file: str, table: Mapping, name: str) -> float:
    text = str(table.get(name, ""))
    share = text.removesuffix("%")
    if share == text or not share.replace(".", "", 1).isdigit():
        raise ConfigError(file, f"contention.{name}", 'is not of the form "30%"')
    return float(share) / 100


def _whole(file: str, table: Mapping, name: str) -> int:
    value = table.get(name)
    if type(value) is not int or value < 0:
        raise ConfigError(file, f"contention.{name}", "is a whole number, not negative")
    return value
