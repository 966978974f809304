"""Measures how compute and communication on one GPU slow each other, by kind of kernel and of
collective.

    torchrun --nproc-per-node 8 -m bench.accuracy.contention OUT.jsonl

Why it exists: while NCCL's kernel runs it holds multiprocessors and memory bandwidth, and a
simulator that lets the two overlap for free is 8-15 % too fast on FSDP. Each pair is timed three
ways by CUDA events on rank 0: alone; compute wholly covered by a queue of collectives; collectives
wholly covered by a queue of compute. Microseconds per kernel, per collective.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from bench.events import us_per_call

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
GPU = dict(device="cuda", dtype=torch.bfloat16)


def gemm(m, n, k):
    a, b = torch.randn(m, k, **GPU), torch.randn(n, k, **GPU)
    return lambda: F.linear(a, b)


def attention(backward):
    q = torch.randn(1, 32, 4096, 128, **GPU, requires_grad=backward)
    k, v = (torch.randn(1, 8, 4096, 128, **GPU, requires_grad=backward) for _ in range(2))
    if not backward:
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def elementwise(megabytes):
    x = torch.randn(megabytes << 19, **GPU)
    y = torch.empty_like(x)
    return lambda: torch.mul(x, 1.5, out=y)


def cast(megabytes):
    x, y = torch.randn(megabytes << 19, **GPU), torch.empty(megabytes << 19, device="cuda")
    return lambda: y.copy_(x)


def rms_norm():
    x, w = torch.randn(8192, 4096, **GPU), torch.randn(4096, **GPU)
    return lambda: F.rms_norm(x, (4096,), w)


def softmax():
    x = torch.randn(2048, 128256, device="cuda")
    return lambda: torch.log_softmax(x, -1)


def adam():
    parameter = torch.randn(1 << 27, device="cuda", requires_grad=True)
    parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    return optimizer.step


COMPUTE = {
    "gemm_8192_8192_8192": lambda: gemm(8192, 8192, 8192),
    "gemm_4096_4096_4096": lambda: gemm(4096, 4096, 4096),
    "gemm_4096_14336_4096": lambda: gemm(4096, 14336, 4096),
    "gemm_8192_4096_14336": lambda: gemm(8192, 4096, 14336),
    "gemm_4096_1024_4096": lambda: gemm(4096, 1024, 4096),
    "gemm_16384_2048_8192": lambda: gemm(16384, 2048, 8192),
    "attention_forward": lambda: attention(False),
    "attention_backward": lambda: attention(True),
    "elementwise_32MB": lambda: elementwise(32),
    "elementwise_512MB": lambda: elementwise(512),
    "cast_256MB": lambda: cast(256),
    "rms_norm": rms_norm,
    "log_softmax": softmax,
    "fused_adamw": adam,
}


def collective(name):
    kind, megabytes, dtype = name.split("-")
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    full = torch.zeros((int(megabytes) << 20) // dtype.itemsize, device="cuda", dtype=dtype)
    part = torch.zeros(full.numel() // world, device="cuda", dtype=dtype)
    return {
        "all_gather": lambda: dist.all_gather_into_tensor(full, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, full),
        "all_reduce": lambda: dist.all_reduce(full),
    }[kind]


COLLECTIVES = [
    "all_gather-416-bf16",
    "reduce_scatter-832-fp32",
    "all_reduce-256-bf16",
    "all_reduce-25-bf16",
]
main_stream, side_stream = torch.cuda.Stream(), torch.cuda.Stream()


def timed(issue, count, stream, cover=None, covers=0, cover_stream=None):
    """Microseconds per call of `issue`, `covers` calls of `cover` running beside them on another
    stream."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    if cover:
        with torch.cuda.stream(cover_stream):
            for _ in range(covers):
                cover()
    with torch.cuda.stream(stream):
        if cover:
            torch.cuda._sleep(400_000)  # so that the cover is running on every rank
        return us_per_call(issue, count)


def agreed(microseconds):
    """Rank 0's figure, on every rank: all must issue the same collectives."""
    value = torch.tensor(microseconds, device="cuda")
    dist.broadcast(value, 0)
    return value.item()


rows = []
collectives = {name: collective(name) for name in COLLECTIVES}
alone = {}
for name, issue in collectives.items():
    timed(issue, 3, side_stream)
    alone[name] = agreed(min(timed(issue, 6, side_stream) for _ in range(3)))
for compute_name, build in COMPUTE.items():
    compute = build()
    with torch.cuda.stream(main_stream):
        compute()
    timed(compute, 3, main_stream)
    base = agreed(min(timed(compute, 8, main_stream) for _ in range(3)))
    for name, issue in collectives.items():
        count = max(4, min(40, int(4000 / base)))
        covers = int(count * base * 2.2 / alone[name]) + 3
        slowed = [timed(compute, count, main_stream, issue, covers, side_stream) for _ in range(3)]
        issues = max(3, min(20, int(6000 / alone[name])))
        covers = int(issues * alone[name] * 2.2 / base) + 4
        held = [timed(issue, issues, side_stream, compute, covers, main_stream) for _ in range(3)]
        rows.append(
            {
                "world": world,
                "compute": compute_name,
                "collective": name,
                "compute_alone_us": round(base, 2),
                "compute_beside_us": [round(v, 2) for v in sorted(slowed)],
                "collective_alone_us": round(alone[name], 2),
                "collective_beside_us": [round(v, 2) for v in sorted(held)],
            }
        )
    del compute
    torch.cuda.empty_cache()
if rank == 0:
    with open(sys.argv[1], "a") as stream:
        for row in rows:
            stream.write(json.dumps(row) + "\n")
    for row in rows:
        print(
            f"{row['compute']:24s} {row['collective']:24s} "
            f"x{row['compute_beside_us'][1] / row['compute_alone_us']:5.2f}"
            f"  x{row['collective_beside_us'][1] / row['collective_alone_us']:5.2f}",
            flush=True,
        )
dist.destroy_process_group()
