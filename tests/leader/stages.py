"""A job whose ranks run different kernels, as pipeline stages do: rank r multiplies matrices that
rank r - 1 does not have."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
linear = torch.nn.Linear(256, 256, device="cuda")
own = [torch.nn.Linear(256 * (2 + stage), 512, device="cuda") for stage in range(rank)]
for _ in range(3):
    linear(torch.randn(32, 256, device="cuda")).square().mean().backward()
    for stage, layer in enumerate(own):
        layer(torch.randn(64, 256 * (2 + stage), device="cuda")).sum().backward()
    dist.all_reduce(linear.weight.grad)
    torch.cuda.synchronize()
print(f"rank {rank} has gradients of {linear.weight.grad.numel()} numbers", flush=True)
dist.destroy_process_group()
