"""What diffusion models and other networks on images run between convolutions, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name images -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.images [--seconds 150]

Why it exists: a third of a U-Net's GPU time came from rooflines (copies between layouts, sums over broadcast
tensors), a fifth from attention with heads of 8, which no recording had. This job has such operators, forward and
backward: group norms, copies between layouts, embeddings added to images, resizing, joining of channels, pooling, and
attention of images with themselves and with a text. No size is one of bench/frameworks or bench/zoo.
Pooling, biases of convolutions and depthwise convolutions are here because traces of real steps showed them 15 to
62 % off. The cases are shuffled; pauses as long as the work keep the GPU cool. A case that fails is named and left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from bench.kernels.image_attention import of_images
from bench.kernels.operators import both, tensor
from bench.kernels.rested import Work, main, shuffled
from bench.kernels.varied import image

HALF, HALF_16, FLOAT = torch.bfloat16, torch.float16, torch.float32
NHWC, NCHW = torch.channels_last, torch.contiguous_format
IMAGES = (
    (4, 320, 96),
    (8, 320, 40),
    (8, 640, 24),
    (16, 96, 80),
    (16, 1280, 12),
    (24, 192, 48),
    (32, 320, 32),
    (32, 640, 20),
    (40, 64, 200),
    (48, 96, 56),
    (48, 384, 28),
    (80, 64, 100),
    (96, 160, 36),
    (96, 320, 18),
    (160, 256, 30),
    (192, 128, 44),
)
"""Images, channels, pixels of a side."""
WIDTHS_OF_HEADS = (8, 16, 32, 40, 80, 160)
TOKENS = (144, 400, 1296, 2304)
GROUPS = 32
MOST_SCORES = 1 << 31
"""Of an attention, over all heads."""


def layers(
    shape: tuple[int, int, int], dtype: torch.dtype, layout: torch.memory_format
) -> Iterator[Work]:
    count, channels, side = shape
    x, y = (image(count, channels, side, side, dtype=dtype, layout=layout) for _ in range(2))
    weight, bias = (tensor(channels, dtype=FLOAT, grad=True) for _ in range(2))
    half_weight, half_bias = weight.detach().to(dtype), bias.detach().to(dtype)
    other = NCHW if layout is NHWC else NHWC
    embedding = tensor(count, channels, dtype=dtype, grad=True)

    def group_norm(a: torch.Tensor) -> torch.Tensor:
        return F.group_norm(a, GROUPS, half_weight, half_bias)

    yield "group norm", both(group_norm, x)
    yield "group norm, silu", both(lambda a: F.silu(group_norm(a)), x)
    with_cast = x.detach().float().requires_grad_(True)
    yield (
        "group norm in float",
        both(lambda a, w, b: F.group_norm(a, GROUPS, w, b), with_cast, weight, bias),
    )
    yield "silu", both(F.silu, x)
    yield "add", both(torch.add, x, y)
    yield "scale", both(lambda a: a / 1.5, x)
    yield "other layout", both(lambda a: a.contiguous(memory_format=other), x)
    if dtype is not FLOAT:
        yield "to float", lambda: x.detach().float()
        yield "from float", lambda: with_cast.detach().to(dtype)
    yield "embedding", both(lambda a, e: a + e[:, :, None, None], x, embedding)
    yield "bias", both(lambda a, b: a + b[None, :, None, None].to(dtype), x, bias)
    yield "channels", both(lambda a, b: torch.cat((a, b), 1), x, y)
    yield "halves of channels", both(lambda a: a.chunk(2, 1)[0] * a.chunk(2, 1)[1], x)
    yield "finer", both(lambda a: F.interpolate(a, scale_factor=2.0, mode="nearest"), x)
    yield "coarser", both(lambda a: F.avg_pool2d(a, 2), x)
    yield "largest of 4", both(lambda a: F.max_pool2d(a, 2), x)
    yield "largest of 9", both(lambda a: F.max_pool2d(a, 3, 2, 1), x)
    yield "mean of an image", both(lambda a: a.mean((2, 3)), x)
    yield "padding", both(lambda a: F.pad(a, (0, 1, 0, 1)), x)
    yield "gates", both(lambda a, e: a * torch.sigmoid(e)[:, :, None, None], x, embedding)

    def tokens(a: torch.Tensor) -> torch.Tensor:
        return a.view(count, channels, side * side).transpose(1, 2).contiguous()

    def rows(a: torch.Tensor) -> torch.Tensor:
        return a.permute(0, 2, 3, 1).reshape(count, side * side, channels)

    if layout is NCHW:
        yield "tokens", both(tokens, x)
    yield "rows", both(rows, x)
    flat = tensor(count, side * side, channels, dtype=dtype, grad=True)

    def back(a: torch.Tensor) -> torch.Tensor:
        return a.transpose(-1, -2).reshape(count, channels, side, side)

    yield "image", both(back, flat)
    yield "image, added", both(lambda a, b: back(a) + b, flat, x)
    yield "layer norm", both(lambda a: F.layer_norm(a, (channels,)), flat)
    wide = tensor(count, side * side, 2 * channels, dtype=dtype, grad=True)
    yield "gated gelu", both(lambda a: F.gelu(a.chunk(2, -1)[0]) * a.chunk(2, -1)[1], wide)


def convolutions(
    shape: tuple[int, int, int], dtype: torch.dtype, layout: torch.memory_format
) -> Iterator[Work]:
    """Those with a bias, and those of single channels."""
    count, channels, side = shape
    x = image(count, channels, side, side, dtype=dtype, layout=layout)
    for window in (1, 3):
        weight = tensor(channels // 2, channels, window, window, dtype=dtype, grad=True)
        bias = tensor(channels // 2, dtype=dtype, grad=True)
        yield (
            f"bias, window {window}",
            both(lambda a, w, b, p=window // 2: F.conv2d(a, w, b, 1, p), x, weight, bias),
        )
    for window, stride in ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1)):
        weight = tensor(channels, 1, window, window, dtype=dtype, grad=True)

        def single(a: torch.Tensor, w: torch.Tensor, s: int = stride) -> torch.Tensor:
            return F.conv2d(a, w, None, s, w.shape[-1] // 2, groups=len(w))

        yield f"depthwise {window} {stride}", both(single, x, weight)


def attention(width: int, tokens: int, dtype: torch.dtype) -> Iterator[Work]:
    for channels in (320, 640):
        for count in (4, 24):
            yield from of_images(count, tokens, channels, width, dtype, MOST_SCORES)


def cases() -> Iterator[Work]:
    chosen: list = [
        (f"{shape} {dtype} {layout}", lambda a=shape, d=dtype, f=layout: layers(a, d, f))
        for shape in IMAGES
        for dtype, layout in (
            (HALF, NHWC),
            (HALF, NCHW),
            (FLOAT, NHWC),
            (HALF_16, NCHW),
            (HALF_16, NHWC),
        )
    ]
    chosen += [
        (f"{shape} {dtype} {layout}", lambda a=shape, d=dtype, f=layout: convolutions(a, d, f))
        for shape in IMAGES
        for dtype, layout in ((HALF, NHWC), (HALF_16, NHWC), (HALF_16, NCHW), (FLOAT, NCHW))
    ]
    chosen += [
        (f"{width} {tokens} {dtype}", lambda w=width, t=tokens, d=dtype: attention(w, t, d))
        for width in WIDTHS_OF_HEADS
        for tokens in TOKENS
        for dtype in (HALF, HALF_16)
    ]
    return shuffled(chosen)


if __name__ == "__main__":
    main(__doc__, cases)
