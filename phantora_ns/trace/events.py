"""The form of a Kineto trace's events: complete events of host and GPU, and the arrows between them.

Why it exists: the tools that read traces depend on details (member names, three decimals, arrows by
correlation number). All of them are in this file. Events are texts, ready to be written.
"""

from __future__ import annotations

from phantora_ns.trace.sort import EventSorter

Lane = tuple[int, int]
"""(pid, tid) of an event: for the host, process and thread; for a GPU, device and stream."""
Span = tuple[int, int]
"""(begin, end) in ns."""


def microseconds(nanoseconds: int) -> str:
    """Microseconds with three decimals, as Kineto writes them; exact."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def add_event(
    sorter: EventSorter, category: str, quoted_name: str, lane: Lane, span: Span, arguments: str
) -> None:
    """A complete event. `quoted_name` is JSON; `arguments` are JSON members."""
    begin_ns, duration_ns = span[0], span[1] - span[0]
    sorter.add(
        begin_ns,
        duration_ns,
        f'{{"ph": "X", "cat": "{category}", "name": {quoted_name}, '
        f'"pid": {lane[0]}, "tid": {lane[1]}, "ts": {microseconds(begin_ns)}, '
        f'"dur": {microseconds(duration_ns)}, "args": {{{arguments}}}}}',
    )


def add_instant(sorter: EventSorter, name: str, lane: Lane, at_ns: int, arguments: str) -> None:
    """Something that takes no time, as Kineto writes PyTorch's `[memory]`."""
    sorter.add(
        at_ns,
        0,
        f'{{"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "{name}", '
        f'"pid": {lane[0]}, "tid": {lane[1]}, "ts": {microseconds(at_ns)}, '
        f'"args": {{{arguments}}}}}',
    )


def add_arrow_end(sorter: EventSorter, phase: str, number: int, lane: Lane, at_ns: int) -> None:
    """One end of an arrow from a launch on the host (phase "s") to its work on a GPU ("f")."""
    ends = ', "bp": "e"' if phase == "f" else ""
    sorter.add(
        at_ns,
        0,
        f'{{"ph": "{phase}", "id": {number}, "pid": {lane[0]}, "tid": {lane[1]}, '
        f'"ts": {microseconds(at_ns)}, "cat": "ac2g", "name": "ac2g"{ends}}}',
    )


def add_gpu_event(
    sorter: EventSorter,
    category: str,
    quoted_name: str,
    lane: Lane,
    span: Span,
    *,
    external: int,
    correlation: int,
    arguments: str,
) -> None:
    """GPU work, and the end of its arrow. `external`: the operator's id, 0 without one.
    `arguments`: further JSON members, starting with a comma."""
    operator = f'"External id": {external}, ' if external else ""
    queued = '"queued": 0, ' if category == "kernel" else ""
    common = (
        f'{operator}{queued}"device": {lane[0]}, "context": 1, "stream": {lane[1]}, '
        f'"correlation": {correlation}{arguments}'
    )
    add_event(sorter, category, quoted_name, lane, span, common)
    if correlation:
        add_arrow_end(sorter, "f", correlation, lane, span[0])
