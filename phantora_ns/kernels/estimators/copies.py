"""Time of a copy or a memset: over PCIe, within the device, or between devices (over NVLink if the
server has it).

Why it exists: copies carry their size, so a latency and a bandwidth per path are enough. Pageable
host memory goes through the driver's staging buffer. That path is slower for copies above the size
that the driver inlines.
"""

from __future__ import annotations

from phantora_ns.kernels.rates import Rates
from phantora_ns.kernels.signature import Memory
from phantora_ns.protocol import MemoryKind, MemoryOp


def duration_ns(memory: Memory, rates: Rates) -> float:
    """Nanoseconds that the operation keeps the GPU's copy engine or memory busy."""
    size = max(0, memory.bytes)
    if memory.op == MemoryOp.SET:
        return rates.memory_ns("memset", size)
    places = {memory.src, memory.dst}
    if MemoryKind.PAGEABLE in places:
        direction = "to_device" if memory.src == MemoryKind.PAGEABLE else "to_host"
        share = rates.number(
            f"copy.pageable_{direction}"
            if size > rates.number("copy.staged_above")
            else "copy.pinned"
        )
        return rates.number("copy.base") + size / (rates.pcie_bytes_per_ns * share)
    if MemoryKind.PINNED in places:
        return rates.number("copy.base") + size / (
            rates.pcie_bytes_per_ns * rates.number("copy.pinned")
        )
    if MemoryKind.PEER in places and rates.nvlink_bytes_per_ns:
        return rates.number("copy.base") + size / rates.nvlink_bytes_per_ns
    if MemoryKind.PEER in places:
        return rates.number("copy.base") + size / (
            rates.pcie_bytes_per_ns * rates.number("copy.peer")
        )
    return rates.memory_ns("device_copy", 2 * size)
