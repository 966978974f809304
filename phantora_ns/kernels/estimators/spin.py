"""Time of a kernel that only lets clock cycles pass: PyTorch's `torch.cuda._sleep`.

Why it exists: tests and studies of overlap stand such kernels in for work. How long one takes is its
parameter, which the launch's identity holds (docs/wire-protocol.md), and not its size. So no recording of
another one tells it.
"""

from __future__ import annotations

from typing import Any

from phantora_ns.kernels.binary import names
from phantora_ns.kernels.rates import Rates

CYCLES_BYTES = 8


def cycles(fields: Any) -> int | None:
    """How many clock cycles a launch waits; None for every other launch.

    >>> launch = ["_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl", *[1] * 6, *[0] * 4]
    >>> cycles([*launch, (1980).to_bytes(8, "little")])
    1980
    >>> cycles([*launch, b""])
    """
    if not isinstance(fields, (list, tuple)) or len(fields) != 12:
        return None
    name, identity = fields[0], fields[11]
    if not isinstance(name, str) or "spin_kernel" not in name:
        return None
    if not isinstance(identity, bytes) or len(identity) != CYCLES_BYTES:
        return None
    if names.parse(name).base != "spin_kernel":
        return None
    return max(0, int.from_bytes(identity, "little", signed=True))


def duration_ns(waits: int, rates: Rates) -> float:
    """At the GPU's highest clock, which one thread does not lower."""
    return rates.memory_ns("other", 0) + waits / rates.cycles_per_ns
