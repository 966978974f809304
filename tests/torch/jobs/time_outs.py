"""Runs under torchrun, 2 ranks: what the time-outs of NCCL communication do with jobs that hang and
with jobs that are slow in real time only. The argument names the case."""

import ctypes
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

usleep = ctypes.CDLL(None).usleep  # passes no simulated time, as a busy machine does not


def ranks_that_disagree(rank):
    """Each waits for the other in another communicator."""
    dist.init_process_group("nccl", timeout=timedelta(minutes=30))
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    tensor = torch.ones(1 << 20, device="cuda")
    for group in groups:
        dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    dist.all_reduce(tensor, group=groups[rank])
    torch.cuda.synchronize()


def a_rank_that_is_slow_in_real_time(rank):
    dist.init_process_group("nccl", timeout=timedelta(seconds=2))
    tensor = torch.ones(1 << 20, device="cuda")
    for _ in range(2):
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        if rank == 1:
            usleep(9_000_000)
    dist.barrier()
    print(f"PASSED {rank}", flush=True)


def a_rank_that_is_late(rank):
    """By 300 s of simulated time."""
    dist.init_process_group("nccl", timeout=timedelta(seconds=200))
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(300)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()


def a_wait_with_a_time_out(rank):
    """The host polls. It learns that the other rank does not come, and goes on."""
    dist.init_process_group("nccl")
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor)
    if rank == 0:
        began = time.perf_counter()
        try:
            dist.all_reduce(tensor, async_op=True).wait(timedelta(seconds=0.2))
        except RuntimeError as error:
            took_s = time.perf_counter() - began
            print(f"TOOK {took_s:.3f} {str(error)[:300]!r}", flush=True)
        os._exit(0)
    usleep(5_000_000)


def a_communicator_that_is_aborted(rank):
    """Its kernels end with it. Streams that waited for them, and the other communicator, go on."""
    dist.init_process_group("nccl")
    others, host = dist.new_group([0, 1]), dist.new_group([0, 1], backend="gloo")
    tensor = torch.ones(1 << 20, device="cuda")
    for group in (None, others):
        dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    if rank == 0:
        dist.all_reduce(tensor, group=others)  # the other rank does not come
        waits = tensor + 1
        event = torch.cuda.Event()
        event.record()
        print(f"OVER {event.query()}", flush=True)
        dist.distributed_c10d._abort_process_group(others)
        torch.cuda.synchronize()
        print(f"OVER {event.query()} {waits.numel()}", flush=True)
    dist.barrier(host)
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    torch.cuda.synchronize()
    print(f"PASSED {rank}", flush=True)
    os._exit(0)


def a_root_that_goes_on_alone(rank):
    """Its own values do not wait for those who receive them."""
    dist.init_process_group("nccl")
    others = dist.new_group([0, 1], backend="gloo")
    tensor = torch.full((4,), 3.0 * (1 - rank), device="cuda")
    dist.all_reduce(torch.ones(1, device="cuda"))
    if rank == 0:
        dist.broadcast(tensor, 0)
        tensor = tensor + 1
    dist.barrier(others)
    if rank == 1:
        dist.broadcast(tensor, 0)
        tensor = tensor + 1
    print(f"VALUES {rank} {tensor.tolist()}", flush=True)


rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
globals()[sys.argv[1]](rank)
