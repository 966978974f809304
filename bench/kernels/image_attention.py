"""Attention of images to themselves and to a text, for small and large batches, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name image-attention -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.image_attention [--seconds 100] [--further]

Why it exists: what was recorded of attention with many tokens was of four images, and laws fitted to that were 8 % off
for 24 (docs/accuracy.md). No call is one of bench/frameworks or bench/zoo. The cases are shuffled; pauses as long as
the work keep the GPU cool. A case that fails is named and left out.

With `--further` it runs the cases of WHOLE instead. Nearly all others have keys that do not fill cuDNN's tiles, which
takes slower kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from bench.kernels.operators import both, tensor
from bench.kernels.rested import Work, main, shuffled

WIDTHS_OF_HEADS = (8, 16, 32, 40, 80, 160)
TOKENS = (100, 196, 400, 784, 1296, 2304, 3600)
WHOLE = (64, 128, 256, 512, 640, 1024, 1920)
"""Tokens that fill cuDNN's tiles of 128 keys; and 64, half of one."""
IMAGES = (3, 12, 20, 40, 72)
CHANNELS = (160, 320, 640, 1280)
TEXT = 77
MOST_SCORES = 1 << 34
"""Of an attention, over all heads. Larger ones are left out, since they take too long."""
HALF, HALF_16 = torch.bfloat16, torch.float16


def of_images(
    count: int, tokens: int, channels: int, width: int, dtype: torch.dtype, most_scores: int
) -> Iterator[Work]:
    """`count` images attend to themselves and to a text. Queries, keys and values are made as diffusers makes them:
    views of rows, so a head's tokens are not contiguous."""
    heads = channels // width

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.view(len(x), -1, heads, width).transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v)

    for what, length in (("itself", tokens), ("a text", TEXT)):
        if count * heads * tokens * length > most_scores:
            continue
        q = tensor(count, tokens, channels, dtype=dtype, grad=True)
        k, v = (tensor(count, length, channels, dtype=dtype, grad=True) for _ in range(2))
        yield f"attention to {what}", both(attend, q, k, v)


def attention(width: int, tokens: int, channels: int, dtype: torch.dtype) -> Iterator[Work]:
    for count in IMAGES:
        for name, run in of_images(count, tokens, channels, width, dtype, MOST_SCORES):
            yield f"{count} images, {name}", run


def whole(width: int, tokens: int, channels: int) -> Iterator[Work]:
    """Attention of images to themselves alone: no text fills a tile."""
    for count in IMAGES[::2]:
        works = of_images(count, tokens, channels, width, HALF, MOST_SCORES)
        yield from ((f"{count} images, {name}", run) for name, run in works if "itself" in name)


def cases() -> Iterator[Work]:
    chosen: list = [
        (
            f"{width} {tokens} {channels} {dtype}",
            lambda w=width, t=tokens, c=channels, d=dtype: attention(w, t, c, d),
        )
        for width in WIDTHS_OF_HEADS
        for tokens in TOKENS
        for channels in CHANNELS
        for dtype in ((HALF, HALF_16) if channels == 320 else (HALF,))
    ]
    return shuffled(chosen)


def further() -> Iterator[Work]:
    return shuffled(
        (f"{width} {tokens} {channels}", lambda w=width, t=tokens, c=channels: whole(w, t, c))
        for width in WIDTHS_OF_HEADS
        for tokens in WHOLE
        for channels in CHANNELS[1:3]
    )


if __name__ == "__main__":
    main(__doc__, cases, further)
