"""Trains one small model after another under data parallelism in its usual forms, and passes tensors
around a ring: what a folded job may do. Each rank prints nothing; the tests compare reports."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WIDTH = 512


def layers():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))).cuda()


def train(model, steps=2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(steps):
        loss = model(torch.randn(64, WIDTH, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def ring(rank, world, each):
    sent = torch.ones(1 << 16, device="cuda")
    received = torch.empty_like(sent)
    ops = [
        dist.P2POp(dist.isend, sent, (rank + each) % world),
        dist.P2POp(dist.irecv, received, (rank - each) % world),
    ]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    parts = torch.arange(4 * world, device="cuda", dtype=torch.int32)
    got = torch.empty_like(parts)
    dist.all_to_all_single(got, parts)
    assert got.tolist() == list(range(4 * rank, 4 * rank + 4)) * world


def main():
    local, each = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(local)
    bound = {"device_id": torch.device("cuda", local)} if "bound" in sys.argv else {}
    dist.init_process_group("nccl", **bound)
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (world // each, each), mesh_dim_names=("outer", "inner"))
    torch.manual_seed(rank)
    said = [None] * world
    dist.all_gather_object(said, {"same": True})
    assert said == [{"same": True}] * world

    train(nn.parallel.DistributedDataParallel(layers(), device_ids=[local]))
    train(fully_shard(layers()))
    train(fully_shard(layers(), mesh=mesh))
    model = layers()
    plan = {str(at): (ColwiseParallel, RowwiseParallel)[at % 2]() for at in range(4)}
    parallelize_module(model, mesh["inner"], plan)
    train(fully_shard(model, mesh=mesh["outer"]))
    ring(rank, world, each)
    dist.barrier()
    dist.destroy_process_group()


main()
