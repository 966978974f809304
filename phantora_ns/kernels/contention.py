"""How much longer a kernel takes while communication runs on its GPU.

Why it exists: model/contention.py knows what communication does to tiles and to classes of kernels,
but no signatures. The signature of a matrix product gives its sizes, and they decide more than its
class: beside one all-gather, one product takes no longer and another twice as long
(bench/contention/fit.py).
"""

from __future__ import annotations

from typing import Any

from phantora_ns.kernels import signature
from phantora_ns.kernels.estimators import gemm
from phantora_ns.model.contention import tiles_of
from phantora_ns.model.gpu import GpuModel
from phantora_ns.protocol import BoundBy, SignatureKind

MOST_PERMILLE = (1 << 32) - 1  # what the kernel table holds


class KernelContention:
    """`permille(...)` for one GPU model, by its `[contention]` table."""

    def __init__(self, gpu: GpuModel) -> None:
        self._contention = gpu.contention
        self._by_class = self._contention.permille()
        self._multiprocessors = gpu.multiprocessors
        self._peaks = gpu.peak_flop_per_ns

    def permille(self, kind: int, fields: Any, duration_ns: int, bound_by: int) -> int:
        """How much longer the kernel takes beside communication, in thousandths of `duration_ns`,
        its time alone (at least 1).

        `kind` and `fields` are the signature; `bound_by` is as `KernelTimes.lookup` returns it.
        Everything that cannot be read as a matrix product goes by its class. O(1).
        """
        if kind != SignatureKind.GEMM or bound_by != BoundBy.COMPUTE:
            return self._by_class[bound_by]
        try:
            product = signature.parse_numbers(signature.Gemm, fields)
        except signature.SignatureError:
            return self._by_class[bound_by]
        peak = self._peaks.get(gemm.arithmetic(product)) or self._peaks["fp32"]
        overlapped_ns = self._contention.product_ns(
            duration_ns,
            tiles_of(product.m, product.n, product.batch),
            product.k,
            peak / self._multiprocessors,
            self._multiprocessors,
        )
        return min(MOST_PERMILLE, round(1000 * (overlapped_ns / duration_ns - 1)))
