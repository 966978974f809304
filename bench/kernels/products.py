"""Products and attention of popular models' layers, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name products -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.products [--seconds 300]

Why it exists: most of a step's time is in matrix products, and what a database holds exactly needs
no law. This job runs the linear layers and the attention of well-known models, forward and
backward, by the number of tokens and the degree of tensor parallelism: the shapes that people run,
chosen from the models' published sizes alone. Sizes that more models share come first, so that a
visit that ends early has the most useful ones.

Pauses as long as the work keep the GPU cool, so that the times are those of the highest useful
clock. Only products and attention go into the database that ships (bench/kernels/only.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from bench.kernels.rested import rested

GPU = {"device": "cuda", "dtype": torch.bfloat16}
TOKENS = (4096, 8192, 2048, 16384, 1024, 32768, 512)
DEGREES = (1, 2, 4, 8)
LARGEST = 6e12  # multiplications of a product that are worth recording
MOST_NUMBERS = 1 << 31

# width, query width, key/value width, feed-forward width, vocabulary, gated
MODELS = {
    "llama 3.2 1b": (2048, 2048, 512, 8192, 128256, True),
    "llama 3.2 3b": (3072, 3072, 1024, 8192, 128256, True),
    "llama 3 8b": (4096, 4096, 1024, 14336, 128256, True),
    "llama 3 70b": (8192, 8192, 1024, 28672, 128256, True),
    "llama 3 405b": (16384, 16384, 1024, 53248, 128256, True),
    "llama 2 7b": (4096, 4096, 4096, 11008, 32000, True),
    "llama 2 13b": (5120, 5120, 5120, 13824, 32000, True),
    "qwen 3 0.6b": (1024, 2048, 1024, 3072, 151936, True),
    "qwen 3 1.7b": (2048, 2048, 1024, 6144, 151936, True),
    "qwen 3 4b": (2560, 4096, 1024, 9728, 151936, True),
    "qwen 3 8b": (4096, 4096, 1024, 12288, 151936, True),
    "qwen 3 14b": (5120, 5120, 1024, 17408, 151936, True),
    "qwen 3 32b": (5120, 8192, 1024, 25600, 151936, True),
    "qwen 2.5 7b": (3584, 3584, 512, 18944, 152064, True),
    "gpt 3 13b": (5120, 5120, 5120, 20480, 51200, False),
    "gpt 3 6.7b": (4096, 4096, 4096, 16384, 51200, False),
    "gpt 2 xl": (1600, 1600, 1600, 6400, 50304, False),
    "gpt 2": (768, 768, 768, 3072, 50304, False),
    "160m": (768, 768, 768, 2048, 32000, True),
}
# heads of queries and of keys, head width
HEADS = {
    (32, 8, 64): "llama 3.2 1b",
    (24, 8, 128): "llama 3.2 3b",
    (32, 8, 128): "llama 3 8b",
    (64, 8, 128): "llama 3 70b",
    (32, 32, 128): "llama 2 7b",
    (40, 40, 128): "llama 2 13b",
    (16, 8, 128): "qwen 3 1.7b",
    (40, 8, 128): "qwen 3 14b",
    (28, 4, 128): "qwen 2.5 7b",
    (12, 12, 64): "gpt 2",
    (25, 25, 64): "gpt 2 xl",
}


def layers(model, degree: int) -> Iterator[tuple[int, int]]:
    """(outputs, inputs) of the linear layers of one rank."""
    width, queries, keys, inner, vocabulary, gated = model
    yield queries // degree, width
    yield keys // degree, width
    yield (queries + 2 * keys) // degree, width  # joined
    yield width, queries // degree
    yield inner // degree, width
    if gated:
        yield 2 * inner // degree, width  # joined
    yield width, inner // degree
    yield vocabulary // degree, width
    if degree > 1:
        yield vocabulary, width


def products() -> list[tuple[int, int, int]]:
    """(tokens, outputs, inputs), those that more models have first."""
    found: Counter = Counter()
    for model in MODELS.values():
        for degree in DEGREES:
            for layer in set(layers(model, degree)):
                found[layer] += 1
    chosen = []
    for (outputs, inputs), models in found.items():
        for place, tokens in enumerate(TOKENS):
            operations = 2 * tokens * outputs * inputs
            if operations > LARGEST or max(tokens, inputs) * outputs > MOST_NUMBERS:
                continue
            if outputs % 8 == 0 and inputs % 8 == 0:
                chosen.append((place - 2 * models, tokens, outputs, inputs))
    return [shape for _, *shape in sorted(chosen)]


def attentions() -> list[tuple[int, int, int, int, int]]:
    """(sequences, tokens of each, heads, key heads, head width)."""
    found = set()
    for heads, keys, width in HEADS:
        for degree in DEGREES:
            if heads % degree or keys % degree:
                continue
            for length in (512, 1024, 2048, 4096, 8192, 16384, 32768):
                for sequences in (1, 2, 4, 8):
                    if sequences * length <= 32768:
                        shape = sequences, length, heads // degree
                        found.add((*shape, keys // degree, width))
                        found.add((*shape, heads // degree, width))  # keys repeated
    operations = {s: s[0] * s[1] ** 2 * s[2] * s[4] for s in found}
    return sorted((s for s in found if operations[s] < 4e12), key=lambda s: operations[s])


class Job:
    """Runs shapes on views of one buffer."""

    def __init__(self) -> None:
        self.numbers = torch.empty(MOST_NUMBERS, **GPU).normal_(0, 0.5)

    def view(self, *shape: int) -> torch.Tensor:
        count = 1
        for size in shape:
            count *= size
        return self.numbers[:count].view(shape)

    def product(self, tokens: int, outputs: int, inputs: int) -> None:
        x = self.view(1, tokens, inputs).requires_grad_()
        weight = self.view(outputs, inputs).requires_grad_()
        gradient = self.view(1, tokens, outputs)

        def run() -> None:
            torch.autograd.grad(F.linear(x, weight), (x, weight), gradient)

        rested(run)

    def attention(self, sequences: int, length: int, heads: int, keys: int, width: int) -> None:
        query, key, value = (
            self.view(sequences, length, count, width).transpose(1, 2).requires_grad_()
            for count in (heads, keys, keys)
        )
        gradient = self.view(sequences, length, heads, width).transpose(1, 2)

        def run() -> None:
            out = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=heads != keys
            )
            torch.autograd.grad(out, (query, key, value), gradient)

        rested(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1e9, help="end before so much time")
    parser.add_argument("--most", type=int, default=10**9, help="of each kind: a rehearsal")
    parser.add_argument("--count", action="store_true", help="only say how many there are")
    options = parser.parse_args()
    if options.count:
        print(len(products()), "layers,", len(attentions()), "attentions")
        sys.exit()
    torch.cuda.set_device(0)
    job, begin = Job(), time.monotonic()
    shapes = [(job.attention, s) for s in attentions()[: options.most]]
    shapes += [(job.product, s) for s in products()[: options.most]]
    done = 0
    for run, shape in shapes:
        if time.monotonic() - begin > options.seconds:
            break
        run(*shape)
        done += 1
        if done % 200 == 0:
            print(f"{done} of {len(shapes)}, {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{done} of {len(shapes)} shapes in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
