"""A job that a leader records: optimizer steps and gradient clipping over the parameters of twelve models.

    phantora-ns profile --record kernels --leaders 0 --name optimizers -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.optimizers [--seconds 60]

Why it exists: a step's optimizer takes lists of tensors, and its kernels' times depend on the whole list. On a GPU
model that recorded only a few of them, AdamW in bf16 came out 11 to 20 % too long. The lists are those of plain
Llamas with other widths and depths than bench/accuracy's, in bf16 and in fp32. Pauses as long as the work keep the
GPU cool. A case that fails is named and left out.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import torch

from bench.kernels.rested import Work, sweep

Model = tuple[int, int, int, int, int]
MODELS = (
    (32000, 512, 8, 512, 1536),
    (50304, 1024, 12, 1024, 4096),
    (32000, 1280, 16, 640, 3456),
    (128256, 1536, 16, 512, 4096),
    (64000, 1792, 12, 896, 7168),
    (32000, 2560, 20, 640, 6912),
    (100352, 2048, 8, 1024, 5632),
    (128256, 2816, 14, 704, 9728),
    (32000, 3584, 10, 1024, 14336),
    (128256, 3328, 8, 1664, 8960),
    (32000, 4608, 5, 4608, 12288),
    (128256, 4352, 4, 1088, 14592),
)
"""Vocabulary, width, layers, width of keys and values, feed-forward width."""
DTYPES = (torch.bfloat16, torch.float32)
MOST_BYTES = 24e9
"""The most that parameters, gradients and both moments of a model may take. The next model is built before the
last one is freed, so two of them must fit."""


def shapes(model: Model) -> list[tuple[int, ...]]:
    vocabulary, width, layers, narrow, inner = model
    layer = [
        (width, width),
        (narrow, width),
        (narrow, width),
        (width, width),
        (inner, width),
        (width, inner),
        (inner, width),
        (width,),
        (width,),
    ]
    return [(vocabulary, width), *layer * layers, (width,), (vocabulary, width)]


def works() -> Iterator[Work]:
    """Shuffled, so that the time limit cuts off cases at random."""
    chosen = [(model, dtype) for model in MODELS for dtype in DTYPES]
    random.Random(3).shuffle(chosen)
    for model, dtype in chosen:
        name = f"{' '.join(map(str, model))} {dtype}"
        numbers = sum(torch.Size(shape).numel() for shape in shapes(model))
        if 4 * numbers * dtype.itemsize > MOST_BYTES:
            continue
        parameters = [
            torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()
            for shape in shapes(model)
        ]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        yield f"norm {name}", lambda p=parameters: torch.nn.utils.clip_grad_norm_(p, 1.0)
        for kind, make in (
            ("fused adamw", lambda p: torch.optim.AdamW(p, fused=True)),
            ("foreach adamw", lambda p: torch.optim.AdamW(p, foreach=True)),
            ("sgd", lambda p: torch.optim.SGD(p, momentum=0.9, foreach=True)),
        ):
            yield f"{kind} {name}", make(parameters).step
            torch.cuda.empty_cache()
        del parameters
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no case after that")
    sweep(works(), parser.parse_args().seconds)


if __name__ == "__main__":
    main()
