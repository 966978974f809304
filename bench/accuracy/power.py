"""Measures how a GPU's clock, and with it kernel times, fall when work of one kind goes on for
seconds.

    python -m bench.accuracy.power OUT.jsonl

Why it exists: under a 700 W limit an H200 that computes all the time leaves its 1,980 MHz; kernel
times taken in a burst of a few milliseconds are then too short for a training step. One line per
kind of work: microseconds per kernel over time, and clock (MHz) and power (W) beside them. Operands
are random: zeros draw less power.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F

from bench.events import us_per_call

SECONDS = 3.0
CHUNK_SECONDS = 0.1
GPU = dict(device="cuda", dtype=torch.bfloat16)


def gemm(m, n, k, scale=1.0):
    a, b = torch.randn(m, k, **GPU) * scale, torch.randn(n, k, **GPU) * 0.02
    return lambda: F.linear(a, b)


def attention(backward):
    q = torch.randn(1, 32, 8192, 128, **GPU, requires_grad=backward)
    k, v = (torch.randn(1, 8, 8192, 128, **GPU, requires_grad=backward) for _ in range(2))
    if not backward:
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def elementwise():
    x, y = torch.randn(1 << 28, **GPU), torch.empty(1 << 28, **GPU)
    return lambda: torch.mul(x, 1.5, out=y)


def half_and_half():
    """As much time in a GEMM as in memory-bound work: nearer to a training step than either."""
    first, second = gemm(8192, 4096, 4096), elementwise()

    def both():
        for _ in range(2):
            first()
        second()

    return both


WORK = {
    "gemm_8192_8192_8192": lambda: gemm(8192, 8192, 8192),
    "gemm_8192_4096_14336": lambda: gemm(8192, 4096, 14336),
    "gemm_4096_4096_4096": lambda: gemm(4096, 4096, 4096),
    "gemm_8192_8192_8192_zeros": lambda: gemm(8192, 8192, 8192, 0.0),
    "attention_forward": lambda: attention(False),
    "attention_backward": lambda: attention(True),
    "elementwise_1GB": elementwise,
    "gemm_and_elementwise": half_and_half,
}


def main():
    with open(sys.argv[1], "a") as stream:
        for name, build in WORK.items():
            issue = build()
            us_per_call(issue, 3)
            # so that clock and temperature recover: the first chunk is a burst on a rested GPU
            time.sleep(1.0)
            burst = us_per_call(issue, 3)
            count = max(1, int(CHUNK_SECONDS * 1e6 / burst))
            series, start = [], time.monotonic()
            while time.monotonic() - start < SECONDS:
                microseconds = us_per_call(issue, count)
                series.append(
                    [
                        round(time.monotonic() - start, 2),
                        round(microseconds, 2),
                        torch.cuda.clock_rate(),
                        round(torch.cuda.power_draw() / 1000),
                    ]
                )
            row = {
                "work": name,
                "burst_us": round(burst, 2),
                "sustained_us": sorted(s[1] for s in series[-10:])[5],
                "columns": ["seconds", "us", "sm_mhz", "watts"],
                "series": series,
            }
            stream.write(json.dumps(row) + "\n")
            print(
                f"{name:28s} burst {row['burst_us']:9.1f} us  sustained {row['sustained_us']:9.1f} "
                f"us  at {series[-1][2]} MHz,"
                f" {series[-1][3]} W",
                flush=True,
            )
            del issue
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
