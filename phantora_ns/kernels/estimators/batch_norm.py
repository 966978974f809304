"""Time of cuDNN's batch normalisation from its sizes.

Why it exists: autocast and float models of images spend a tenth to a third of a step in it, and it
reaches cuDNN as a call of which only the sizes are known. Where channels are innermost it is bound by
memory. Else one block works through a channel of all images, so that few channels leave
multiprocessors without work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from phantora_ns.kernels.estimators import cudnn_graphs
from phantora_ns.kernels.rates import Rates

NAME = "cudnnBatchNormalization"
PASSES = {"ForwardTraining": 3, "ForwardInference": 2, "Backward": 5}
"""How many times the call moves a tensor: statistics, then the result; backward also the gradient."""
ELEMENTS_PER_CYCLE = {"ForwardTraining": 1.0, "ForwardInference": 2.0, "Backward": 0.6}
"""Of one block. H200, 1,980 MHz: 0.5 ns an element forward, 0.8 to 1.5 backward (bench/kernels/varied.py)."""
KEPT_BYTES = 128 << 10
"""A channel up to this size is read once, and kept on the multiprocessor: channels of 110 KB took 0.2 ns an
element forward, those of 200 KB and more 0.5."""

CHANNELS_OF_GROUP = 64
"""Where channels are innermost. H200: 144 channels take as long as 192, 48 as long as 64 (varied.py). cuDNN asks for
workspace for such groups, too (libintercept/simulated/math/cudnn_legacy.c)."""


class BatchNorm(NamedTuple):
    """One call. `pass_`: forward or backward, a key of PASSES; `last`: channels are innermost."""

    pass_: str
    images: int
    channels: int
    pixels: int
    element_bytes: int
    last: bool

    @property
    def per_channel(self) -> int:
        """Elements of one channel."""
        return self.images * self.pixels

    @property
    def size_bytes(self) -> int:
        """Bytes of one tensor."""
        return self.per_channel * self.channels * self.element_bytes

    @property
    def kept(self) -> bool:
        """Whether a block can keep what it has read of a channel."""
        return self.per_channel * self.element_bytes <= KEPT_BYTES


def parse(name: str, numbers: Sequence[int]) -> BatchNorm | None:
    """A call as its signature writes it (mode, operations, type, form, dimensions, sizes, strides); None
    for another call. Raises ValueError for sizes that fit no call."""
    pass_ = name.removeprefix(NAME)
    if pass_ == name or pass_ not in PASSES:
        return None
    kind, dimensions = numbers[2], numbers[4]
    sizes, strides = numbers[5 : 5 + dimensions], numbers[5 + dimensions :]
    if len(sizes) < 3 or len(strides) != len(sizes) or min(sizes) < 1:
        raise ValueError("a batch norm has images, channels and pixels")
    images, channels, *rest = sizes
    last = strides[1] == 1
    return BatchNorm(
        pass_, images, channels, math.prod(rest), cudnn_graphs.element_bytes(kind), last
    )


def terms_ns(call: BatchNorm, rates: Rates) -> tuple[float, float, float, float]:
    """What may bound the call. A tensor's traffic. Where channels are innermost, that of as many channels
    as its groups have, and a microsecond for each group; else a channel's elements, one a cycle, in one
    block, in whole waves of blocks, and shared by the multiprocessors."""
    if call.last:
        groups = math.ceil(call.channels / CHANNELS_OF_GROUP)
        moved = call.size_bytes / rates.memory_bytes_per_ns
        return moved, moved * groups * CHANNELS_OF_GROUP / call.channels, 1000.0 * groups, 0.0
    serial = call.per_channel / rates.cycles_per_ns
    share = call.channels / rates.multiprocessors
    return (
        call.size_bytes / rates.memory_bytes_per_ns,
        serial,
        serial * math.ceil(share),
        serial * share,
    )


def duration_ns(call: BatchNorm, rates: Rates) -> float:
    """Nanoseconds of the call on the GPU."""
    moving = rates.memory_ns("other", PASSES[call.pass_] * call.size_bytes)
    if call.last:
        return moving
    *_, waves, _ = terms_ns(call, rates)
    return max(moving, waves / ELEMENTS_PER_CYCLE[call.pass_])
