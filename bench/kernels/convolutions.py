"""The convolutions and batch norms of torchvision's models, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name convolutions -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.convolutions [--seconds 400]

Why it exists: convolutions of models that nobody had recorded were 12 % off in the median, and up to twice
too slow in large images (bench/zoo). The layers come from the models themselves, run on tensors that hold
nothing; no model of bench/zoo is among them. Each case comes forward and backward. The cases are shuffled,
so that a visit that ends early has some of each. Pauses as long as the work keep the GPU cool.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
import torchvision

from bench.kernels.operators import both, tensor
from bench.kernels.rested import Work, main

MODELS = (
    ("resnet18", 224), ("resnet34", 224), ("resnet152", 224), ("resnext101_64x4d", 224),
    ("wide_resnet101_2", 224), ("vgg13_bn", 224), ("vgg19", 224), ("alexnet", 224),
    ("densenet169", 224), ("densenet201", 224), ("mobilenet_v2", 224), ("mobilenet_v3_small", 224),
    ("mnasnet0_75", 224), ("squeezenet1_1", 224), ("shufflenet_v2_x1_0", 224), ("googlenet", 224),
    ("inception_v3", 299), ("regnet_x_3_2gf", 224), ("regnet_x_16gf", 224), ("regnet_y_8gf", 224),
    ("efficientnet_b0", 224), ("efficientnet_b2", 288), ("convnext_tiny", 224),
)  # fmt: skip
"""Name, and pixels of a side."""
FORMS = (
    (torch.float32, torch.contiguous_format),
    (torch.float32, torch.channels_last),
    (torch.bfloat16, torch.contiguous_format),
    (torch.bfloat16, torch.channels_last),
    (torch.float16, torch.channels_last),
    (torch.float16, torch.contiguous_format),
)
BATCHES = (32, 64, 128, 256)
MOST_NUMBERS = 1 << 29
"""In a layer's input or output."""
LEAST_OF_NORM = 16
"""Channels of a batch norm."""


class Layer(NamedTuple):
    """A convolution by its input (channels, height, width) and its parameters."""

    inputs: int
    height: int
    width: int
    outputs: int
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def layers(models: Iterable[tuple[str, int]], **options: object) -> list[Layer]:
    """The different convolutions of all models, in a fixed order. `options` go to the
    models' constructors."""
    found: set[Layer] = set()

    def note(module: torch.nn.Conv2d, given: tuple[torch.Tensor, ...]) -> None:
        _, channels, height, width = given[0].shape
        found.add(
            Layer(
                channels,
                height,
                width,
                module.out_channels,
                module.kernel_size,
                module.stride,
                module.padding,
                module.dilation,
                module.groups,
            )  # fmt: skip
        )

    for name, pixels in models:
        model = torchvision.models.get_model(name, weights=None, **options).to("meta")
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.register_forward_pre_hook(note)
        model.eval()(torch.empty(1, 3, pixels, pixels, device="meta"))
    return sorted(found)


Form = tuple[torch.dtype, torch.memory_format]


def convolution(layer: Layer, batch: int, form: Form) -> Work:
    dtype, layout = form

    def run() -> None:
        x = tensor(batch, layer.inputs, layer.height, layer.width, dtype=dtype)
        weight = tensor(layer.outputs, layer.inputs // layer.groups, *layer.window, dtype=dtype)
        settings = layer.stride, layer.padding, layer.dilation, layer.groups
        both(
            lambda a, w: F.conv2d(a, w, None, *settings),
            x.to(memory_format=layout).requires_grad_(),
            weight.to(memory_format=layout).requires_grad_(),
        )()

    return f"convolution {layer} {batch} {dtype} {layout}", run


def norm(layer: Layer, batch: int, form: Form) -> Work:
    dtype, layout = form

    def run() -> None:
        x = tensor(batch, layer.inputs, layer.height, layer.width, dtype=dtype)
        ones = [torch.ones(layer.inputs, device="cuda") for _ in range(4)]
        both(
            lambda a, w, b: F.batch_norm(a, ones[0], ones[1], w, b, True),
            x.to(memory_format=layout).requires_grad_(),
            ones[2].requires_grad_(),
            ones[3].requires_grad_(),
        )()

    return f"batch norm {layer.inputs} {layer.height} {batch} {dtype} {layout}", run


def fitting(layer: Layer, batch: int) -> int:
    """The batch, halved until the layer's tensors are small enough."""
    while batch * layer.height * layer.width * max(layer.inputs, layer.outputs) > MOST_NUMBERS:
        batch //= 2
    return batch


def cases() -> Iterator[Work]:
    """Every layer in every form, each with a batch by its place in a shuffled list."""
    places = [(layer, form) for layer in layers(MODELS) for form in FORMS]
    random.Random(0).shuffle(places)
    for place, (layer, form) in enumerate(places):
        batch = fitting(layer, BATCHES[place % len(BATCHES)])
        yield convolution(layer, batch, form)
        if layer.inputs >= LEAST_OF_NORM:
            yield norm(layer, batch, form)


if __name__ == "__main__":
    main(__doc__, cases)
