"""Runs under torchrun: rank 1 is killed by the signal that is named."""

import os
import signal
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
tensor = torch.ones(1 << 20, device="cuda")
dist.all_reduce(tensor)
torch.cuda.synchronize()
if rank == 1:
    os.kill(os.getpid(), signal.Signals[sys.argv[1]])
dist.all_reduce(tensor)
torch.cuda.synchronize()
