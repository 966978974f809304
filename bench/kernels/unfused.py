"""Attention written out in operators, and rotary positions with tokens first, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name unfused -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.unfused [--seconds 90]

Why it exists: in a step of Megatron-Core's local layers the softmax of warps was simulated 21 % too short, products of
batches 35 % too long, and products with rotary positions 22 % too short. Those tensors have tokens as their first
dimension and are read transposed. No layer is that of Megatron-Core's job. The cases are
shuffled; pauses as long as the work keep the GPU cool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F

from bench.kernels.heads import half_turned
from bench.kernels.operators import both, tensor
from bench.kernels.rested import Work, main, shuffled

HALF, FLOAT = torch.bfloat16, torch.float32
TYPES = (HALF, torch.float16, FLOAT)
MOST_SCORES = 1 << 28


class Layer(NamedTuple):
    """Tokens, sequences, heads, and numbers of a head."""

    tokens: int
    batch: int
    heads: int
    width: int


LAYERS = (
    Layer(512, 8, 16, 64),
    Layer(512, 4, 40, 128),
    Layer(768, 6, 20, 128),
    Layer(1024, 1, 32, 128),
    Layer(1024, 4, 24, 128),
    Layer(1024, 8, 16, 96),
    Layer(1536, 2, 40, 128),
    Layer(1792, 3, 24, 64),
    Layer(2048, 1, 24, 96),
    Layer(2048, 2, 40, 80),
    Layer(3072, 1, 20, 128),
    Layer(4096, 1, 12, 128),
)


def works(layer: Layer, dtype: torch.dtype) -> Iterator[Work]:
    tokens, batch, heads, width = layer
    q, k, v = (tensor(tokens, batch, heads, width, dtype=dtype, grad=True) for _ in range(3))
    cos, sin = (tensor(tokens, 1, 1, width, dtype=dtype) for _ in range(2))
    yield "turn", both(lambda x: x * cos + half_turned(x) * sin, q)
    if batch * heads * tokens * tokens > MOST_SCORES:
        return

    def rows(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(tokens, batch * heads, width).transpose(0, 1)

    def products(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        nothing = torch.empty(batch * heads, tokens, tokens, dtype=dtype, device="cuda")
        return torch.baddbmm(nothing, rows(q), rows(k).transpose(1, 2), beta=0.0, alpha=0.1)

    yield "scores", both(products, q, k)
    yield "scores without a sum", both(lambda q, k: rows(q) @ rows(k).transpose(1, 2), q, k)
    scores = tensor(batch, heads, tokens, tokens, dtype=dtype, grad=True)
    later = torch.ones(tokens, tokens, dtype=torch.bool, device="cuda").triu(1)[None, None]
    yield "mask", both(lambda x: x.masked_fill(later, -1e4), scores)
    yield "softmax", both(lambda x: F.softmax(x, -1), scores)
    yield "softmax in fp32", both(lambda x: F.softmax(x.float(), -1).to(dtype), scores)
    yield "dropout", both(lambda x: F.dropout(x, 0.1), scores)
    yield "scale", both(lambda x: x * 0.1, scores)
    yield (
        "values",
        both(lambda p, v: p.view(batch * heads, tokens, tokens) @ rows(v), scores, v),
    )

    def joined(x: torch.Tensor) -> torch.Tensor:
        return x.permute(2, 0, 1, 3).reshape(tokens, batch, heads * width)

    yield "join heads", both(joined, tensor(batch, heads, tokens, width, dtype=dtype, grad=True))


def copies() -> Iterator[Work]:
    """Copies of one block of memory to another."""
    for power in range(14, 31):
        for part in (2, 3):
            block = torch.empty((part << power) // 2, dtype=torch.uint8, device="cuda")
            yield f"copy {block.numel()}", block.clone


def cases() -> Iterator[Work]:
    layers = [
        (f"{tuple(layer)} {dtype}", lambda a=layer, d=dtype: works(a, d))
        for layer in LAYERS
        for dtype in TYPES
    ]
    return shuffled([*layers, ("", copies)])


if __name__ == "__main__":
    main(__doc__, cases)
