"""What single operators cost the host, as a script that runs on a GPU or under the simulator.

    [phantora-ns --host-time measured --gpus-per-node 1 --] python bench/own_host/operators.py [--rounds N]

Why it exists: where simulated host time is off on the same machine, this says for which kind of code.
Each line of JSON: us of host time per call, the least of several rounds, none of which waits for the
GPU. The tensors are small, so that the GPU never decides, but too large
for the simulator to compute their values.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

CALLS = 150
"""Of one round: fewer kernels than the launch queue holds."""


def cases() -> dict[str, tuple[Callable[[], object], int]]:
    """name -> (what is called, how many times in a round)."""
    device = "cuda"
    x = torch.ones(512, 512, device=device)
    y = torch.ones(512, 512, device=device)
    weight = torch.ones(512, 512, device=device, requires_grad=True)
    half = torch.ones(512, 512, device=device, dtype=torch.bfloat16)
    norm = torch.nn.LayerNorm(512, device=device)
    linear = torch.nn.Linear(512, 512, device=device, dtype=torch.bfloat16)
    mlp = torch.nn.Sequential(*(torch.nn.Linear(512, 512, device=device) for _ in range(8)))
    q = torch.ones(1, 4, 256, 64, device=device, dtype=torch.bfloat16)
    many = [torch.ones(8192, device=device) for _ in range(32)]
    grads = [torch.ones(8192, device=device) for _ in range(32)]
    out = torch.empty(512, 512, device=device)

    def backward() -> None:
        mlp(x).sum().backward()

    def chain() -> None:
        z = weight
        for _ in range(20):
            z = z * 1.5
        z.sum().backward()

    return {
        "python only": (lambda: [i * i for i in range(50)], CALLS),
        "view": (lambda: x.view(-1), CALLS),
        "transpose, reshape": (lambda: x.t().reshape(1024, 256), CALLS),
        "empty": (lambda: torch.empty(512, 512, device=device), CALLS),
        "add in place": (lambda: x.add_(1.0), CALLS),
        "add, out": (lambda: torch.add(x, y, out=out), CALLS),
        "add": (lambda: x + y, CALLS),
        "multiply, with grad": (lambda: weight * 2.0, CALLS),
        "cast": (lambda: x.to(torch.bfloat16), CALLS),
        "copy": (lambda: out.copy_(x), CALLS),
        "zero": (lambda: out.zero_(), CALLS),
        "sum": (lambda: x.sum(), CALLS),
        "softmax": (lambda: F.softmax(x, -1), CALLS),
        "layer norm": (lambda: norm(x), CALLS),
        "matmul": (lambda: half @ half, CALLS),
        "linear": (lambda: linear(half), CALLS),
        "attention": (lambda: F.scaled_dot_product_attention(q, q, q), CALLS),
        "foreach add": (lambda: torch._foreach_add_(many, grads, alpha=0.1), CALLS),
        "cat": (lambda: torch.cat(many), CALLS),
        "eight layers, backward": (backward, 10),
        "twenty products, backward": (chain, 10),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    for name, (call, count) in cases().items():
        rounds = []
        for _ in range(options.rounds):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            rounds.append((time.perf_counter() - begin) / count * 1e6)
        kept = sorted(rounds[2:])
        line = {"name": name, "us": round(kept[0], 3), "median_us": round(kept[len(kept) // 2], 3)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
