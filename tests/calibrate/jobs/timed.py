"""Prints what collectives take by CUDA events: one JSON line from rank 0, microseconds by operation
and size."""

import json
import os

import torch
import torch.distributed as dist

COUNT = 8
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
found = []
for size in (1 << 12, 1 << 20, 1 << 26):
    whole = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
    other = torch.zeros_like(whole)
    share = torch.zeros(size // 2 // world, dtype=torch.bfloat16, device="cuda")
    operations = {
        "all_reduce": lambda x=whole: dist.all_reduce(x),
        "all_gather": lambda x=whole, y=share: dist.all_gather_into_tensor(x, y),
        "reduce_scatter": lambda x=whole, y=share: dist.reduce_scatter_tensor(y, x),
        "alltoall": lambda x=whole, y=other: dist.all_to_all_single(y, x),
    }
    for name, operation in operations.items():
        operation()
        torch.cuda.synchronize()
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        for _ in range(COUNT):
            operation()
        after.record()
        torch.cuda.synchronize()
        found.append([name, size, before.elapsed_time(after) / COUNT * 1e3])
if rank == 0:
    release = ".".join(map(str, torch.cuda.nccl.version()))
    print("TIMES " + json.dumps([release, found]), flush=True)
dist.destroy_process_group()
