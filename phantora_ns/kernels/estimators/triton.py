"""Size of the work of a kernel that TorchInductor has written in Triton, from its name and its
launch's small integers.

Why it exists: such a kernel has no C++ name that tells types, and its grid depends on the block
sizes that autotuning chose, not only on the work. Its parameters tell: the tensors' addresses, then
the sizes of its dimensions (`xnumel, r0_numel`), which the identity of a launch holds where no
framework operator encloses it (docs/wire-protocol.md). Names and order of the parameters are those
of torch/_inductor/codegen/triton.py, release 2.11. What types the tensors have nobody tells.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import Any

from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import Kernel

ADDRESS = 0xFFFFFFFF  # a parameter that is no small integer
# of one tensor an element: between bf16 and fp32, less the tensors that are smaller than the work
TENSOR_BYTES = 2.0
ELEMENTS_PER_THREAD = (
    8  # of a pointwise kernel whose size is too large for an identity: what autotuning prefers
)
_NAME = re.compile(r"triton_(poi|red|per)_")
POINTWISE, REDUCTION, PERSISTENT = "poi", "red", "per"


@dataclass(frozen=True, slots=True)
class Work:
    """`kind`: poi, red (loops over its rows) or per (holds them in registers); `tensors`: addresses
    among the parameters; `rows` results of `length` elements each; a pointwise kernel has rows of
    one."""

    kind: str
    tensors: int
    rows: int
    length: int

    @property
    def elements(self) -> int:
        return self.rows * self.length

    @property
    def bytes(self) -> float:
        """What it moves, if all of its tensors are as large as its work; rows' results are not."""
        whole = self.tensors if self.kind == POINTWISE else max(1, self.tensors - 1)
        return TENSOR_BYTES * whole * self.elements


def integers(identity: Any) -> list[int]:
    """The parameters that an identity without an operator holds, ADDRESS for one that is no small
    integer."""
    if not isinstance(identity, bytes) or len(identity) % 4 or not identity:
        return []
    return list(struct.unpack(f"<{len(identity) // 4}I", identity))


def work(kernel: Kernel, identity: Any) -> Work | None:
    """The work of a launch that no operator encloses; None for a kernel that is not Inductor's, or
    is a template's (products)."""
    found = _NAME.match(kernel.name)
    if found is None:
        return None
    given = integers(identity)
    tensors = given.count(ADDRESS)
    sizes = [value for value in given if value not in (0, ADDRESS)]
    if found[1] == POINTWISE or len(sizes) < 2:
        volume = (
            math.prod(sizes)
            if sizes
            else kernel.blocks * kernel.block_threads * ELEMENTS_PER_THREAD
        )
        return Work(
            found[1], max(1, tensors), *((volume, 1) if found[1] == POINTWISE else (1, volume))
        )
    return Work(found[1], max(1, tensors), math.prod(sizes[:-1]), sizes[-1])


def duration_ns(found: Work, kernel: Kernel, rates: Rates) -> float:
    """Traffic or threads, whichever takes longer: autotuning also tries blocks whose threads have
    next to nothing to do."""
    return rates.memory_ns(
        f"triton_{found.kind}", found.bytes, kernel.blocks * kernel.block_threads
    )
