"""device.conf: which GPU the C interceptor imitates, as lines of `key value`.

Why it exists: the interceptor has no TOML reader. Rule: every name equals a field of `struct
ph_device_spec` in libintercept/base/device.h. The reader there, and the test of this file, fail when
one side has a key that the other lacks.
"""

from __future__ import annotations

from pathlib import Path

from phantora_ns.model.gpu import GpuModel


def device_lines(gpu: GpuModel, nodes: int = 1) -> list[str]:
    """The lines of device.conf of a job on `nodes`. First comes `key value`, one per field. Then follow `cost.CLASS
    value` in ns for each class of calls, `power.NAME value` (model/power.py), and `attribute.N value`
    for each CUdevice_attribute."""
    host = gpu.host
    fields = {
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "context_bytes": gpu.context_bytes,
        "comm_bytes": gpu.comm_bytes,
        "compute_major": gpu.compute_major,
        "compute_minor": gpu.compute_minor,
        "multiprocessors": gpu.multiprocessors,
        "nvlinks": gpu.nvlinks,
        "launch_latency_ns": host.launch_latency_ns,
        "kernel_gap_ns": host.kernel_gap_ns,
        "crowd_gap_ns": host.crowd_gap_ns,
        "graph_gap_ns": host.graph_gap_ns,
        "graph_launch_ns": host.graph_launch_ns,
        "graph_node_ns": host.graph_node_ns,
        "launch_queue": host.launch_queue,
        "other_stream_permille": round(1000 * gpu.contention.other_stream),
        "other_stream_lists_permille": round(1000 * gpu.contention.other_stream_lists),
    }
    return (
        [f"{key} {value}" for key, value in fields.items()]
        + [f"cost.{name} {value}" for name, value in host.call_ns.items()]
        + [f"power.{name} {value}" for name, value in gpu.power.fields(nodes)]
        + [f"attribute.{number} {value}" for number, value in sorted(gpu.attributes.items())]
    )


def write_device_conf(gpu: GpuModel, path: str | Path, nodes: int = 1) -> None:
    """Writes `device_lines(gpu, nodes)` to `path`. Raises OSError."""
    lines = device_lines(gpu, nodes)
    Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
