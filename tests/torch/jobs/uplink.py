"""Runs under torchrun on 2 nodes x 2 ranks: how long large transfers between the nodes take, alone
and beside each other.

Every rank prints milliseconds between CUDA events around each of them. No value is looked at:
tensors so large have none.
"""

import os

import torch
import torch.distributed as dist
from common import between_events, say

RANK, WORLD, LOCAL = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
BYTES = 4 << 30


def timed(work):
    """Milliseconds of `work`, begun on all ranks together."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    return between_events(work)


def transfer(tensor, *pairs):
    """The transfers (source, target) that this rank has a part in, as one launch."""
    ours = [
        dist.P2POp(
            dist.isend if RANK == source else dist.irecv,
            tensor,
            target if RANK == source else source,
        )
        for source, target in pairs
        if RANK in (source, target)
    ]
    for work in dist.batch_isend_irecv(ours) if ours else ():
        work.wait()


def main():
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL))
    rails = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    whole = torch.empty(BYTES, dtype=torch.uint8, device="cuda").view(torch.bfloat16)
    shard = whole.chunk(WORLD)[RANK]
    times = {
        "all_reduce": timed(lambda: dist.all_reduce(whole)),
        "all_gather": timed(lambda: dist.all_gather_into_tensor(whole, shard)),
        "reduce_scatter": timed(lambda: dist.reduce_scatter_tensor(shard, whole)),
        "one pair": timed(lambda: transfer(whole, (0, 2))),
        "two pairs": timed(lambda: transfer(whole, (0, 2), (1, 3))),
        "both directions": timed(lambda: transfer(whole, (0, 2), (3, 1))),
        "one rail": timed(
            lambda: dist.all_reduce(whole, group=rails[0]) if RANK in (0, 2) else None
        ),
        "two rails": timed(lambda: dist.all_reduce(whole, group=rails[RANK % 2])),
        "inside": timed(lambda: transfer(whole, (0, 1), (2, 3))),
    }
    say("TIMES", **times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
