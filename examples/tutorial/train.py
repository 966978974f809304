"""Trains a small GPT on random tokens, with DDP or FSDP. Start it with torchrun."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class GPT(nn.Module):
    def __init__(self, vocabulary, width, layers, sequence):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 64, 4 * width, dropout=0.0, activation="gelu",
                batch_first=True, norm_first=True,
            )
            for _ in range(layers)
        )  # fmt: skip
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device, x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = GPT(32000, options.width, options.layers, options.sequence)
    if options.parallel == "fsdp":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*model.blocks, model):
            fully_shard(part, mp_policy=policy)
    else:
        model = nn.parallel.DistributedDataParallel(model.to(torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    shape = (options.batch, options.sequence + 1)
    for step in range(1, options.steps + 1):
        start = time.perf_counter()
        batch = torch.randint(32000, shape).cuda(non_blocking=True)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if dist.get_rank() == 0:
            rate = options.batch * options.sequence * dist.get_world_size() / seconds
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(f"step {step}  {seconds * 1e3:7.1f} ms  {rate:9.0f} tokens/s  {peak:5.2f} GiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
