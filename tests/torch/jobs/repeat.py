"""Runs under torchrun on 2 nodes x 2 ranks with --host-time none: a small FSDP training loop that
says all it can measure.

Two runs must print the same bytes: losses, norms, times by every clock, peaks of memory, and how
often a poll had to be repeated.
"""

import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from common import say
from torch.distributed.fsdp import fully_shard

RANK, LOCAL = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])


def polls(event):
    """How often a host without a clock of its own must ask before an event is ready."""
    count = 0
    while not event.query():
        count += 1
    return count


def main():
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL))
    torch.manual_seed(5)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(64, 8)).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    weight = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
    start = time.perf_counter_ns()
    for step in range(4):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        events[0].record()
        x = torch.randn(
            16, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(100 * step + RANK)
        )
        loss = model(x).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        events[1].record()
        for _ in range(RANK + 1):  # ranks differ, so they wait for each other
            torch.mm(weight, weight)
        events[2].record()
        asked = polls(events[2])
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        say(
            "RESULT",
            step=step,
            loss=loss.item(),
            mean=mean.item(),
            norm=norm.full_tensor().item(),
            asked=asked,
            times=[events[0].elapsed_time(event) for event in events[1:]],
            clock=time.perf_counter_ns() - start,
        )
    say(
        "RESULT",
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
        free=torch.cuda.mem_get_info()[0],
        weights=[p.to_local().double().sum().item() for p in model.parameters()],
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
