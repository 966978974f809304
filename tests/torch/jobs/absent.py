"""Runs under torchrun: one rank never comes to a collective, whose time-out is 3 s."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", timeout=timedelta(seconds=3))
dist.all_reduce(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
if dist.get_rank() == 1:
    time.sleep(300)
dist.all_reduce(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
