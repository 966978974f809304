"""Two jobs of two processes each, one after the other. The first job communicates for 6 s of simulated time. Each
process of the second polls its first all-reduce, and prints how long that took in simulated time."""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing

CLOCK = 1_980_000  # cycles of a millisecond


def start(rank, port):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2"
    )
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    return torch.ones(8, device="cuda")


def first(rank, port):
    x = start(rank, port)
    for _ in range(1500):
        dist.all_reduce(x)
        torch.cuda._sleep(4 * CLOCK)
        torch.cuda.synchronize()
    dist.destroy_process_group()


def second(rank, port):
    x = start(rank, port)
    begin = time.perf_counter()
    dist.all_reduce(x)
    end = torch.cuda.Event()
    end.record()
    while not end.query():
        time.sleep(0.001)
    os.write(1, f"TOOK {time.perf_counter() - begin}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    for number, function in enumerate((first, second)):
        torch.multiprocessing.spawn(function, (29400 + number,), nprocs=2)
