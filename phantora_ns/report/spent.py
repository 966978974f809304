"""Where a step goes, in a line of the summary.

Why it exists: "why is it not faster" is a first question, and a server may have no browser for the page. Rule: from
the report's sums alone. The page is exact: there every nanosecond of the traced steps has one owner.
"""

from __future__ import annotations

from typing import Any

WORDS = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "copy": "copies",
    "reduction": "reductions",
    "triton": "Triton's kernels",
}
"""Of classes of kernels (docs/report.md) whose name alone says little."""
NAMED = 3
"""So many classes are named; the rest is one figure."""
HOST_MATTERS = 0.1
"""With a larger rest the line says how much of the step the host works."""


def spent_lines(report: dict[str, Any]) -> list[str]:
    """`the step goes into: computing 92.7% (of it matrix products 66.3%, ...), exposed communication 1.2%, ...`;
    nothing without steps or kernels.

    A kernel's time in the report is that without communication beside it. So what is neither computing nor
    exposed is idle in a job that never communicates, and in others also the time by which communication slows
    kernels down; only a trace tells these apart.
    """
    step, kernel_time_ns = report["step"], report["kernel_time_ns"]
    if step is None or not step["mean_ns"] or not kernel_time_ns:
        return []
    exposed = min(1.0, step["exposed_ns"] / step["mean_ns"])
    computing = min(1.0 - exposed, step["busy_ns"] / step["mean_ns"])
    rest = 1.0 - exposed - computing
    alone = not any(rank["comm_launches"] for rank in report["ranks"])
    text = (
        f"the step goes into: computing {computing:.1%} (of it {_kinds(kernel_time_ns)}), exposed "
        f"communication {exposed:.1%}, {'idle' if alone else 'idle or slowed down by communication'} {rest:.1%}"
    )
    if rest > HOST_MATTERS:
        text += f"; the host works {min(1.0, step['host_ns'] / step['mean_ns']):.1%} of the step"
    return [text]


def _kinds(kernel_time_ns: dict[str, dict[str, int]]) -> str:
    """The classes of kernels, as shares of the whole run's computing."""
    sums = {name: sum(by_source.values()) for name, by_source in kernel_time_ns.items()}
    shares = sorted(
        ((ns / sum(sums.values()), name) for name, ns in sums.items()),
        key=lambda item: (-item[0], item[1]),
    )
    named = [f"{WORDS.get(name, name)} {share:.1%}" for share, name in shares[:NAMED]]
    if len(shares) > NAMED:
        named.append(f"others {sum(share for share, _ in shares[NAMED:]):.1%}")
    return ", ".join(named)
