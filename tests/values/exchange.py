"""Runs under torchrun, on an even number of ranks: values that ranks exchange through device
tensors must arrive.

Prints one JSON list on rank 0: the errors of all ranks.
"""

import json
import os

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    wrong = []

    def check(what, given, expected):
        if given != expected:
            wrong.append(f"rank {rank}: {what}: expected {expected}, not {given}")

    # objects of uneven size: lengths, padding, concatenation, all on the device
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (100 * rank)})
    check(
        "all_gather_object", objects, [{"rank": r, "text": "x" * (100 * r)} for r in range(world)]
    )
    box = [list(range(50)) if rank == 1 else None]
    dist.broadcast_object_list(box, src=1)
    check("broadcast_object_list", box, [list(range(50))])
    gathered = [None] * world if rank == 0 else None
    dist.gather_object(rank**3, gathered, dst=0)
    check("gather_object", gathered, [r**3 for r in range(world)] if rank == 0 else None)

    # reductions of computed values, one after the other
    x = torch.full((3,), float(rank + 1), device="cuda") * 2
    for operation, expected in (
        ("SUM", world * (world + 1)),
        ("MAX", 2 * world),
        ("MIN", 2),
        ("AVG", world + 1.0),
    ):
        y = x + 0
        dist.all_reduce(y, op=getattr(dist.ReduceOp, operation))
        check(operation, (y + 1).tolist(), [expected + 1] * 3)

    # tokens to experts: counts on the device decide the sizes of the exchange
    targets = (torch.arange(32, device="cuda") * (rank + 3) + rank) % world
    counts = torch.bincount(targets, minlength=world)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    order = targets.argsort(stable=True)
    inbox = torch.empty(int(arriving.sum()), device="cuda", dtype=torch.int64)
    dist.all_to_all_single(inbox, order + 100 * rank, arriving.tolist(), counts.tolist())
    expected = [
        100 * r + i for r in range(world) for i in range(32) if (i * (r + 3) + r) % world == rank
    ]
    check("all_to_all_single", inbox.tolist(), expected)

    # reduce-scatter, all-gather, send and receive
    shard = torch.empty(2, device="cuda", dtype=torch.int32)
    dist.reduce_scatter_tensor(
        shard, torch.arange(2 * world, device="cuda", dtype=torch.int32) * (rank + 1)
    )
    check(
        "reduce_scatter",
        shard.tolist(),
        [(2 * rank + i) * world * (world + 1) // 2 for i in range(2)],
    )
    whole = torch.empty(2 * world, device="cuda", dtype=torch.int32)
    dist.all_gather_into_tensor(whole, shard)
    check("all_gather", whole.tolist(), [i * world * (world + 1) // 2 for i in range(2 * world)])
    letter = torch.tensor([rank * 7], device="cuda")
    reply = torch.empty_like(letter)
    peer = rank ^ 1
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, letter, peer), dist.P2POp(dist.irecv, reply, peer)]
    ):
        request.wait()
    check("send and receive", (reply * 2).item(), peer * 14)

    everything = [None] * world
    dist.all_gather_object(everything, wrong)
    if rank == 0:
        print("EXCHANGE " + json.dumps(sum(everything, [])), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
