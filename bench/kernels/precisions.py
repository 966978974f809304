"""Linear layers in fp32 without tensor cores and in fp8, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name precisions -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.precisions [--seconds 130]

Why it exists: the shipped times knew no product in fp8 and few in fp32, so both came from a share of the peak that
nobody had measured, and the casts, scales and transposing copies around products in fp8 from the memory's
bandwidth. This job runs the layers of well-known models by tensor-parallel degree and number of tokens, forward and
backward: in fp32, and as torchao's Float8Linear under bf16 autocast, scaled by tensor and by row, with weights in fp32
and in bf16. The sizes are of no job of bench/frameworks. The cases are shuffled, and pauses as long as the work keep
the GPU cool. A case that fails is named and left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from bench.kernels.operators import both, tensor
from bench.kernels.rested import Work, main

TOKENS = (2048, 4096, 12288)
DEGREES = (1, 2, 4)
LARGEST = {torch.float32: 4e11, torch.bfloat16: 6e12}
"""Multiplications of a product that are worth recording."""
HEAD_TOKENS = 2048
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")

# width, key/value width, feed-forward width, vocabulary, as of Llama 3.2, Llama 2 and Qwen 2.5; Llama 3 8B, which
# bench/frameworks runs, is left out
MODELS = (
    (2048, 512, 8192, 128256),
    (3072, 1024, 8192, 128256),
    (5120, 5120, 13824, 32000),
    (3584, 512, 18944, 152064),
    (1024, 1024, 3072, 50304),
    (8192, 1024, 28672, 128256),
)


def layers() -> Iterator[tuple[int, int, int]]:
    """(tokens, outputs, inputs) of the linear layers of one rank."""
    found = set()
    for width, keys, inner, vocabulary in MODELS:
        for degree in DEGREES:
            found |= {
                (tokens, outputs, inputs)
                for tokens in TOKENS
                for outputs, inputs in (
                    (width // degree, width),
                    (keys // degree, width),
                    (width, width // degree),
                    (inner // degree, width),
                    (width, inner // degree),
                )
            }
        found.add((HEAD_TOKENS, vocabulary, width))
    yield from sorted(found)


def plain() -> Iterator[Work]:
    """fp32; PyTorch allows no TF32 in products unless it is asked to."""
    for tokens, outputs, inputs in layers():
        if tokens * outputs * inputs > LARGEST[torch.float32]:
            continue

        def run(tokens=tokens, outputs=outputs, inputs=inputs) -> None:
            both(F.linear, tensor(tokens, inputs, grad=True), tensor(outputs, inputs, grad=True))()

        yield f"fp32 {tokens} {outputs} {inputs}", run


def scaled() -> Iterator[Work]:
    """torchao's linear layers, as TorchTitan converts them."""
    for tokens, outputs, inputs in layers():
        if tokens * outputs * inputs > LARGEST[torch.bfloat16] or inputs % 16 or outputs % 16:
            continue
        for recipe in RECIPES:
            for dtype in (torch.float32, torch.bfloat16):
                if dtype is torch.bfloat16 and recipe != "tensorwise":
                    continue

                def run(t=tokens, o=outputs, i=inputs, recipe=recipe, dtype=dtype) -> None:
                    model = nn.Sequential(nn.Linear(i, o, bias=False, device="cuda", dtype=dtype))
                    config = Float8LinearConfig.from_recipe_name(recipe)
                    convert_to_float8_training(model, config=config)
                    x = tensor(1, t, i, dtype=torch.bfloat16, grad=True)
                    with torch.autocast("cuda", torch.bfloat16):
                        out = model(x)
                    out.backward(torch.empty_like(out))

                yield f"fp8 {recipe} {tokens} {outputs} {inputs} {dtype}", run


def cases() -> list[Work]:
    found = [*plain(), *scaled()]
    random.Random(0).shuffle(found)
    return found


if __name__ == "__main__":
    main(__doc__, cases)
