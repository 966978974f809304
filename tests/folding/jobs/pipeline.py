"""Two stages of a pipeline, each data-parallel: rank r of the first half sends to rank r + half."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn

WIDTH, STEPS, MICROBATCHES = 512, 3, 2


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    half = world // 2
    stages = [dist.new_group(list(range(0, half))), dist.new_group(list(range(half, world)))]
    pairs = [dist.new_group([at, at + half]) for at in range(half)]
    first, data, pair = rank < half, stages[rank // half], pairs[rank % half]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        for _ in range(MICROBATCHES):
            batch = torch.randn(64, WIDTH, device="cuda", requires_grad=True)
            if first:
                output = model(batch)
                dist.send(output.detach(), rank + half, group=pair)
                gradient = torch.empty_like(output)
                dist.recv(gradient, rank + half, group=pair)
                output.backward(gradient)
            else:
                dist.recv(batch.data, rank - half, group=pair)
                model(batch).sum().backward()
                dist.send(batch.grad, rank - half, group=pair)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=data)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    dist.destroy_process_group()


main()
