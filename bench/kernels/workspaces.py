"""Measures how much memory the convolutions of torchvision's models take, on a GPU or under the emulator.

    python -m bench.kernels.workspaces OUT.jsonl.xz [--seconds 110]

Why it exists: PyTorch allocates the workspace that cuDNN's chosen engine asks for. Under the emulator,
NVIDIA's library chooses for a GPU that is described to it, and does not always choose what it chooses on a
GPU. workspaces.jsonl.xz has an H200's answers (2026-11-24, cuDNN 9.19). Each line has the layer (as in
convolutions.py), the batch, the data type, the layout, and how many bytes more than before were in use at
most in the forward and in the backward pass, results included; or the error.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from bench.kernels.convolutions import Layer, layers

FIRST, LAST = torch.contiguous_format, torch.channels_last
FORMS = (
    (torch.float32, FIRST),
    (torch.bfloat16, FIRST),
    (torch.float16, FIRST),
    (torch.float32, LAST),
)
BATCH = 96
MOST_NUMBERS = 1 << 28
"""In a layer's input or output."""


def most_bytes(
    layer: Layer, batch: int, dtype: torch.dtype, form: torch.memory_format
) -> list[int]:
    """What the forward and the backward pass take at most."""
    made = {"device": "cuda", "dtype": dtype}
    x = torch.empty(batch, layer.inputs, layer.height, layer.width, **made)
    weight = torch.empty(layer.outputs, layer.inputs // layer.groups, *layer.window, **made)
    x, weight = (one.to(memory_format=form).requires_grad_() for one in (x, weight))
    found = []

    def begin() -> int:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    before = begin()
    out = F.conv2d(x, weight, None, layer.stride, layer.padding, 1, layer.groups)
    found.append(torch.cuda.max_memory_allocated() - before)
    gradient = torch.empty_like(out)
    before = begin()
    kept = torch.autograd.grad(out, (x, weight), gradient)
    found.append(torch.cuda.max_memory_allocated() - before)
    del kept
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after so much time")
    options = parser.parse_args()
    every, lines, begin = layers(), [], time.monotonic()
    random.Random(1).shuffle(every)
    for layer in every:
        for dtype, form in FORMS:
            if time.monotonic() - begin > options.seconds:
                break
            batch = BATCH
            while (
                batch * layer.height * layer.width * max(layer.inputs, layer.outputs) > MOST_NUMBERS
            ):
                batch //= 2
            try:
                found: list = most_bytes(layer, batch, dtype, form)
            except RuntimeError as error:
                found = [str(error).splitlines()[0]] * 2
            lines.append(json.dumps([list(layer), batch, str(dtype), str(form), *found]))
    options.out.write_bytes(lzma.compress("".join(line + "\n" for line in lines).encode()))
    print(f"{len(lines)} cases, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
