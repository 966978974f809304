"""What a folded job must not do, one thing for each word: gather, gloo, odd, differ, last."""

import os
import sys

import torch
import torch.distributed as dist


def gather(rank, world):
    dist.all_gather_object([None] * world, {"rank": rank})


def gloo(rank, world):
    dist.all_reduce(torch.ones(4), group=dist.new_group(backend="gloo"))


def odd(rank, world):
    dist.new_group([0, 1, 2, 3])


def differ(rank, world):
    for _ in range(3):
        shared = torch.ones(1 << 12, device="cuda")
        torch.ones(1 << (12 + rank), device="cuda").sum()
        dist.all_reduce(shared)
        torch.cuda.synchronize()


def last(rank, world):
    """Every rank does something else, but only after all communication."""
    torch.cuda.synchronize()
    torch.ones(1 << (12 + rank), device="cuda").sum()
    torch.cuda.synchronize()


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(4, device="cuda"))
    globals()[sys.argv[1]](dist.get_rank(), dist.get_world_size())
    print(f"rank {dist.get_rank()} has ended", flush=True)
    os._exit(0) if sys.argv[1] == "last" else dist.destroy_process_group()


main()
