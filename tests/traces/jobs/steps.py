"""Why it exists: a job whose trace can be checked: FSDP2 over all ranks, five steps, gradients of
two micro-batches each, so that not every backward pass ends a step; `--fail-at STEP` lets the last
rank raise in that step, `--hang-at STEP` lets all ranks wait for the launcher to be interrupted."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--hang-at", type=int, default=-1)
arguments = parser.parse_args()

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)) for _ in range(3))
).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = torch.randn(4096, 2048, device="cuda")
for step in range(arguments.steps):
    if step == arguments.fail_at and rank == dist.get_world_size() - 1:
        raise ValueError("the job's own mistake")
    if step == arguments.hang_at:
        os.write(1, f"WAITING {rank}\n".encode())  # one write: lines of two ranks never mix
        time.sleep(600)
    for _ in range(2):
        model(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
