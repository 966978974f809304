"""DeepSpeed's other parallelisms on a small GPT, with ZeRO-1: pipeline stages, experts over the
ranks, Ulysses' split sequence.

In examples/frameworks/deepspeed:

    deepspeed --num_gpus 8 parallel.py --mode pipeline --deepspeed_config pipeline.json
"""

import argparse
import os
import time

import deepspeed
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.sequence.layer import DistributedAttention

VOCABULARY, WIDTH, HEADS = 1024, 512, 8


class Embedding(nn.Embedding):
    def __init__(self):
        super().__init__(VOCABULARY, WIDTH)


class Core(nn.Module):
    """Attention alone, on (batch, sequence, heads, head width), the layout that Ulysses needs."""

    def forward(self, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous()


class Block(nn.Module):
    def __init__(self, experts=0, sequence_group=None):
        super().__init__()
        self.split = (0,) if sequence_group else ()  # Ulysses asks which dimension is the batch
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.core = DistributedAttention(Core(), sequence_group, 2, 1) if sequence_group else Core()
        dense = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.experts = experts
        self.inner = (
            MoE(WIDTH, dense, num_experts=experts, ep_size=dist.get_world_size(), k=2)
            if experts
            else dense
        )

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        x = x + self.out(self.core(q, k, v, *self.split).flatten(2))
        return x + (self.inner(self.norm2(x))[0] if self.experts else self.inner(self.norm2(x)))


class Head(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, VOCABULARY, bias=False)


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class GPT(nn.Sequential):
    def forward(self, tokens, targets):
        return loss_of(super().forward(tokens), targets)


def main():
    parser = argparse.ArgumentParser(
        description="Train a small GPT with one of DeepSpeed's parallelisms."
    )
    parser.add_argument("--mode", required=True, choices=["pipeline", "moe", "ulysses"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument(
        "--stages", type=int, default=2, help="pipeline stages; the other ranks are data-parallel"
    )
    parser.add_argument("--local_rank", type=int, default=-1, help="from DeepSpeed's launcher")
    deepspeed.add_config_arguments(parser)
    options = parser.parse_args()

    deepspeed.init_distributed()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    if options.mode == "pipeline":
        layers = [
            LayerSpec(Embedding),
            *(LayerSpec(Block) for _ in range(options.layers)),
            LayerSpec(nn.LayerNorm, WIDTH),
            LayerSpec(Head),
        ]
        model = PipelineModule(
            layers,
            num_stages=options.stages,
            loss_fn=loss_of,
            activation_checkpoint_interval=1,
            checkpointable_layers=["Block"],
        )
        parameters = [p for p in model.parameters() if p.requires_grad]
    else:
        blocks = [
            Block(
                world if options.mode == "moe" else 0,
                dist.group.WORLD if options.mode == "ulysses" else None,
            )
            for _ in range(options.layers)
        ]
        model = GPT(Embedding(), *blocks, nn.LayerNorm(WIDTH), Head())
        parameters = model.parameters()
        if options.mode == "moe":
            group = {"params": list(parameters), "name": "all"}
            parameters = split_params_into_different_moe_groups_for_optimizer(group)
    engine, _, _, _ = deepspeed.initialize(args=options, model=model, model_parameters=parameters)
    batch = engine.train_micro_batch_size_per_gpu()
    here = options.seq // world if options.mode == "ulysses" else options.seq

    def data():
        while True:
            tokens = torch.randint(VOCABULARY, (batch, here + 1), device=engine.device)
            yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    batches = data()
    for step in range(1, options.steps + 1):
        start = time.perf_counter()
        if options.mode == "pipeline":
            loss = engine.train_batch(batches)
        else:
            for _ in range(engine.gradient_accumulation_steps()):
                loss = engine(*next(batches))
                engine.backward(loss)
                engine.step()
        torch.cuda.synchronize()
        if rank == 0:
            print(
                f"{options.mode} step {step}: {(time.perf_counter() - start) * 1e3:.1f} ms, peak "
                f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, loss {loss.item():.4f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
