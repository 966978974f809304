"""The convolutions, enlargements and losses of torchvision's segmentation models, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name segmentation -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.segmentation [--seconds 200]

Why it exists: these models convolve large images with dilated filters, of which few were recorded. In bench/zoo's
fcn_resnet101 the gradients of dilated weights came out 1.4 times too long, 2.7 % of the step. The image sizes
of bench/zoo's evaluation job are left out. The cases are shuffled; pauses as long as the work keep the GPU cool.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from bench.kernels.convolutions import FORMS, Form, convolution, fitting, layers
from bench.kernels.operators import both
from bench.kernels.rested import Work, main
from bench.kernels.varied import image

MODELS = (
    ("fcn_resnet50", 384), ("fcn_resnet50", 520), ("deeplabv3_resnet50", 640), ("deeplabv3_resnet101", 448),
    ("deeplabv3_mobilenet_v3_large", 512), ("lraspp_mobilenet_v3_large", 320),
)  # fmt: skip
"""Name, and pixels of a side."""
BATCHES = (4, 8, 12, 24)
CLASSES = (21, 19, 60)
SCALE = 8
"""How much smaller the features are than the image."""


def convolutions() -> Iterator[Work]:
    """Dilated layers with every batch size. Other layers with one, since many of their kind are recorded."""
    places = [(layer, form) for layer in layers(MODELS, weights_backbone=None) for form in FORMS]
    for place, (layer, form) in enumerate(places):
        dilated = layer.dilation != (1, 1)
        for batch in BATCHES if dilated else (BATCHES[place % len(BATCHES)],):
            yield convolution(layer, fitting(layer, batch), form)


def heads() -> Iterator[Work]:
    """What follows the last layer: the image's size again, and the loss of each pixel."""
    places = [(pixels, classes) for _, pixels in MODELS for classes in CLASSES]
    for place, (pixels, classes) in enumerate(places):
        for form in FORMS:
            batch = BATCHES[place % len(BATCHES)]
            yield enlargement(batch, classes, pixels, form)
            yield loss(batch, classes, pixels, form)


def enlargement(batch: int, classes: int, pixels: int, form: Form) -> Work:
    dtype, layout = form

    def run() -> None:
        side = pixels // SCALE
        both(
            lambda x: F.interpolate(x, size=(pixels, pixels), mode="bilinear", align_corners=False),
            image(batch, classes, side, side, dtype=dtype, layout=layout),
        )()

    return f"enlargement {batch} {classes} {pixels} {dtype} {layout}", run


def loss(batch: int, classes: int, pixels: int, form: Form) -> Work:
    dtype, layout = form

    def run() -> None:
        labels = torch.randint(classes, (batch, pixels, pixels), device="cuda")
        both(
            lambda x: F.cross_entropy(x.float(), labels),
            image(batch, classes, pixels, pixels, dtype=dtype, layout=layout),
        )()

    return f"loss {batch} {classes} {pixels} {dtype} {layout}", run


def cases() -> list[Work]:
    found = [*convolutions(), *heads()]
    random.Random(0).shuffle(found)
    return found


if __name__ == "__main__":
    main(__doc__, cases)
