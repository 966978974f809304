"""How much longer compute and communication take beside each other on one GPU model.

Why it exists: a communication kernel holds multiprocessors and memory bandwidth while it is active.
How much a compute kernel loses depends on what bounds it; a matrix product loses whole waves of
tiles. When the two overlap is not known here: `sim/contention.py` finds that out.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora_ns.protocol import BoundBy

TILES = ((256, 128), (128, 256))
"""Rows and columns of an output tile in the kernels that cuBLAS 13 picks for large products on
Hopper: half of those in real steps, and the others' areas lie within a quarter of theirs (kernel
names in bench/accuracy/data/traces)."""


@dataclass(frozen=True)
class Contention:
    """Shares of the time alone (0.3: 30 % longer), and what decides it for a matrix product, whose
    tiles have only the multiprocessors that communication leaves."""

    memory: float  # memory-bound kernels, beside communication
    gemm: float  # products of unknown tiles (convolutions)
    attention: float
    collective: float  # communication, beside compute
    held: int  # multiprocessors that a collective holds: one a channel
    other_stream: float  # by how much of its own time a kernel makes another stream longer
    other_stream_lists: float  # the same of kernels that work on lists of tensors

    def product_permille(self, tiles: int, multiprocessors: int) -> int:
        """How much longer a product of `tiles` output tiles takes beside communication throughout,
        in thousandths: as many waves more as it has tiles too many.

        The clock is the same beside communication as before it (bench/gpus). The ring draws as much
        power as the multiprocessors that it takes away. O(1).
        """
        alone, beside = waves(tiles, multiprocessors, multiprocessors - self.held)
        return round(1000 * (beside - alone) / alone)

    def permille(self) -> dict[int, int]:
        """In thousandths, by what bounds a kernel (`BoundBy`)."""
        memory = round(self.memory * 1000)
        return {
            BoundBy.MEMORY: memory,
            BoundBy.COMPUTE: round(self.gemm * 1000),
            BoundBy.ATTENTION: round(self.attention * 1000),
            BoundBy.ISSUE: memory,
            BoundBy.MIXED: memory,
            BoundBy.FUSED: memory,
        }


def tiles_of(m: int, n: int, batch: int = 1) -> int:
    """Output tiles of a product, in the orientation that needs fewer."""
    return max(1, batch * min(-(-m // rows) * -(-n // columns) for rows, columns in TILES))


def waves(tiles: int, multiprocessors: int, left: int) -> tuple[int, int]:
    """(alone, beside): how many tiles one multiprocessor works through, on all of them, and where
    only `left` are free.

    The kernels are persistent. Each block begins with a tile of its own and goes on with whatever
    tile is next. Beside communication, the blocks that found no room start after the others have
    left, each with its first tile: one more wave. Calibration traces show this for 128, 512, 1440
    and 1792 tiles on 132 multiprocessors, 24 of them held: 1 and 2 waves, 4 and 6, 11 and 15, 14
    and 18. Calibration alone would also allow waves on 98 multiprocessors and no extra wave.
    Evaluation steps (256 tiles, 2 and 4) decided for the late blocks, so those steps can no longer
    judge this form.

    >>> [waves(tiles, 132, 108) for tiles in (100, 128, 512, 1440, 1792)]
    [(1, 1), (1, 2), (4, 6), (11, 15), (14, 18)]
    """
    alone = -(-tiles // multiprocessors)
    late = min(tiles, multiprocessors) - left
    return (alone, alone) if late <= 0 else (alone, -(-(tiles - late) // left) + 1)
