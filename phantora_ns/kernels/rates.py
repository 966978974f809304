"""What one GPU model achieves: its data sheet's peaks and the measured share of them, as the
estimators read them.

Why it exists: the estimators hold formulas, the GPU's data file holds numbers, each with its
source. A model that nobody has measured says `like = "h200"` and takes over shares of peak, never
absolute rates: those scale with its own peaks, its number of multiprocessors and its clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from phantora_ns.config import ConfigError, load_gpu, units
from phantora_ns.kernels.binary import names
from phantora_ns.model.gpu import GpuModel
from phantora_ns.protocol import BoundBy, SignatureKind

CLOCK_ATTRIBUTE = 13  # CU_DEVICE_ATTRIBUTE_CLOCK_RATE, kHz
CACHE_ATTRIBUTE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, bytes
_REQUIRED, _ALLOWED = {"base", "bandwidth"}, {"base", "bandwidth", "elements", "block_elements"}
_OPTIONAL = "elements and block_elements"


@dataclass(frozen=True)
class Family:
    """How fast one family of memory-bound kernels goes: a fixed time, a share of the memory's
    bandwidth, what one multiprocessor gets through per clock cycle when instructions and not bytes
    are the limit, and what one block gets through alone, which limits a few long rows (0:
    never)."""

    base_ns: float
    bandwidth: float
    elements_per_cycle: float = 0.0
    block_elements_per_cycle: float = 0.0


@dataclass(frozen=True)
class Rates:
    """Bandwidths in bytes per ns (of NVLink: what transfers get, 0 without), peaks in FLOP per ns,
    times in ns. `numbers`: "section.key" -> value. `scaled_from`: the model whose times are scaled for
    what this one's databases do not hold, None for none; `own_shares`: whether the shares are this model's
    own, and not those of that one."""

    model: str
    multiprocessors: int
    cycles_per_ns: float
    cache_bytes: int
    memory_bytes_per_ns: float
    pcie_bytes_per_ns: float
    nvlink_bytes_per_ns: float
    peak_flop_per_ns: Mapping[str, float]
    numbers: Mapping[str, float]
    families: Mapping[str, Family]
    scaled_from: str | None = None
    own_shares: bool = True

    def peak(self, kind: str) -> float:
        """Peak FLOP per ns of a data type; a type that the data sheet lacks counts as fp32."""
        return self.peak_flop_per_ns.get(kind) or self.peak_flop_per_ns["fp32"]

    def number(self, key: str) -> float:
        """An efficiency by "section.key". Raises KeyError for a name that the GPU's file does not
        give."""
        return self.numbers[key]

    def scaled_share(self, kind: int, bound_by: int, fields: Any = ()) -> float:
        """How much of the difference between two GPUs' estimates their measured times differ by: that of the
        kernel's function (`[efficiency.scaled_kernels]`), else of the kind of signature and what bounds it
        (`[efficiency.scaled]`); 1 where nothing was measured."""
        if kind == SignatureKind.KERNEL and fields:
            share = self.numbers.get(f"scaled_kernels.{names.parse(fields[0]).base}")
            if share is not None:
                return share
        key = f"scaled.{SignatureKind.LABELS[kind]}"
        whole = self.numbers.get(key, 1.0)
        return self.numbers.get(f"{key}_{BoundBy.LABELS[bound_by]}", whole)

    def memory_ns(
        self, family: str, size_bytes: float, elements: float = 0.0, blocks: int = 0
    ) -> float:
        """Time of a memory-bound kernel of `family` that moves `size_bytes` and handles `elements`
        in `blocks`.

        Part of what it reads is still in the L2 cache from the kernel before, up to a share of the
        cache's size.
        """
        entry = self.families.get(family) or self.families["other"]
        size_bytes -= min(size_bytes / 2, self.number("cache.warm_share") * self.cache_bytes)
        moving = size_bytes / (self.memory_bytes_per_ns * entry.bandwidth)
        if entry.elements_per_cycle:
            moving = max(
                moving,
                elements / (entry.elements_per_cycle * self.multiprocessors * self.cycles_per_ns),
            )
        if entry.block_elements_per_cycle and blocks > 0:
            moving = max(
                moving, elements / blocks / (entry.block_elements_per_cycle * self.cycles_per_ns)
            )
        return entry.base_ns + moving

    def scattered_ns(self, size_bytes: float) -> float:
        """Time in which the L2 cache delivers `size_bytes`, most of them sectors of which one
        element is wanted."""
        return size_bytes / (
            self.number("cache.sectors") * self.multiprocessors * self.cycles_per_ns
        )


def _value(value: Any, where: str, file: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    for parse in (units.fraction, units.time_ns):
        try:
            return float(parse(value))
        except units.UnitError:
            continue
    raise ConfigError(
        file, f"efficiency.{where}", f'{value!r} is no number, share ("90%") or time ("2 us")'
    )


def _efficiency(gpu: GpuModel) -> Mapping[str, Any]:
    table = dict(gpu.efficiency)
    file = f"{gpu.model}.toml"
    if not table:
        raise ConfigError(
            file, "efficiency", 'is missing; write `like = "h200"` to take over its shares of peak'
        )
    for key in ("like", "also"):
        if table.get(key) == gpu.model:
            raise ConfigError(file, f"efficiency.{key}", "names the file itself")
    like, also = table.pop("like", None), table.pop("also", None)
    if like and also:
        raise ConfigError(file, "efficiency.also", "does not go with `like`, which says the same")
    if like is None:
        return table
    base = {
        key: dict(value) for key, value in _efficiency(load_gpu(like)).items() if key not in SCALED
    }
    for key, value in table.items():
        base.setdefault(key, {}).update(value)
    return base


SCALED = ("scaled", "scaled_kernels")
"""Sections that say what two models' times differ by: no third model takes them over."""

# What the estimators ask for: a file that lacks one is refused when it is read, not in the middle
# of a run.
REQUIRED_NUMBERS = (
    "gemm.base",
    "gemm.other_types",
    "gemm.half_area",
    "gemm.tile",
    "gemm.split",
    "gemm.smallest_k",
    "gemm.bandwidth",
    "gemm.overlap_power",
    "gemm.exposed_write",
    "gemm.sustained",
    "gemm.unaligned",
    "gemm.odd",
    "gemm.vector",
    "gemm.dot",
    "gemm.outer_tile",
    "attention.score_cost",
    "attention.bias_forward",
    "attention.bias_backward",
    "attention.dropout_forward",
    "attention.dropout_backward",
    "attention.causal_tail",
    "attention.bandwidth",
    "convolution.base",
    "convolution.share",
    "convolution.few_channels",
    "convolution.bandwidth",
    "convolution.relayout_bandwidth",
    "copy.base",
    "copy.pinned",
    "copy.peer",
    "copy.pageable_to_device",
    "copy.pageable_to_host",
    "copy.staged_above",
    "cache.warm_share",
    "cache.sectors",
    *(
        f"attention.{backend}_{direction}{part}"
        for backend in ("cudnn", "flash", "efficient")
        for direction in ("forward", "backward")
        for part in ("", "_base")
    ),
)


def scaled_from(gpu: GpuModel) -> str | None:
    """The GPU model whose times are scaled for what was never measured on this one: the one whose shares of
    peak it takes over (`like`), or the one that its file names beside its own shares (`also`)."""
    return gpu.efficiency.get("like") or gpu.efficiency.get("also")


@lru_cache(maxsize=16)
def load(model: str) -> Rates:
    """The rates of a GPU model by name. Raises ConfigError when its file is wrong or says nothing
    of efficiency."""
    return of(load_gpu(model))


def of(gpu: GpuModel) -> Rates:
    """The rates of a GPU model. Raises ConfigError when its file says nothing of efficiency."""
    numbers: dict[str, float] = {}
    families: dict[str, Family] = {}
    file = f"{gpu.model}.toml"
    for section, entries in _efficiency(gpu).items():
        for key, value in entries.items():
            if section != "memory":
                numbers[f"{section}.{key}"] = _value(value, f"{section}.{key}", file)
                continue
            if not isinstance(value, Mapping) or not _REQUIRED <= value.keys() <= _ALLOWED:
                raise ConfigError(
                    file,
                    f"efficiency.memory.{key}",
                    f"needs base and bandwidth, and may have {_OPTIONAL}",
                )
            parts = ("base", "bandwidth", "elements", "block_elements")
            families[key] = Family(
                *(_value(value.get(name, 0), f"memory.{key}.{name}", file) for name in parts)
            )
    if "other" not in families:
        raise ConfigError(
            file, "efficiency.memory.other", "is missing: kernels of no known family need it"
        )
    for key in REQUIRED_NUMBERS:
        if numbers.get(key, 0.0) < 0 or key not in numbers:
            raise ConfigError(
                file,
                f"efficiency.{key}",
                "is missing or negative; docs/kernel-times.md says what it means",
            )
    return Rates(
        gpu.model,
        gpu.multiprocessors,
        gpu.attributes[CLOCK_ATTRIBUTE] * 1e-6,
        gpu.attributes[CACHE_ATTRIBUTE],
        gpu.memory_bytes_per_ns,
        gpu.pcie_bytes_per_ns,
        gpu.nvlink_bytes_per_ns * gpu.nvlink_efficiency,
        gpu.peak_flop_per_ns,
        numbers,
        families,
        scaled_from(gpu),
        "like" not in gpu.efficiency,
    )
