"""What the layers of language models run between their products, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name heads -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.heads [--seconds 100]

Why it exists: in a real step of the transformers Trainer, kernels that read broadcast or transposed tensors took 5
to 20 % longer than simulated: rotary positions, norms written out in operators, copies of heads. No size is one of
bench/frameworks, bench/zoo or bench/accuracy. The cases are shuffled; pauses as long as the work keep the GPU cool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from bench.kernels.operators import both, tensor
from bench.kernels.rested import Work, main, shuffled

HALF, FLOAT = torch.bfloat16, torch.float32


class Layer(NamedTuple):
    """Sequences, tokens of each, heads of queries, of keys, and numbers of a head."""

    batch: int
    tokens: int
    heads: int
    keys: int
    width: int


LAYERS = (
    Layer(1, 1536, 24, 8, 128),
    Layer(1, 6144, 40, 8, 128),
    Layer(1, 12288, 28, 4, 128),
    Layer(2, 3072, 20, 4, 128),
    Layer(3, 2560, 48, 8, 128),
    Layer(4, 1280, 36, 12, 96),
    Layer(4, 3072, 12, 2, 128),
    Layer(6, 768, 18, 18, 64),
    Layer(6, 1536, 44, 44, 64),
    Layer(10, 2560, 20, 5, 64),
    Layer(12, 640, 10, 2, 256),
    Layer(12, 1280, 24, 24, 80),
)


def half_turned(x: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, -1)
    return torch.cat((-other, one), -1)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions as transformers applies them."""
    return x * cos.unsqueeze(1) + half_turned(x) * sin.unsqueeze(1)


def turned_as_complex(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotary positions as Llama's own code applies them; x: batch, tokens, heads, width."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3).type_as(x)


def written_out(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A root mean square norm of single operators."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def works(layer: Layer, dtype: torch.dtype) -> Iterator[Work]:
    batch, tokens, heads, keys, width = layer
    cos, sin = (tensor(batch, tokens, width, dtype=dtype) for _ in range(2))
    turns = torch.view_as_complex(tensor(tokens, width // 2, 2))
    for what, count in (("queries", heads), ("keys", keys)):
        rows = tensor(batch, tokens, count, width, dtype=dtype, grad=True)
        yield f"turn {what}", both(lambda x: turned(x.transpose(1, 2), cos, sin), rows)
        yield f"turn {what} as complex", both(lambda x: turned_as_complex(x, turns), rows)
        yield f"{what} first", both(lambda x: x.transpose(1, 2).contiguous(), rows)
        by_head = tensor(batch, count, tokens, width, dtype=dtype, grad=True)
        yield f"{what} last", both(lambda x: x.transpose(1, 2).reshape(*x.shape[:1], -1), by_head)
    if keys != heads:
        some = tensor(batch, keys, tokens, width, dtype=dtype, grad=True)

        def repeated(x: torch.Tensor) -> torch.Tensor:
            many = x[:, :, None].expand(batch, keys, heads // keys, tokens, width)
            return many.reshape(batch, heads, tokens, width)

        yield "repeat keys", both(repeated, some)
    fused = tensor(batch, tokens, (heads + 2 * keys) * width, dtype=dtype, grad=True)

    def parts(x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.split((heads * width, keys * width, keys * width), -1)
        return torch.cat([a.reshape(-1) for a in (q, k, v)])

    yield "parts of a product", both(parts, fused)
    x, y = (tensor(batch, tokens, heads * width, dtype=dtype, grad=True) for _ in range(2))
    weight = tensor(heads * width, dtype=dtype, grad=True)
    yield "norm", both(written_out, x, weight)
    yield "residual", both(torch.add, x, y)
    yield "next token", both(lambda a: a[:, 1:].contiguous(), x)


def cases() -> Iterator[Work]:
    return shuffled(
        (f"{tuple(layer)} {dtype}", lambda a=layer, d=dtype: works(a, d))
        for layer in LAYERS
        for dtype in (HALF, FLOAT)
    )


if __name__ == "__main__":
    main(__doc__, cases)
