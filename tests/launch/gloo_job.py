"""An ordinary job for tests of the launcher: a CPU all-reduce over every worker of every node."""

import os
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print(f"host={socket.gethostname()} local={os.environ['LOCAL_RANK']} sum={int(total)} world={dist.get_world_size()}", flush=True)
dist.destroy_process_group()
