"""The arithmetic that the flow simulator promises, in one place.

Why it exists: "the same flows inserted in any order give the same times, to the nanosecond" can
only hold if every number is a pure function of the set of flows. The rules that make it so:

1. Time inside the simulator is an integer count of ticks of 2^-20 ns. Starts are whole nanoseconds,
   so exact; an end is rounded once, to the nearest tick (`end_tick`). Only differences of times
   enter any formula: a schedule that is shifted in time has the same durations, so training steps
   repeat.
2. A rate is a float that depends on nothing but the links, caps and counts of the flows that are
   active in its connected component (`_flow_fill`), whatever order they are listed in and whatever
   other components are computed with it.
3. The bytes a flow has left are updated when its rate takes another value, and at no other moment.
   Those moments are a function of the set of flows, so the roundings are too.
4. A completion is reported as the first whole nanosecond at or after the end. An end that exceeds a
   whole nanosecond by no more than 2^-12 ns counts as being on it (`tick_to_ns`). Most ends are
   mathematically whole; without this slack they would land on either side by the last bit of a
   division.

The accumulated error of (1) to (3) against the exact fluid model is some ticks, hundreds of times
below the slack.
"""

TICKS_PER_NS = 1 << 20
NS_PER_TICK = 2.0**-20
SLACK_TICKS = 1 << 8


def ns_to_tick(time_ns: int) -> int:
    """The tick at which nanosecond `time_ns` begins (exact)."""
    return time_ns << 20


def tick_to_ns(tick: int) -> int:
    """ceil(tick - slack) in nanoseconds: the only place where a completion is rounded to
    nanoseconds."""
    return -((SLACK_TICKS - tick) >> 20)


def bytes_left(left: float, rate: float, ticks: int) -> float:
    """Bytes left of `left` after `ticks` at `rate` bytes/ns (two float roundings: the product, the
    difference)."""
    return left - rate * (ticks * NS_PER_TICK)


def end_tick(tick: int, left: float, rate: float) -> int:
    """When `left` bytes at `rate` bytes/ns from `tick` on are done: nearest tick, at least one tick
    later, so time advances."""
    return tick + max(1, int(left / rate * TICKS_PER_NS + 0.5))


def alone_ns(start_ns: int, size: float, rate: float) -> int:
    """Completion of a flow that meets nobody: at the cap `rate`, or at once when that is
    infinite."""
    return (
        start_ns if rate == float("inf") else tick_to_ns(end_tick(ns_to_tick(start_ns), size, rate))
    )
