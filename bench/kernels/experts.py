"""Mixture-of-experts layers, operator by operator, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name experts -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.experts [--seconds 200]

Why it exists: TorchTitan's Qwen3 came out 5 points too fast on its GPU, because nobody had recorded what
sends tokens to experts and back. The backward pass of an index adds rows that have the same index one after
another, so that it takes twice as long where padding points at one row. This job has the operators of three
ways to write such a layer: sorted and padded tokens with grouped products; gather and scatter; one expert after
another. Routes are drawn at random, as a router's are in the first steps. The sizes are of no job of
bench/frameworks or bench/zoo. The cases are shuffled, and pauses as long as the work keep the GPU cool. A case
that fails is named and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bench.kernels.operators import both, tensor
from bench.kernels.rested import Work, main, shuffled

TOKENS = (2048, 8192, 12288)
ALIGNED = 8
"""Each expert's group of rows is padded to a multiple of this: grouped products in bf16 need rows that begin at
multiples of 16 bytes."""
MOST_NUMBERS = 1 << 30
HALF, FLOAT = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Layer:
    """Widths of a token and within an expert; each token goes to `chosen` of the experts."""

    width: int
    inner: int
    experts: int
    chosen: int


LAYERS = (
    Layer(768, 3072, 8, 2),
    Layer(1024, 512, 32, 8),
    Layer(1280, 640, 96, 4),
    Layer(1536, 1024, 16, 2),
    Layer(2560, 1152, 48, 6),
    Layer(2880, 2880, 32, 4),
    Layer(3072, 1024, 40, 1),
    Layer(4096, 1536, 64, 8),
    Layer(4096, 14336, 8, 2),
    Layer(5120, 1536, 80, 6),
)


class Routes:
    """Where tokens go: experts of each token, and the same sorted by expert."""

    def __init__(self, layer: Layer, tokens: int):
        scores = tensor(tokens, layer.experts).softmax(-1)
        self.experts = scores.topk(layer.chosen, -1).indices
        self.sorted = self.experts.view(-1).argsort(stable=True)
        self.tokens = self.sorted // layer.chosen
        counts = self.experts.view(-1).bincount(minlength=layer.experts)
        self.counts = counts.tolist()
        padded = [-(-count // ALIGNED) * ALIGNED for count in self.counts]
        self.ends = torch.tensor(padded, device="cuda").cumsum(0).to(torch.int32)
        rows = tokens * layer.chosen
        self.rows = rows + layer.experts * ALIGNED
        # each expert's rows, then padding that points at one row of zeros
        places, begin = torch.full((self.rows,), rows), 0
        for end, count in zip(self.ends.tolist(), self.counts, strict=True):
            first = end - -(-count // ALIGNED) * ALIGNED
            places[first : first + count] = torch.arange(begin, begin + count)
            begin += count
        self.places = places.cuda()


def routing(layer: Layer, tokens: int) -> Iterator[Work]:
    logits = tensor(tokens, layer.experts, grad=True)
    chosen = logits.detach().topk(layer.chosen, -1).indices
    flat = chosen.view(-1)
    x = tensor(tokens, layer.width, dtype=HALF, grad=True)
    yield "gate", both(F.linear, x, tensor(layer.experts, layer.width, dtype=HALF, grad=True))
    yield "softmax", both(lambda s: F.softmax(s, -1), logits)
    yield "sigmoid", both(torch.sigmoid, logits)
    yield "top", both(lambda s: torch.topk(s, layer.chosen, -1).values, logits)
    yield "top, unsorted", both(lambda s: torch.topk(s, layer.chosen, -1, sorted=False)[0], logits)
    yield "scores", both(lambda s: s.gather(1, chosen), logits)
    yield "shares", both(lambda s: s / s.sum(-1, keepdim=True), tensor(*chosen.shape, grad=True))
    yield "count", lambda: torch.histc(flat, layer.experts, 0, layer.experts)
    yield "count ids", lambda: flat.bincount(minlength=layer.experts)
    yield "sort", lambda: torch.argsort(flat, stable=True)
    yield "one hot", lambda: F.one_hot(chosen, layer.experts).permute(2, 1, 0).sum((1, 2))
    yield "mask", lambda: torch.zeros_like(logits.detach()).scatter_(1, chosen, 1.0)
    order = torch.argsort(flat)
    yield "sorted scores", both(lambda s: s.view(-1)[order], tensor(*chosen.shape, grad=True))


def moves(layer: Layer, tokens: int, dtype: torch.dtype) -> Iterator[Work]:
    """Tokens to experts and back."""
    routes, width, rows = Routes(layer, tokens), layer.width, tokens * layer.chosen
    x = tensor(tokens, width, dtype=dtype, grad=True)
    many = tensor(rows, width, dtype=dtype, grad=True)
    padded = tensor(routes.rows, width, dtype=dtype, grad=True)
    wide = routes.tokens[:, None].expand(-1, width)
    yield "index", both(lambda a: a[routes.tokens], x)
    yield "select", both(lambda a: a.index_select(0, routes.tokens), x)
    yield "gather", both(lambda a: a.gather(0, wide), x)
    yield "scatter", both(lambda a: torch.zeros_like(x).scatter_add(0, wide, a), many)
    yield "add", both(lambda a: torch.zeros_like(x).index_add(0, routes.tokens, a), many)

    def pad(a: torch.Tensor) -> torch.Tensor:
        return torch.vstack((a, a.new_zeros(width)))[routes.places, :]

    def strip(a: torch.Tensor) -> torch.Tensor:
        out = a.new_empty(rows + 1, width)
        out[routes.places, :] = a
        return out[:-1]

    def order(a: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(many)
        out[routes.sorted] = a
        return out

    yield "pad", both(pad, many)
    yield "strip", both(strip, padded)
    yield "order", both(order, many)
    if layer.chosen == 1:
        return
    weights = tensor(tokens, layer.chosen, dtype=FLOAT, grad=True)
    cubes = tensor(tokens, layer.chosen, width, dtype=dtype, grad=True)
    yield "sum", both(lambda a: a.sum(1), cubes)
    yield "weigh", both(lambda a, w: (a.float() * w[..., None]).to(dtype), cubes, weights)
    yield (
        "weigh and sum",
        both(lambda a, w: torch.bmm(w[:, None].to(dtype), a).squeeze(1), cubes, weights),
    )


def one_by_one(layer: Layer, tokens: int) -> Iterator[Work]:
    """Two of the experts, in a loop of Python."""
    routes = Routes(layer, tokens)
    x = tensor(tokens, layer.width, dtype=HALF, grad=True)
    for expert in (0, layer.experts - 1):
        tokens_of, _ = torch.where(routes.experts == expert)
        some = tensor(len(tokens_of), layer.width, dtype=HALF, grad=True)
        yield "tokens of one", both(lambda a, t=tokens_of: a[t], x)
        yield (
            "add one",
            both(lambda a, t=tokens_of: torch.zeros_like(x).index_add(0, t, a), some),
        )


def products(layer: Layer, tokens: int) -> Iterator[Work]:
    routes = Routes(layer, tokens)
    if layer.experts * layer.width * layer.inner > MOST_NUMBERS:
        return
    for name, inputs, outputs in (
        ("up", layer.width, layer.inner),
        ("down", layer.inner, layer.width),
    ):
        x = tensor(routes.rows, inputs, dtype=HALF, grad=True)
        weight = tensor(layer.experts, outputs, inputs, dtype=HALF, grad=True)
        yield (
            f"grouped {name}",
            both(lambda a, w: torch._grouped_mm(a, w.mT, offs=routes.ends), x, weight),
        )


def cases() -> Iterator[tuple[str, Callable[[], Iterator[Work]]]]:
    """(name, what yields the works of it)."""
    for layer in LAYERS:
        for tokens in TOKENS:
            if tokens * layer.chosen * layer.width > MOST_NUMBERS // 2:
                continue
            name = f"{layer.width} {layer.inner} {layer.experts} {layer.chosen} {tokens}"
            yield name, lambda a=layer, t=tokens: routing(a, t)
            yield name, lambda a=layer, t=tokens: moves(a, t, HALF)
            yield name, lambda a=layer, t=tokens: moves(a, t, FLOAT)
            yield name, lambda a=layer, t=tokens: one_by_one(a, t)
            yield name, lambda a=layer, t=tokens: products(a, t)


if __name__ == "__main__":
    main(__doc__, lambda: shuffled(cases()))
