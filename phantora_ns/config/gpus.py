"""GPU model files: parsed and validated into a `model.gpu.GpuModel`, or one clear message.

Why it exists: phantora_ns/data/gpus/MODEL.toml holds what is known of a GPU model, each number with
its source; docs/clusters.md describes its keys. Rule: nothing in here looks at the machine that it
runs on. The table `[efficiency]` is passed on unchecked, because its keys belong to the kernel
estimators.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from phantora_ns.config.gpu_tables import RECORDED_IN, contention_of, power_of
from phantora_ns.config.nccl import nccl_times
from phantora_ns.config.toml_table import ConfigError, Table, nearest, read_toml
from phantora_ns.model.gpu import HOST_CALLS, GpuModel, HostCosts
from phantora_ns.model.power import Power

_FOLDER = Path(str(resources.files("phantora_ns"))) / "data" / "gpus"


def list_gpus() -> list[str]:
    """Names that `load_gpu` knows, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_gpu(model: str) -> GpuModel:
    """Reads phantora_ns/data/gpus/MODEL.toml. Raises ConfigError."""
    known = list_gpus()
    if model not in known:
        raise ConfigError(
            _FOLDER,
            "",
            f"no GPU model {model!r}{nearest(model, known)} (known: {', '.join(known)})",
        )
    path = _FOLDER / f"{model}.toml"
    top = Table(path, read_toml(path))
    device = top.table("device")
    major, minor = _compute_capability(device)
    multiprocessors = device.integer("multiprocessors", low=1)
    nvlinks = device.integer("nvlinks")
    # A GPU without NVLink need not give NVLink's bandwidth.
    unlinked = {} if nvlinks else {"default": 0.0}
    gpu = GpuModel(
        model=model,
        name=device.text("name"),
        memory_bytes=device.size_bytes("memory"),
        context_bytes=device.size_bytes("context"),
        comm_bytes=device.size_bytes("communicator"),
        compute_major=major,
        compute_minor=minor,
        multiprocessors=multiprocessors,
        nvlinks=nvlinks,
        nvlink_bytes_per_ns=device.bytes_per_ns("nvlink_bandwidth", **unlinked),
        nvlink_efficiency=device.fraction("nvlink_efficiency", **unlinked),
        pcie_bytes_per_ns=device.bytes_per_ns("pcie_bandwidth"),
        memory_bytes_per_ns=device.bytes_per_ns("memory_bandwidth"),
        peak_flop_per_ns=_peaks(top.table("peak")),
        attributes=MappingProxyType(_attributes(top)),
        host=_host_costs(top.table("host")),
        nccl=nccl_times(top.table("nccl"), major),
        contention=contention_of(top, multiprocessors),
        power=_power(top),
        efficiency=MappingProxyType(top.raw("efficiency")),
    )
    device.done()
    top.done()
    return gpu


def _compute_capability(device: Table) -> tuple[int, int]:
    major, _, minor = device.text("compute_capability").partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise device.error("compute_capability", 'is not of the form "9.0"')
    return int(major), int(minor)


def _peaks(table: Table) -> Mapping[str, float]:
    peaks = {key: table.flop_per_ns(key) for key in table.keys()}
    table.done()
    return MappingProxyType(peaks)


def _power(top: Table) -> Power:
    """Of the same chip in another product `like = "MODEL"` says that its law holds here, too, but for the
    keys that the table gives itself. Which clocks recordings had is never another model's."""
    if not top.has("power"):
        return Power.unlimited()
    table = top.table("power")
    if table.has("like"):
        other = read_toml(_file_of(table.text("like"), top)).get("power", {})
        shared = {key: value for key, value in other.items() if key not in RECORDED_IN.values()}
        own = {key: value for key, value in top.raw("power").items() if key != "like"}
        table = Table(top.file, shared | own, "power")
    return power_of(table)


def _file_of(model: str, top: Table) -> Path:
    if model not in list_gpus():
        raise top.error("power.like", f"{model!r} is no GPU model{nearest(model, list_gpus())}")
    return _FOLDER / f"{model}.toml"


def _host_costs(table: Table) -> HostCosts:
    calls = table.table("calls")
    costs = HostCosts(
        call_ns=MappingProxyType({name: calls.time_ns(name) for name in HOST_CALLS}),
        launch_latency_ns=table.time_ns("launch_latency"),
        kernel_gap_ns=table.time_ns("kernel_gap"),
        unknown_ns=table.time_ns("unknown"),
        launch_queue=table.integer("launch_queue", low=0),
        crowd_gap_ns=table.time_ns("crowd_gap", default=0),
        graph_gap_ns=table.time_ns("graph_gap", default=table.time_ns("kernel_gap")),
        graph_launch_ns=table.time_ns("graph_launch", default=calls.time_ns("launch")),
        graph_node_ns=table.time_ns("graph_node", default=0),
    )
    calls.done()
    table.done()
    return costs


def _attributes(top: Table) -> dict[int, int]:
    own = dict(top.raw("attributes"))
    like = own.pop("like", None)
    if not all(
        key.isdigit() and int(key) < 192 and type(value) is int for key, value in own.items()
    ):
        raise top.error(
            "attributes",
            "every entry is NUMBER = INTEGER, with NUMBER a CUdevice_attribute below 192",
        )
    return {
        **(load_gpu(like).attributes if like else {}),
        **{int(key): value for key, value in own.items()},
    }
