"""The shortest job of ranks: it starts, meets in one all-reduce, and says so."""

import os
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
total = torch.ones(1, device="cuda")
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
dist.barrier()
if dist.get_rank() == 0:
    print(f"step 1: {dist.get_world_size()} ranks have met", flush=True)
time.sleep(float(os.environ.get("BENCH_RANKS_STAY", "0")))
dist.destroy_process_group()
