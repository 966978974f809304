"""Runs under torchrun: one rank's script raises while the others wait for it in a collective."""

import os

import torch
import torch.distributed as dist
from common import say

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
value = torch.ones(1, device="cuda")
dist.all_reduce(value)
say("REACHED", value=value.item())
if dist.get_rank() == 2:
    raise ValueError("the job's own mistake")
dist.all_reduce(value)
value.item()
say("PASSED")
