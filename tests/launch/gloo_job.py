"""An ordinary job for tests of the launcher: a CPU all-reduce over every worker of every node."""

import os
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
line = f"host={socket.gethostname()} local={os.environ['LOCAL_RANK']} sum={int(total)} world={dist.get_world_size()}"
os.write(1, f"{line}\n".encode())  # in one piece: the ranks share stdout
dist.destroy_process_group()
