"""The flow simulator's arithmetic, in one place.

Why it exists: "the same flows inserted in any order give the same times, to the nanosecond" holds
only if every number is a pure function of the set of flows. These rules ensure it:

1. Time inside the simulator is an integer count of ticks of 2^-20 ns. Starts are whole nanoseconds,
   so they are exact. An end is rounded once, to the nearest tick (`end_tick`). Only differences of
   times enter any formula. So a schedule that is shifted in time has the same durations, and training
   steps repeat.
2. A rate is a float that depends only on the links, caps and counts of the flows that are active in
   its connected component (`_flow_fill`). The order of the flows and the other components that are
   computed with it do not matter.
3. The bytes a flow has left are updated exactly when its rate takes another value. Those moments are
   a function of the set of flows, so the roundings are too.
4. A completion is reported as the first whole nanosecond at or after the end. An end that exceeds a
   whole nanosecond by at most 2^-12 ns counts as that nanosecond (`tick_to_ns`). Most ends are
   mathematically whole. Without this slack, the last bit of a division would decide on which side
   they land.

The accumulated error of (1) to (3) against the exact fluid model is a few ticks, hundreds of times
smaller than the slack.
"""

TICKS_PER_NS = 1 << 20
NS_PER_TICK = 2.0**-20
SLACK_TICKS = 1 << 8
FOREVER_NS = 1 << 62
"""Later completions are reported as this one."""


def ns_to_tick(time_ns: int) -> int:
    """The tick at which nanosecond `time_ns` begins (exact)."""
    return time_ns << 20


def tick_to_ns(tick: int) -> int:
    """ceil(tick - slack) in nanoseconds, at most FOREVER_NS. Completions are rounded to nanoseconds
    only here."""
    return min(-((SLACK_TICKS - tick) >> 20), FOREVER_NS)


def bytes_left(left: float, rate: float, ticks: int) -> float:
    """The rest of `left` bytes after `ticks` at `rate` bytes/ns. Two float roundings: the product and
    the difference."""
    return left - rate * (ticks * NS_PER_TICK)


def end_tick(tick: int, left: float, rate: float) -> int:
    """When `left` bytes at `rate` bytes/ns from `tick` on are done: the nearest tick, at least one
    tick later, so that time advances."""
    return tick + max(1, int(left / rate * TICKS_PER_NS + 0.5))


def alone_ns(start_ns: int, size: float, rate: float) -> int:
    """Completion of a flow that meets no other flow: at the cap `rate`, or at once when that is
    infinite."""
    return (
        start_ns if rate == float("inf") else tick_to_ns(end_tick(ns_to_tick(start_ns), size, rate))
    )
