"""Trains a model of torchvision or transformers on one GPU, as most scripts do, and prints its step times.

    torchrun --nproc-per-node 1 -m bench.zoo.train --model resnext50_32x4d --batch 128 --precision autocast-fp16

Why it exists: bench/accuracy knows Llamas, a ResNet and a vision transformer. Other people train other
models, in other precisions, layouts and optimizers. The models come from their libraries with random
weights, and nothing is downloaded. Rank 0 prints one line `RESULT {json}`: the seconds of every step, between
two device synchronisations, and [allocated, reserved] peak bytes. With --trace one more step is profiled.
"""

import argparse
import fcntl
import importlib
import json
import platform
import statistics
import time

import torch
import torch.nn.functional as F

from bench.accuracy.workload import profile
from bench.zoo.texts import TEXT

CLASSES = 1000
SEGMENTS = 21
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "adamw-single": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
}


def text_loss(options):
    """(model, function that gives the loss of a step)."""
    import transformers

    config, kind, given = TEXT[options.model]
    built = getattr(transformers, config)(**given)
    model = getattr(transformers, kind)(built).cuda()
    words = torch.randint(0, built.vocab_size, (options.batch, options.size), device="cuda")
    return model, lambda: model(input_ids=words, labels=words).loss


def image_loss(options):
    """(model, function that gives the loss of a step)."""
    import torchvision

    images = torch.randn(options.batch, 3, options.size, options.size, device="cuda")
    if hasattr(torchvision.models.segmentation, options.model):
        build = getattr(torchvision.models.segmentation, options.model)
        model = build(weights=None, weights_backbone=None, num_classes=SEGMENTS).cuda()
        labels = torch.randint(
            0, SEGMENTS, (options.batch, options.size, options.size), device="cuda"
        )
    else:
        model = getattr(torchvision.models, options.model)(num_classes=CLASSES).cuda()
        labels = torch.randint(0, CLASSES, (options.batch,), device="cuda")
    if options.layout == "nhwc":
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    if options.precision == "bf16":
        images = images.bfloat16()

    def loss():
        found = model(images)
        return F.cross_entropy(found["out"] if isinstance(found, dict) else found, labels)

    return model, loss


def stepper(options):
    """The function that runs one step."""
    model, loss = (text_loss if options.model in TEXT else image_loss)(options)
    if options.precision == "bf16":
        model.bfloat16()
    model.train()
    if options.compile:
        model.compile()
    optimizer = OPTIMIZERS[options.optimizer](model.parameters())
    to = {"autocast-bf16": torch.bfloat16, "autocast-fp16": torch.float16}.get(options.precision)
    scaler = torch.amp.GradScaler("cuda", enabled=to is torch.float16)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=to or torch.bfloat16, enabled=to is not None):
            found = loss()
        scaler.scale(found).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="of torchvision, or of TEXT")
    parser.add_argument("--batch", type=int, required=True, help="images or sequences")
    parser.add_argument("--size", type=int, default=224, help="pixels or tokens")
    parser.add_argument(
        "--precision",
        default="autocast-bf16",
        choices=("fp32", "tf32", "bf16", "autocast-bf16", "autocast-fp16"),
    )
    parser.add_argument("--layout", default="nchw", choices=("nchw", "nhwc"))
    parser.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=6)
    parser.add_argument(
        "--compile", action="store_true", help="the model's forward and backward pass"
    )
    parser.add_argument(
        "--alone",
        help="use the GPU only while this file is locked: the next job may load meanwhile",
    )
    parser.add_argument("--trace", help="where a Kineto trace of one more step goes")
    options = parser.parse_args()
    if options.alone:
        importlib.import_module("transformers" if options.model in TEXT else "torchvision")
        lock = open(options.alone, "w")  # until this process ends
        fcntl.flock(lock, fcntl.LOCK_EX)
    torch.manual_seed(0)
    if options.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    step, times = stepper(options), []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(options.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    kept = times[options.warmup :]
    result = vars(options) | {
        "median_s": statistics.median(kept),
        "spread": statistics.pstdev(kept) / statistics.median(kept),
        "times": [round(one, 6) for one in times],
        "peaks": [[torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]],
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print("RESULT " + json.dumps(result), flush=True)
    if options.trace:
        profile(step, options.trace, rank=0)


if __name__ == "__main__":
    main()
