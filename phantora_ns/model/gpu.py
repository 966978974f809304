"""One GPU model: sizes, rates, what its calls cost the host, and how its collectives behave.

Why it exists: it is what phantora_ns/data/gpus/MODEL.toml means once it has been validated
(`config/gpus.py`). Bandwidths are in bytes per nanosecond, per direction; peaks are in
floating-point operations per nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from phantora_ns.model.contention import Contention
from phantora_ns.model.nccl import NcclTimes
from phantora_ns.model.power import Power
from phantora_ns.protocol import CallClass

HOST_CALLS = CallClass.LABELS[: CallClass.FREE + 1]
"""Classes of calls that cost the host time. Of the others only the job's own time is known."""


@dataclass(frozen=True)
class HostCosts:
    """What the host pays for calls of the driver, and the GPU's own latencies, in nanoseconds."""

    call_ns: Mapping[str, int]  # by class of call: HOST_CALLS
    launch_latency_ns: int  # from the end of the launch's call to the first cycle on an idle stream
    kernel_gap_ns: int  # between back-to-back kernels
    unknown_ns: int  # the job's own time before a call of which no record says anything
    launch_queue: int
    """Queue slots of one stream: a launch waits while all of them hold unfinished work. 0: no
    limit."""
    crowd_gap_ns: int = 0
    """What is added to `kernel_gap_ns` while kernels of two or more other streams wait for events."""
    graph_gap_ns: int = 0  # between back-to-back kernels of a CUDA graph
    graph_launch_ns: int = 0  # what cudaGraphLaunch costs the host
    graph_node_ns: int = 0  # what each op of the graph adds to that

    def times(self, factor: float) -> HostCosts:
        """With calls that take `factor` times as long: the CPU's time, not the GPU's latencies."""
        return replace(
            self,
            call_ns={name: round(factor * ns) for name, ns in self.call_ns.items()},
            graph_launch_ns=round(factor * self.graph_launch_ns),
            graph_node_ns=round(factor * self.graph_node_ns),
        )


@dataclass(frozen=True)
class GpuModel:
    """One GPU model. `efficiency` is the file's table of that name as it stands: the kernel
    estimators define and check what is in it (`kernels/rates.py`)."""

    model: str
    name: str
    memory_bytes: int
    context_bytes: int
    comm_bytes: int
    compute_major: int
    compute_minor: int
    multiprocessors: int
    nvlinks: int
    nvlink_bytes_per_ns: float
    nvlink_efficiency: float
    pcie_bytes_per_ns: float
    memory_bytes_per_ns: float
    peak_flop_per_ns: Mapping[str, float]
    attributes: Mapping[int, int]
    host: HostCosts
    nccl: NcclTimes
    contention: Contention
    power: Power
    efficiency: Mapping[str, Any] = field(repr=False)
