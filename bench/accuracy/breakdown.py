"""Where one step's time goes in Kineto traces, side by side: compute, exposed communication, idle
time.

    python -m bench.accuracy.breakdown TRACE.json.gz ...

Why it exists: an error in step time says nothing until it is known which part of the step it comes
from. Works alike on traces of real GPUs and on simulated ones. Times in ms per step; compute +
exposed + host + queued (+ unknown) = step (phantora_ns/trace/breakdown.py says what each part is).
`phantora-ns trace diff` goes on from here to the single kernel.
"""

from __future__ import annotations

import sys
from pathlib import Path

from phantora_ns.trace.breakdown import Breakdown, own
from phantora_ns.trace.kineto import Trace, TraceError, read_trace

COLUMNS = (
    ("step", "step_ns"),
    ("compute", "compute_ns"),
    ("exposed", "exposed_ns"),
    ("host", "idle_host_ns"),
    ("queued", "idle_queued_ns"),
    ("unknown", "idle_unknown_ns"),
    ("|kernels", "kernel_sum_ns"),
    ("comm.", "communication_ns"),
    ("hidden", "hidden_ns"),
)


def of_trace(trace: Trace) -> tuple[Breakdown, int]:
    """The parts of all the trace's steps added up (ns), and how many steps those are."""
    total = Breakdown()
    for step in trace.steps:
        total.add(own(trace.activities, step).parts)
    return total, len(trace.steps)


def main() -> int:
    print(f"{'trace':28s} " + " ".join(f"{name:>9s}" for name, _ in COLUMNS) + "  launches")
    for name in sys.argv[1:]:
        try:
            parts, steps = of_trace(read_trace(name))
        except TraceError as error:
            print(f"breakdown.py: {error}", file=sys.stderr)
            return 1
        numbers = " ".join(f"{getattr(parts, field) / steps / 1e6:9.2f}" for _, field in COLUMNS)
        print(f"{Path(name).name.split('.')[0]:28s} {numbers} {parts.launches / steps:9.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
