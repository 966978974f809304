"""PyTorch's small operators over sizes of training, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name operators -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.operators [--seconds 200]

Why it exists: laws for kernels bound by memory know what a kernel moves, but not that it draws
random numbers or reads element by element. The jobs of calibration.toml run few of them: dropout was
off by three, a sum by half. This job runs elementwise operators, norms, reductions, losses,
indexing, copies and convolutions, forward and backward, in bf16 and float, over three sizes or more
each. Pauses as long as the work keep the GPU cool. An operator that fails is named and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from bench.kernels.rested import Work, main

TYPES = (torch.bfloat16, torch.float32)
SHAPES = ((1024, 768), (4096, 2048), (8192, 4096), (4096, 8192), (8192, 14336), (16384, 1024))


def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=dtype).normal_(0, 0.5).requires_grad_(grad)


def both(function, *inputs: torch.Tensor) -> Callable[[], object]:
    """Forward and backward."""
    wanted = [x for x in inputs if x.requires_grad]

    def run() -> None:
        out = function(*inputs)
        torch.autograd.grad(out, wanted, torch.empty_like(out), allow_unused=True)

    return run


UNARY = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "square": torch.square,
    "pow": lambda x: x.pow(3.0),
    "scale": lambda x: x * 0.5,
    "shift": lambda x: x + 1.0,
    "clamp": lambda x: x.clamp(-1, 1),
    "dropout": lambda x: F.dropout(x, 0.1),
    "softmax": lambda x: F.softmax(x, -1),
    "log softmax": lambda x: F.log_softmax(x, -1),
    "sum": lambda x: x.sum(),
    "sum rows": lambda x: x.sum(0),
    "mean columns": lambda x: x.mean(-1, keepdim=True),
    "norm": lambda x: x.norm(),
    "transpose": lambda x: x.t().contiguous(),
    "chunks": lambda x: torch.cat(x.chunk(2, -1), 0),
    "double": lambda x: torch.cat((x, x), -1),
    "glu": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "heads": lambda x: x.view(x.shape[0], -1, 64).transpose(0, 1).contiguous(),
    "cumsum": lambda x: x.cumsum(-1),
}


def unary(shape: tuple[int, int], dtype: torch.dtype) -> Iterator[Work]:
    x = tensor(*shape, dtype=dtype, grad=True)
    for name, function in UNARY.items():
        yield name, both(function, x)


def more(shape: tuple[int, int], dtype: torch.dtype) -> Iterator[Work]:
    rows, width = shape
    x, y = (tensor(*shape, dtype=dtype, grad=True) for _ in range(2))
    row, column = tensor(width, dtype=dtype, grad=True), tensor(rows, 1, dtype=dtype, grad=True)
    for name, operator in (("add", torch.add), ("mul", torch.mul), ("div", torch.div)):
        yield name, both(operator, x, y)
    yield "bias", both(torch.add, x, row)
    yield "weight", both(torch.mul, x, row)
    yield "scale rows", both(torch.mul, x, column)
    yield "layer norm", both(lambda a, w, b: F.layer_norm(a, (width,), w, b), x, row, row)
    yield "rms norm", both(lambda a, w: F.rms_norm(a, (width,), w), x, row)
    mask = tensor(*shape) > 0
    yield "masked fill", both(lambda a: a.masked_fill(mask, 0.0), x)
    yield "where", both(lambda a, b: torch.where(mask, a, b), x, y)
    yield "compare", lambda: (x > y, x == y, torch.isfinite(x))
    yield "not a number", lambda: (torch.isnan(x).any(), torch.isinf(x).any())
    yield "largest", lambda: (x.amax(), x.argmax(-1), x.max(-1))
    yield "top 2", lambda: torch.topk(x, 2, -1)
    yield "in place", lambda: (x.detach().add_(y), x.detach().mul_(0.5), x.detach().zero_())
    yield "lerp", lambda: x.detach().lerp_(y, 0.1)
    yield "addcmul", lambda: torch.addcmul(x.detach(), x.detach(), y.detach())
    yield "fill", lambda: (torch.ones_like(x), torch.randn_like(x), torch.rand_like(x))
    for other in (torch.bfloat16, torch.float16, torch.float32):
        yield f"to {other}", lambda other=other: x.detach().to(other)
    index = torch.randint(rows, (rows,), device="cuda")
    yield "index select", both(lambda a: a.index_select(0, index), x)
    yield "index", both(lambda a: a[index], x)
    yield "index add", lambda: torch.zeros_like(x).index_add_(0, index, y.detach())
    yield "gather", both(lambda a: a.gather(0, index[:, None].expand(rows, width)), x)
    yield "embedding", both(lambda t: F.embedding(index, t), x)
    yield "sort", lambda: (index.sort(), index.bincount(minlength=64), index.cumsum(0))
    yield "triangle", lambda: (torch.triu(x.detach(), 1), torch.tril(x.detach()))


def losses(dtype: torch.dtype) -> Iterator[Work]:
    for rows, vocabulary in ((2048, 32000), (4096, 50304), (8192, 32000), (4096, 128256)):
        logits = tensor(rows, vocabulary, dtype=dtype, grad=True)
        target = torch.randint(vocabulary, (rows,), device="cuda")
        yield f"cross entropy {rows}", both(lambda x, t=target: F.cross_entropy(x, t), logits)
        yield f"in float {rows}", both(lambda x, t=target: F.cross_entropy(x.float(), t), logits)
    a = tensor(4096, 1024, dtype=dtype, grad=True)
    yield "mean squares", both(lambda x: F.mse_loss(x, torch.zeros_like(x)), a)


def optimizers() -> Iterator[Work]:
    for sizes in ([(1024, 1024)] * 40, [(4096, 4096)] * 8 + [(4096,)] * 16):
        parameters = [tensor(*size, grad=True) for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        made = {
            "sgd": torch.optim.SGD(parameters, 0.1, momentum=0.9),
            "adam": torch.optim.Adam(parameters, 1e-3),
            "adamw": torch.optim.AdamW(parameters, 1e-3),
            "fused adamw": torch.optim.AdamW(parameters, 1e-3, fused=True),
            "one by one": torch.optim.AdamW(parameters, 1e-3, foreach=False),
        }
        for name, optimizer in made.items():
            yield name, optimizer.step
        yield "clip", lambda p=parameters: torch.nn.utils.clip_grad_norm_(p, 1.0)
        yield (
            "clip one by one",
            lambda p=parameters: torch.nn.utils.clip_grad_norm_(p, 1.0, foreach=False),
        )


CONVOLUTIONS = (  # channels in and out, pixels, kernel, stride
    *((c, c, p, 3, 1) for c, p in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *((c, 2 * c, p, 3, 2) for c, p in ((64, 56), (128, 28), (256, 14))),
    *((c, 4 * c, p, 1, 1) for c, p in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *((4 * c, c, p, 1, 1) for c, p in ((64, 56), (128, 28), (256, 14), (512, 7))),
    (3, 64, 224, 7, 2),
    (3, 768, 224, 16, 16),
    (3, 1024, 224, 14, 14),
    *((c, c, p, 3, 1) for c, p in ((320, 64), (640, 32), (1280, 16))),
)


def vision(dtype: torch.dtype) -> Iterator[Work]:
    for last in (True, False):
        layout = torch.channels_last if last else torch.contiguous_format
        for batch in (32, 128):
            for inputs, outputs, pixels, size, stride in CONVOLUTIONS:
                if pixels == 64 and batch == 128:
                    continue
                x = tensor(batch, inputs, pixels, pixels, dtype=dtype)
                x = x.to(memory_format=layout).requires_grad_(inputs > 3)
                weight = tensor(outputs, inputs, size, size, dtype=dtype)
                weight = weight.to(memory_format=layout).requires_grad_()
                padding = size // 2 if size in (3, 7) else 0
                yield (
                    f"convolution {inputs} {outputs} {pixels} {size}",
                    both(
                        lambda a, w, s=stride, p=padding: F.conv2d(a, w, stride=s, padding=p),
                        x,
                        weight,
                    ),
                )
            x = tensor(batch, 256, 56, 56, dtype=dtype).to(memory_format=layout).requires_grad_()
            norm = torch.nn.BatchNorm2d(256, device="cuda")
            group = torch.nn.GroupNorm(32, 256, device="cuda", dtype=dtype)
            yield "batch norm", both(norm, x)
            yield "group norm", both(group, x)
            yield "relu of images", both(F.relu, x)
            yield "pool", both(lambda a: F.max_pool2d(a, 3, 2, 1), x)
            yield "mean of images", both(lambda a: F.adaptive_avg_pool2d(a, 1), x)
            yield "up", both(lambda a: F.interpolate(a, scale_factor=2), x)


def everything() -> Iterator[Work]:
    for dtype in TYPES:
        for shape in SHAPES:
            yield from unary(shape, dtype)
            yield from more(shape, dtype)
        yield from losses(dtype)
    yield from optimizers()
    for dtype in TYPES:
        yield from vision(dtype)


if __name__ == "__main__":
    main(__doc__, everything)
