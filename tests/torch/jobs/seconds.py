"""Runs under torchrun with --host-time model: a job of several simulated seconds that prints its
clock.

Two runs must print the same bytes. The host polls what a communicator has launched whenever it
launches more, unless a watchdog has seen the end of it. So the clock tells what the watchdogs saw.
"""

import os
import time

import torch
import torch.distributed as dist
from common import say

RANK, LOCAL = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])


def main():
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL))
    seldom = dist.new_group()
    weight = torch.empty(16384, 16384, device="cuda", dtype=torch.bfloat16)
    start = time.perf_counter_ns()
    for step in range(6):
        gradients = [torch.ones(1 << 20, device="cuda") for _ in range(8)]
        works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        if step % 2 == 0:
            dist.all_reduce(gradients[0], group=seldom)
        for _ in range(30 + RANK):  # about half a second
            torch.mm(weight, weight)
        for work in works:
            work.wait()
        del works, gradients
        torch.cuda.synchronize()
        time.sleep(0.4 * (step % 3))  # real time alone: the watchdogs could look in it
        dist.all_reduce(torch.ones(1, device="cuda"))
        say(
            "RESULT",
            step=step,
            clock=time.perf_counter_ns() - start,
            allocated=torch.cuda.max_memory_allocated(),
            reserved=torch.cuda.max_memory_reserved(),
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
