"""Two ranks of torchrun that train a small network with DDP and a DataLoader worker."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    network = DistributedDataParallel(torch.nn.Linear(1024, 1024, device=device))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(torch.ones(256, 1024)), batch_size=8, num_workers=1):
        network(batch.to(device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    print(f"rank {dist.get_rank()}: {torch.cuda.max_memory_allocated()} bytes", flush=True)
    dist.destroy_process_group()
