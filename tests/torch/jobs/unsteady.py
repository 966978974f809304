"""Runs under torchrun with --host-time model: ranks that feed on DataLoader workers, meet in gloo
and in the store, poll events, and save checkpoints.

With DISTURB=1 its processes lose real time at random places: they sleep in C, where no simulated
time passes, and they compute. Its output must not show it.
"""

import ctypes
import io
import os
import random
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import say
from torch.utils.data import DataLoader, Dataset

RANK, LOCAL = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
STEPS = 8
DISTURB = os.environ.get("DISTURB") == "1"
chance = random.Random(os.urandom(8))
libc = ctypes.CDLL(None)


def disturb(share=0.4):
    """Loses up to 150 ms of real time, with probability `share`."""
    if not DISTURB or chance.random() > share:
        return
    seconds = chance.random() ** 2 * 0.15
    if chance.random() < 0.6:
        libc.usleep(int(seconds * 1e6))
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Samples(Dataset):
    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, index):
        disturb(0.15)
        return torch.full((256,), float(index))


def polls(event):
    """How often the rank asks before an event is ready."""
    count = 0
    while not event.query():
        count += 1
        disturb(0.02)
    return count


def main():
    folder = sys.argv[1]
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", LOCAL))
    store = dist.distributed_c10d._get_default_store()
    side = torch.cuda.Stream()
    weight = torch.empty(2048, 2048, device="cuda", dtype=torch.bfloat16)
    loader = iter(DataLoader(Samples(), batch_size=8, num_workers=2, pin_memory=True))
    start = time.perf_counter_ns()
    for step in range(STEPS):
        batch = next(loader).cuda(non_blocking=True)
        disturb()
        for _ in range((RANK + step) % WORLD + 1):
            weight = weight @ weight
        gradient = torch.empty(1 + 3 * step, 1 << 20, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        disturb(0.8)  # the others ask about a collective that this rank has not begun
        with torch.cuda.stream(side):
            gradient.record_stream(side)  # the allocator asks whether `side` has used it
            work = dist.all_reduce(gradient, async_op=True)
            disturb()
            work.wait()
        end = torch.cuda.Event()
        end.record(side)
        if step % WORLD != RANK:
            time.sleep(0.002 * ((RANK + step) % 3))  # simulated time too: it is now ahead
        seen = [end.query(), side.query()]
        disturb()
        asked = polls(end) if step % 2 else 0
        del gradient, work
        disturb()
        again = torch.empty(2 + 3 * step, 1 << 20, device="cuda")
        if step % 3 == RANK % 3:  # this rank alone is ahead, and waits outside of CUDA
            disturb()
            store.set(f"{step}", "x")
        disturb()
        if step % 3 == 1:
            dist.barrier(group=None, device_ids=[LOCAL])
        if step % 3 == 2:
            sizes = [None] * WORLD
            total = torch.tensor([RANK + step])
            disturb()
            dist.all_reduce(total)  # gloo
            dist.all_gather_object(sizes, step)
        leader = next(rank for rank in range(WORLD) if rank % 3 == step % 3 or rank == WORLD - 1)
        if leader % 3 == step % 3:
            store.wait([f"{step}"])
        if step % 4 == 3:
            disturb()
            dcp.save({"weight": weight, "step": step}, checkpoint_id=f"{folder}/{step}")
            if RANK == 0:
                torch.save(weight, io.BytesIO())
        say(
            "RESULT",
            step=step,
            asked=asked,
            seen=seen,
            sum=batch.sum().item(),
            clock=time.perf_counter_ns() - start,
            allocated=torch.cuda.max_memory_allocated(),
            reserved=torch.cuda.max_memory_reserved(),
            alive=torch.cuda.memory_allocated(),
        )
        del again
    torch.cuda.synchronize()
    say(
        "RESULT",
        end=time.perf_counter_ns() - start,
        retries=torch.cuda.memory_stats()["num_alloc_retries"],
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
