"""Trains a Llama on random tokens: ordinary PyTorch, to be started with torchrun on real or
emulated GPUs.

    torchrun --nnodes 2 --nproc-per-node 4 examples/train_llama.py --size 1b --mode fsdp

Rank 0 logs step time, tokens/s per GPU, model FLOPs utilisation (MFU), peak memory and loss for
every step.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

SIZES = {  # vocabulary, width, layers, heads, key/value heads, feed-forward width
    "debug": (2048, 256, 4, 8, 4, 768),
    "160m": (32000, 768, 12, 12, 12, 2048),
    "1b": (128256, 2048, 16, 32, 8, 8192),
    "3b": (128256, 3072, 28, 24, 8, 8192),
    "8b": (128256, 4096, 32, 32, 8, 14336),
    "13b": (32000, 5120, 40, 40, 40, 13824),
}
# dense bf16, from the vendor's data sheets
PEAK_FLOPS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, heads * self.head_width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.output = nn.Linear(heads * self.head_width, width, bias=False)

    def forward(self, x, rotation):
        # tensor parallelism leaves each rank a part of the heads: count them, do not assume
        def heads(projection):
            return projection(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)

        query, key, value = (
            rotate(heads(self.query), rotation),
            rotate(heads(self.key), rotation),
            heads(self.value),
        )
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=grouped
        )
        return self.output(mixed.transpose(1, 2).flatten(2))


def rotate(x, rotation):
    """Rotary position embedding; `rotation` holds cosines and sines, each (sequence, head width /
    2)."""
    cosine, sine = rotation
    even, odd = x.float().chunk(2, dim=-1)
    return torch.cat((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1).type_as(x)


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate, self.up = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width, heads, kv_heads, inner, recompute):
        super().__init__()
        self.recompute = recompute
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.feed_forward = (
            Attention(width, heads, kv_heads),
            FeedForward(width, inner),
        )

    def forward(self, x, rotation):
        return (
            checkpoint(self.compute, x, rotation, use_reentrant=False)
            if self.recompute
            else self.compute(x, rotation)
        )

    def compute(self, x, rotation):
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, kv_heads, inner, recompute):
        super().__init__()
        self.head_width = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            Block(width, heads, kv_heads, inner, recompute) for _ in range(layers)
        )
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        frequency = 500000.0 ** -(
            torch.arange(0, self.head_width, 2, device=tokens.device) / self.head_width
        )
        angle = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), frequency)
        x, rotation = self.embedding(tokens), (angle.cos(), angle.sin())
        for layer in self.layers:
            x = layer(x, rotation)
        return self.head(self.norm(x))


def tensor_parallel(model, mesh):
    """Splits heads and feed-forward over the mesh; between them activations are split along the
    sequence."""
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "feed_forward_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.output": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "feed_forward.gate": ColwiseParallel(),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )


def build(options, mesh):
    """The model, spread over the mesh as --mode says. Its parameters are created on the GPU."""
    shape = list(SIZES[options.size])
    shape[2] = options.layers or shape[2]
    with torch.device("meta"):
        model = Llama(*shape, recompute=options.ac)
    parameters = sum(p.numel() for p in model.parameters() if p is not model.embedding.weight)
    flops_per_token = 6 * parameters + 12 * shape[2] * shape[1] * options.seq  # PaLM, appendix B
    if mesh["tp"].size() > 1:
        tensor_parallel(model, mesh["tp"])
    if options.mode in ("fsdp", "hsdp", "fsdp_tp"):
        spread = mesh["dp"]
        if options.mode == "hsdp":  # shards within a node, replicas over the nodes
            each = int(os.environ["LOCAL_WORLD_SIZE"])
            shape_of = (mesh.size() // each, each)
            spread = init_device_mesh("cuda", shape_of, mesh_dim_names=("replicate", "shard"))
        precision = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for part in (*model.layers, model):
            fully_shard(part, mesh=spread, mp_policy=precision)
    else:
        model.to(torch.bfloat16)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02) if parameter.dim() > 1 else parameter.fill_(1)
    if options.mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    return model, shape[0], flops_per_token


def main():
    parser = argparse.ArgumentParser(description="Train a Llama on random tokens.")
    parser.add_argument("--size", default="1b", choices=SIZES)
    parser.add_argument("--mode", default="fsdp", choices=["ddp", "fsdp", "hsdp", "tp", "fsdp_tp"])
    parser.add_argument(
        "--tp", type=int, default=2, help="tensor-parallel ranks in mode fsdp_tp (tp: all of them)"
    )
    parser.add_argument("--layers", type=int, help="layers, instead of the size's own")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument(
        "--mbs", type=int, default=1, help="sequences per data-parallel rank and step"
    )
    parser.add_argument(
        "--ac", action="store_true", help="recompute activations in the backward pass"
    )
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()

    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    split = {"tp": world, "fsdp_tp": options.tp}.get(options.mode, 1)
    mesh = init_device_mesh("cuda", (world // split, split), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)  # the same model on every rank
    model, vocabulary, flops_per_token = build(options, mesh)
    torch.manual_seed(1 + mesh["dp"].get_local_rank())  # another batch on every data-parallel rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    name = torch.cuda.get_device_name()
    peak = next((flops for gpu, flops in PEAK_FLOPS.items() if gpu in name), float("nan"))
    if rank == 0:
        print(
            f"{world} x {name}, Llama {options.size}, {options.mode}, {options.mbs} x {options.seq} tokens",
            flush=True,
        )
    for step in range(1, options.steps + 1):
        start = time.perf_counter()
        tokens = torch.randint(vocabulary, (options.mbs, options.seq + 1)).cuda(non_blocking=True)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.item()  # waits for the GPU, so the clock below covers the whole step
        seconds = time.perf_counter() - start
        rate = options.mbs * options.seq / seconds / split  # tokens per second and GPU
        if rank == 0:
            # Where nothing computes large tensors (emulated GPUs), a loss reads as exactly zero.
            said = f"{shown:.4f}" if shown else "not computed"
            print(
                f"step {step:3d}  {seconds * 1e3:9.1f} ms  {rate:9.0f} tokens/s/GPU  MFU "
                f"{rate * flops_per_token / peak:6.1%}"
                f"  peak {torch.cuda.max_memory_allocated() / 2**30:6.2f} GiB  loss {said}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
