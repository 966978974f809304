"""Runs under torchrun on one GPU, with host time that is not counted: DDP, whose first bucket holds all
gradients and is replaced in the second step. Its argument is how many seconds pass before that."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(0)
layer = torch.nn.Linear(8192, 8192, device="cuda", dtype=torch.bfloat16)
time.sleep(float(sys.argv[1]))
model = torch.nn.parallel.DistributedDataParallel(layer, device_ids=[0])
data = torch.randn(32768, 8192, device="cuda", dtype=torch.bfloat16)
for _ in range(4):
    model(data).sum().backward()
    model.zero_grad()
    for _ in range(10):  # a step of 80 ms
        torch.mm(data, layer.weight.detach())
    torch.cuda.synchronize()
print(f"RESULT {torch.cuda.max_memory_allocated()}", flush=True)
os._exit(0)  # nothing of the watchdogs' is waited for
