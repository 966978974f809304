"""Runs as two ranks, one of them a leader. Values that the host made must come through small
collectives correctly; of large ones a leader only has its own part. Kernels compute nothing: over
an emulated GPU they do nothing."""

import os

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), 2
EVERYONE = range(WORLD)


def sent(rank):
    return torch.arange(8, dtype=torch.float32) + 10 * (rank + 1)


def mine():
    return sent(RANK).cuda()


def room(numbers):
    return torch.empty(numbers, device="cuda")


def equal(name, got, wanted):
    assert torch.equal(got.cpu(), wanted), (name, RANK, got, wanted)


def small():
    total = sum(sent(rank) for rank in EVERYONE)
    x = mine()
    dist.all_reduce(x)
    equal("all_reduce", x, total)
    for root in EVERYONE:
        x = mine()
        dist.broadcast(x, root)
        equal("broadcast", x, sent(root))
    into = room(8 * WORLD)
    dist.all_gather_into_tensor(into, mine())
    equal("all_gather", into, torch.cat([sent(rank) for rank in EVERYONE]))
    into = room(8 // WORLD)
    dist.reduce_scatter_tensor(into, mine())
    equal("reduce_scatter", into, total.chunk(WORLD)[RANK])
    into = room(8)
    dist.all_to_all_single(into, mine())
    equal("all_to_all", into, torch.cat([sent(rank).chunk(WORLD)[RANK] for rank in EVERYONE]))
    into, x = room(8), mine()
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, 1 - RANK), dist.P2POp(dist.irecv, into, 1 - RANK)]
    ):
        work.wait()
    equal("send and receive", into, sent(1 - RANK))
    found = [None] * WORLD
    # The first is the longest: the longest is found by comparing on the GPU, whose kernels do
    # nothing here.
    item = {"rank": RANK, "padding": "x" * (1000 * (WORLD - RANK))}
    dist.gather_object(item, found if RANK == 0 else None, dst=0)
    assert RANK != 0 or [item["rank"] for item in found] == list(EVERYONE)


def results_queue_up():
    """None is looked at before all are under way: the host must not wait for any of them."""
    tensors = [mine() for _ in range(20)]
    for work in [dist.all_reduce(x, async_op=True) for x in tensors]:
        work.wait()
    for x in tensors:
        equal("one of many", x, sum(sent(rank) for rank in EVERYONE))


def large():
    count = 1 << 17  # beyond what the hub carries, within what the emulated GPU below keeps
    own = (torch.arange(count) % 7).float()
    x, gathered, part = own.cuda(), room(WORLD * count), room(count // WORLD)
    dist.all_gather_into_tensor(gathered, x)
    dist.reduce_scatter_tensor(part, x)
    exchanged, received = room(count), room(count)
    dist.all_to_all_single(exchanged, x)
    dist.recv(received, 1) if RANK == 0 else dist.send(x, 0)
    torch.cuda.synchronize()
    if os.environ["LEADS"] == str(RANK):
        equal("own shard, repeated", gathered, own.repeat(WORLD))
        equal("own part", part, own.chunk(WORLD)[RANK])
        equal("own parts", exchanged, own)


torch.cuda.set_device(RANK)
dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
for check in (small, results_queue_up, large):
    check()
group = dist.new_group([0, 1])
last = mine()
dist.all_reduce(last, group=group)
equal("in a new group", last, sum(sent(rank) for rank in EVERYONE))
dist.barrier()
assert (torch.cuda.device_count(), torch.cuda.current_device()) == (WORLD, RANK)
dist.destroy_process_group()
print("fine", flush=True)
