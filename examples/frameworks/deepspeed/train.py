"""Trains a GPT on random tokens with DeepSpeed: an ordinary script, to be started with DeepSpeed's
launcher or with torchrun. In examples/frameworks/deepspeed:

    deepspeed --num_gpus 8 train.py --deepspeed_config zero3.json
    torchrun --nproc-per-node 8 train.py --deepspeed_config zero1.json

The JSON file decides what DeepSpeed does. The log has DeepSpeed's own lines
(`wall_clock_breakdown`), and one line of rank 0 for each step.
"""

import argparse
import os
import time

import deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZES = {  # vocabulary, width, layers, heads
    "tiny": (1024, 256, 2, 4),
    "125m": (50304, 768, 12, 12),
    "1b": (50304, 2048, 24, 16),
    "7b": (50304, 4096, 32, 32),
}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, sequence, recompute):
        super().__init__()
        self.recompute = recompute
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = deepspeed.checkpointing.checkpoint(block, x) if self.recompute else block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description="Train a GPT with DeepSpeed.")
    parser.add_argument("--size", default="125m", choices=SIZES)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps")
    parser.add_argument(
        "--recompute", action="store_true", help="deepspeed.checkpointing for every block"
    )
    parser.add_argument(
        "--save", help="folder for a checkpoint at the end, which is then loaded again"
    )
    parser.add_argument("--local_rank", type=int, default=-1, help="from DeepSpeed's launcher")
    deepspeed.add_config_arguments(parser)
    options = parser.parse_args()

    deepspeed.init_distributed()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    vocabulary, width, layers, heads = SIZES[options.size]
    with deepspeed.zero.Init(
        config_dict_or_path=options.deepspeed_config, enabled=is_stage_3(options.deepspeed_config)
    ):
        model = GPT(vocabulary, width, layers, heads, options.seq, options.recompute)
    engine, optimizer, _, _ = deepspeed.initialize(
        args=options, model=model, model_parameters=model.parameters()
    )
    if options.recompute:
        deepspeed.checkpointing.configure(None, deepspeed_config=options.deepspeed_config)

    rank, batch = torch.distributed.get_rank(), engine.train_micro_batch_size_per_gpu()
    if rank == 0:
        print(
            f"{torch.distributed.get_world_size()} x {torch.cuda.get_device_name()}, GPT {options.size}, "
            f"ZeRO-{engine.zero_optimization_stage()}, {type(optimizer).__name__}, "
            f"{engine.gradient_accumulation_steps()} x "
            f"{batch} x {options.seq} tokens",
            flush=True,
        )
    for step in range(1, options.steps + 1):
        start = time.perf_counter()
        for _ in range(engine.gradient_accumulation_steps()):
            tokens = torch.randint(vocabulary, (batch, options.seq + 1)).to(engine.device)
            loss = engine(tokens[:, :-1], tokens[:, 1:])
            engine.backward(loss)
            engine.step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if rank == 0:
            norm = engine.get_global_grad_norm()
            print(
                f"step {step}: {seconds * 1e3:.1f} ms, peak "
                f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, grad norm "
                f"{norm if norm is None else float(norm):.4g}, skipped {engine.skipped_steps}, loss scale "
                f"{getattr(optimizer, 'cur_scale', None) or getattr(optimizer, 'loss_scale', None)}",
                flush=True,
            )
    if options.save:
        engine.save_checkpoint(options.save, tag="last")
        path, _ = engine.load_checkpoint(options.save, tag="last")
        if rank == 0:
            print(f"loaded {path}, step {engine.global_steps}", flush=True)
    engine.destroy()
    torch.distributed.destroy_process_group()


def is_stage_3(path):
    import json

    with open(path) as file:
        return json.load(file).get("zero_optimization", {}).get("stage") == 3


if __name__ == "__main__":
    main()
