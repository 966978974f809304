"""Size of the work of a kernel that TorchInductor has written in Triton, from its name and its
launch's small integers.

Why it exists: such a kernel has no C++ name that gives the types. Its grid depends on the block sizes
that autotuning chose, not only on the work. The parameters do give the work: first the tensors'
addresses, then the symbols of dynamic shapes (`ks0`), last the sizes of the dimensions (`ynumel, xnumel,
r0_numel`). Where no framework operator encloses the launch, its identity holds them (docs/wire-protocol.md).
Names and order of the parameters follow torch/_inductor/codegen/triton.py, release 2.11. The tensors' types are
not known.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import Any

from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import Kernel

ADDRESS = 0xFFFFFFFF  # a parameter that is not a small integer
# Bytes per element and tensor: between bf16 and fp32, less for tensors smaller than the work.
TENSOR_BYTES = 2.0
# Of a pointwise kernel whose size is too large for an identity: the value that autotuning prefers.
ELEMENTS_PER_THREAD = 8
INDUCTORS = re.compile(r"triton_(poi|red|per)_")
POINTWISE, REDUCTION, PERSISTENT = "poi", "red", "per"


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel's amount of work: `rows` results of `length` elements each. A pointwise kernel has
    rows of one element.

    `kind`: poi, red (loops over its rows) or per (holds its rows in registers); `tensors`: the
    number of addresses among the parameters.
    """

    kind: str
    tensors: int
    rows: int
    length: int

    @property
    def elements(self) -> int:
        return self.rows * self.length

    @property
    def bytes(self) -> float:
        """Bytes moved, if every tensor is as large as the work. The tensor of rows' results is
        smaller and is left out."""
        whole = self.tensors if self.kind == POINTWISE else max(1, self.tensors - 1)
        return TENSOR_BYTES * whole * self.elements


def integers(identity: Any) -> list[int]:
    """The parameters that an identity without an operator holds. ADDRESS stands for a parameter that
    is not a small integer."""
    if not isinstance(identity, bytes) or len(identity) % 4 or not identity:
        return []
    return list(struct.unpack(f"<{len(identity) // 4}I", identity))


def work(kernel: Kernel, identity: Any) -> Work | None:
    """The work of a launch that no operator encloses. None for a kernel that Inductor did not write,
    or that comes from a template (products)."""
    found = INDUCTORS.match(kernel.name)
    if found is None:
        return None
    given = integers(identity)
    tensors = given.count(ADDRESS)
    # The grid is as wide as x and as high as y. What comes before these sizes is a symbol.
    dimensions = 1 + (kernel.gy * kernel.gz > 1) + (found[1] != POINTWISE)
    sizes = [value for value in given if value not in (0, ADDRESS)][-dimensions:]
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
    """The larger of the times by traffic and by threads. Autotuning also tries blocks whose threads
    have almost nothing to do."""
    return rates.memory_ns(
        f"triton_{found.kind}", found.bytes, kernel.blocks * kernel.block_threads
    )
