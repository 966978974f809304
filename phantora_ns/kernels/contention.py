"""How much longer a kernel takes while communication runs on its GPU.

Why it exists: model/contention.py knows what communication does to tiles and to classes of kernels,
but no signatures. The signature of a matrix product gives its sizes, and they decide more than its
class: beside one all-gather, one product takes no longer and another twice as long
(bench/contention/fit.py).
"""

from __future__ import annotations

from typing import Any

from phantora_ns.kernels import signature
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

    def permille(self, kind: int, fields: Any, bound_by: int) -> int:
        """How much longer the kernel takes beside communication, in thousandths of its time alone.

        `kind` and `fields` are the signature; `bound_by` is as `KernelTimes.lookup` returns it.
        Everything that cannot be read as a matrix product goes by its class. O(1).
        """
        if kind != SignatureKind.GEMM or bound_by != BoundBy.COMPUTE:
            return self._by_class[bound_by]
        try:
            product = signature.parse_numbers(signature.Gemm, fields)
        except signature.SignatureError:
            return self._by_class[bound_by]
        tiles = tiles_of(product.m, product.n, product.batch)
        return min(MOST_PERMILLE, self._contention.product_permille(tiles, self._multiprocessors))
