"""Kernels that the other sweeps leave out, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name varied -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.varied [--seconds 400]

Why it exists: models of torchvision and transformers ran 2 to 50 % too fast on kernel times of Llamas
and ResNets (bench/zoo). What was missing: products whose rows are not multiples of 16 bytes, batch norms,
grouped and dilated convolutions, norms of short rows, attention in float and with masks, attention in
windows, interpolation. The sizes are of no job of bench/zoo. Each case comes forward and backward. The
cases are shuffled, so that a visit that ends early has some of each. Pauses as long as the work keep the
GPU cool. A case that fails is named and left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from bench.kernels.operators import both, tensor
from bench.kernels.rested import Work, main

HALVES = (torch.bfloat16, torch.float16)
FLOAT = torch.float32
LAST, FIRST = torch.channels_last, torch.contiguous_format
MOST_NUMBERS = 1 << 27
LARGEST = 3e12  # multiplications of a product


def tf32(run, wanted: bool = True):
    """The work with TF32 in products."""

    def both_ways() -> None:
        torch.backends.cuda.matmul.allow_tf32 = wanted
        run()
        torch.backends.cuda.matmul.allow_tf32 = False

    return both_ways


def products() -> Iterator[Work]:
    """Linear layers whose number of inputs or outputs is odd, or a multiple of 2 or 4."""
    sizes = [(tokens, 1024 + i, 4096 + o) for tokens in (2048, 8192) for i, o in ODD]
    sizes += [(tokens, 2048 + i, 8192 + o) for tokens in (4096,) for i, o in ODD]
    sizes += [
        (tokens, width, vocabulary)
        for tokens in (4096, 16384)
        for width in (512, 768, 1600, 2048)
        for vocabulary in (50257, 30522, 32001, 50265, 28996)
    ]
    for tokens, inputs, outputs in sizes:
        for dtype, fast in (
            (torch.bfloat16, False),
            (torch.float16, False),
            (FLOAT, True),
            (FLOAT, False),
        ):
            work = tokens * inputs * outputs
            if work > LARGEST or (dtype is FLOAT and not fast and work > LARGEST / 8):
                continue

            def run(tokens=tokens, inputs=inputs, outputs=outputs, dtype=dtype) -> None:
                x = tensor(tokens, inputs, dtype=dtype, grad=True)
                weight = tensor(outputs, inputs, dtype=dtype, grad=True)
                both(F.linear, x, weight)()

            yield f"product {tokens} {inputs} {outputs} {dtype}", tf32(run, fast)


ODD = ((0, 1), (0, 2), (0, 4), (0, 8), (1, 0), (2, 0), (4, 0), (1, 1))


def image(*shape: int, dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    return tensor(*shape, dtype=dtype).to(memory_format=layout).requires_grad_()


KINDS = [(dtype, layout) for dtype in (*HALVES, FLOAT) for layout in (LAST, FIRST)]


def norms() -> Iterator[Work]:
    """Batch norms as autocast runs them, and norms of short rows."""
    for channels in (16, 32, 48, 96, 144, 192, 336, 672, 1280, 2048):
        for pixels in (96, 48, 24, 12, 6):
            for batch in (24, 80):
                if channels * pixels * pixels * batch > MOST_NUMBERS or channels * pixels < 1000:
                    continue
                for dtype, layout in KINDS:

                    def run(c=channels, p=pixels, b=batch, d=dtype, m=layout) -> None:
                        norm = torch.nn.BatchNorm2d(c, device="cuda")
                        both(norm, image(b, c, p, p, dtype=d, layout=m))()

                    yield f"batch norm {channels} {pixels} {batch} {dtype}", run
    for width in (32, 48, 64, 80, 128, 160, 256, 320, 384, 640, 1152, 1280, 1536):
        for numbers in (1 << 21, 1 << 24, 1 << 26):
            for dtype in (torch.bfloat16, FLOAT):

                def run(width=width, rows=numbers // width, dtype=dtype) -> None:
                    x = tensor(rows, width, dtype=dtype, grad=True)
                    weight = tensor(width, dtype=dtype, grad=True)
                    both(lambda a, w: F.layer_norm(a, (width,), w, w), x, weight)()

                yield f"layer norm {width} {numbers} {dtype}", run


def convolutions() -> Iterator[Work]:
    """(channels in, out, groups, filter, stride, dilation, pixels)."""
    cases = [(g * w, g * w, g, 3, s, 1, p) for w, s, g, p in GROUPED]
    cases += [
        (c, c, c, f, s, 1, p)
        for c, p in ((32, 96), (96, 48), (144, 48), (240, 24), (480, 12), (768, 12), (1152, 6))
        for f, s in ((3, 1), (3, 2), (5, 1), (7, 1))
    ]
    cases += [
        (c, o, 1, 3, 1, d, p)
        for c, o, p in ((256, 256, 32), (512, 512, 48), (2048, 256, 48))
        for d in (2, 4, 12)
    ]
    cases += [
        (i, o, 1, f, s, 1, p)
        for i, o, p in (
            (24, 48, 96),
            (48, 160, 48),
            (96, 384, 48),
            (192, 768, 24),
            (272, 1632, 12),
            (1024, 256, 24),
        )
        for f, s in ((1, 1), (3, 1), (3, 2))
    ]
    cases += [(128, 32, 1, 3, 1, 1, p) for p in (48, 24, 12)]
    cases += [(i, 128, 1, 1, 1, 1, p) for i, p in ((96, 48), (320, 24), (736, 12))]
    cases += [(3, 32, 1, 3, 2, 1, 192), (3, 96, 1, 4, 4, 1, 192), (3, 64, 1, 7, 2, 1, 192)]
    for inputs, outputs, groups, size, stride, dilation, pixels in cases:
        for batch in (24, 96):
            if max(inputs, outputs) * pixels * pixels * batch > MOST_NUMBERS:
                continue
            for dtype, layout in KINDS:

                def run(
                    i=inputs,
                    o=outputs,
                    g=groups,
                    f=size,
                    s=stride,
                    e=dilation,
                    p=pixels,
                    b=batch,
                    d=dtype,
                    m=layout,
                ):
                    x = image(b, i, p, p, dtype=d, layout=m)
                    weight = image(o, i // g, f, f, dtype=d, layout=m)
                    padding = e * (f // 2) if f % 2 else 0
                    both(lambda a, w: F.conv2d(a, w, None, s, padding, e, g), x, weight)()

                yield (
                    f"convolution {inputs} {outputs} {groups} {size} {pixels} {batch} {dtype}",
                    run,
                )


GROUPED = [
    (width, stride, groups, pixels)
    for width in (4, 8, 16, 32, 56, 64, 112)
    for stride in (1, 2)
    for groups, pixels in ((4, 48), (16, 24), (32, 12))
]


def attention() -> Iterator[Work]:
    """In float, with dropout and with masks; and in windows, without the fused call."""
    for heads, size in ((8, 64), (12, 64), (16, 80), (8, 128), (4, 32)):
        for batch, length in ((48, 128), (24, 256), (12, 640), (4, 1536), (2, 3072)):
            for dtype in (FLOAT, *HALVES):
                # a signature of memory-efficient attention does not say whether it is causal
                ways = (
                    ("plain", "dropout", "mask")
                    if dtype is FLOAT
                    else ("plain", "causal", "dropout", "mask")
                )
                for way in ways:

                    def run(b=batch, h=heads, n=length, s=size, d=dtype, w=way) -> None:
                        q, k, v = (tensor(b, h, n, s, dtype=d, grad=True) for _ in range(3))
                        mask = tensor(b, 1, n, n, dtype=d) if w == "mask" else None
                        p = 0.1 if w == "dropout" else 0.0
                        both(
                            lambda q, k, v: F.scaled_dot_product_attention(
                                q, k, v, mask, p, w == "causal"
                            ),
                            q,
                            k,
                            v,
                        )()

                    yield f"attention {batch} {heads} {length} {size} {dtype} {way}", run
    for windows, heads, length, size in (
        (2048, 3, 49, 32),
        (1024, 6, 49, 32),
        (256, 12, 64, 32),
        (4096, 4, 64, 32),
        (512, 8, 144, 32),
    ):
        for dtype in (FLOAT, *HALVES):

            def run(b=windows, h=heads, n=length, s=size, d=dtype) -> None:
                q, k, v = (tensor(b, h, n, s, dtype=d, grad=True) for _ in range(3))
                bias = tensor(1, h, n, n, dtype=d, grad=True)

                def attend(q, k, v, bias):
                    scores = q.mul(s**-0.5).matmul(k.transpose(-2, -1)) + bias
                    return F.dropout(F.softmax(scores, -1), 0.0) @ v

                both(attend, q, k, v, bias)()

            def moved(b=windows, h=heads, n=length, s=size, d=dtype) -> None:
                side = int(n**0.5)
                x = tensor(max(1, b // 64), 8 * side, 8 * side, h * s, dtype=d, grad=True)

                def cut(x):
                    x = torch.roll(x, (-3, -3), (1, 2))
                    i, p, _, c = x.shape
                    x = x.view(i, 8, side, 8, side, c).permute(0, 1, 3, 2, 4, 5)
                    return x.reshape(i * 64, side * side, c)

                both(cut, x)()

            yield f"windows {windows} {heads} {length} {dtype}", run
            yield f"cut into windows {windows} {heads} {length} {dtype}", moved


def others() -> Iterator[Work]:
    for dtype, layout in KINDS:
        for batch, channels, pixels in ((24, 96, 48), (24, 480, 24), (80, 48, 96), (80, 1280, 6)):

            def make(b=batch, c=channels, p=pixels, d=dtype, m=layout):
                return image(b, c, p, p, dtype=d, layout=m)

            def excite(make=make, d=dtype) -> None:
                x = make()
                scale = tensor(*x.shape[:2], 1, 1, dtype=d, grad=True)
                both(lambda x, s: x * torch.sigmoid(s), x, scale)()

            def join(make=make) -> None:
                both(lambda a, b: torch.cat((a, b), 1), make(), make())()

            yield f"excite {batch} {channels} {dtype}", excite
            yield f"join {batch} {channels} {dtype}", join
            for name, function in POOLS.items():
                yield (
                    f"{name} {batch} {channels} {dtype}",
                    lambda make=make, f=function: both(f, make())(),
                )
    for dtype in (FLOAT, *HALVES):
        for batch, channels, small, large in (
            (8, 19, 48, 384),
            (8, 256, 1, 48),
            (8, 256, 12, 96),
            (4, 64, 96, 192),
            (16, 19, 30, 240),
        ):
            for mode in ("bilinear", "nearest"):

                def grow(b=batch, c=channels, s=small, n=large, d=dtype, m=mode) -> None:
                    corners = {"align_corners": False} if m == "bilinear" else {}
                    both(
                        lambda x: F.interpolate(x, size=(n, n), mode=m, **corners),
                        tensor(b, c, s, s, dtype=d, grad=True),
                    )()

                yield f"grow {channels} {small} {large} {mode} {dtype}", grow
        for batch, classes, pixels in ((8, 19, 384), (4, 150, 256)):

            def segment(b=batch, c=classes, p=pixels, d=dtype) -> None:
                labels = torch.randint(c, (b, p, p), device="cuda")
                both(
                    lambda x: F.cross_entropy(x.float(), labels),
                    tensor(b, c, p, p, dtype=d, grad=True),
                )()

            yield f"segment {classes} {dtype}", segment


POOLS = {
    "max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "mean pool": lambda x: F.avg_pool2d(x, 2, 2),
    "mean": lambda x: F.adaptive_avg_pool2d(x, 1),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "silu": F.silu,
    "relu": F.relu,
    "permuted": lambda x: x.permute(0, 2, 3, 1).contiguous(),
}


def cases() -> list[Work]:
    found = [*products(), *norms(), *convolutions(), *attention(), *others()]
    random.Random(0).shuffle(found)
    return found


if __name__ == "__main__":
    main(__doc__, cases)
