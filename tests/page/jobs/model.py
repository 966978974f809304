"""A job for tests of what held the peak: two linear layers whose every tensor is known by arithmetic, or
the same as blocks of FSDP whose activations are recomputed."""

import argparse
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, INNER, ROWS = 1024, 4096, 8192


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, INNER, bias=False)
        self.relu = nn.ReLU()
        self.second = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.second(self.relu(self.first(x)))


class Blocks(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


parser = argparse.ArgumentParser()
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--compile", action="store_true")
options = parser.parse_args()
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
if options.fsdp:
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("nccl")
    model = Blocks(3).cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
else:
    model = Block().cuda()
if options.compile:
    model.compile()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
x = torch.zeros(ROWS, WIDTH, device="cuda")
for _ in range(3):
    y = model(x)
    y.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    del y
if options.fsdp:
    torch.distributed.destroy_process_group()
