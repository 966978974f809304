"""Why it exists: the device-side times that bench/nccl/fit.py calibrates on, measured on real GPUs.

    torchrun --nproc-per-node 8 -m bench.nccl.measure OUT.jsonl [--worlds 2,3,4,6,8] [--ops
    all_reduce,...] [--label TEXT]

Collectives are captured in CUDA graphs, so that the host's rate does not limit small ones. Roots of
broadcast and reduce walk backwards round the ring: a fixed root would run ahead, and the launches
would overlap. NCCL_ALGO and NCCL_PROTO may force a choice; they are recorded. One JSON line per
measurement: us is the slowest rank's median time of one collective.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--worlds", default="2,4,8")
parser.add_argument(
    "--ops", default="all_reduce,all_gather,reduce_scatter,broadcast,reduce,overlap"
)
parser.add_argument("--label", default="default")
parser.add_argument("--top", type=int, default=1 << 28)
arguments = parser.parse_args()

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
source = torch.zeros(arguments.top, dtype=torch.uint8, device="cuda")
target = torch.zeros(arguments.top, dtype=torch.uint8, device="cuda")
rows = []


def captured(issue, count, streams):
    """Median over five replays of a graph that holds `count` issues, in microseconds per issue."""
    main = streams[0]
    main.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(main):
        for step in range(3):
            issue(step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=main):
        for step in range(count):
            issue(step)
    times = []
    graph.replay()
    torch.cuda.synchronize()
    for _ in range(5):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) / count * 1e3)
    return sorted(times)[2]


def operation(name, size, group, members):
    x, y = source[:size].view(torch.bfloat16), target[:size].view(torch.bfloat16)
    shard = target[: size // members].view(torch.bfloat16)
    if name == "all_reduce":
        return lambda step: dist.all_reduce(x, group=group)
    if name == "all_gather":
        return lambda step: dist.all_gather_into_tensor(x, shard, group=group)
    if name == "reduce_scatter":
        return lambda step: dist.reduce_scatter_tensor(shard, x, group=group)
    if name == "broadcast":
        return lambda step: dist.broadcast(x, -step % members, group=group)
    if name == "reduce":
        return lambda step: dist.reduce(x, -step % members, group=group)
    if name == "all_to_all":
        return lambda step: dist.all_to_all_single(y, x, group=group)
    raise SystemExit(f"unknown operation {name}")


def overlap(size, group, other, members, streams):
    """An all-gather and a reduce-scatter at once, on two communicators and two streams."""
    gather, scatter = (
        operation("all_gather", size, group, members),
        operation("reduce_scatter", size, other, members),
    )

    def issue(step):
        streams[1].wait_stream(streams[0])
        gather(step)
        with torch.cuda.stream(streams[1]):
            scatter(step)
        streams[0].wait_stream(streams[1])

    return issue


for members in (int(w) for w in arguments.worlds.split(",") if int(w) <= world):
    group, other = dist.new_group(list(range(members))), dist.new_group(list(range(members)))
    if rank < members:
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        for name in arguments.ops.split(","):
            size = 1 << 10
            while size <= arguments.top:
                count = 20 if size <= 1 << 24 else 5
                used = size // (2 * members) * 2 * members
                if name == "overlap" and size < 1 << 22:
                    size *= 4
                    continue
                issue = (
                    overlap(used, group, other, members, streams)
                    if name == "overlap"
                    else operation(name, used, group, members)
                )
                microseconds = torch.tensor(captured(issue, count, streams), device="cuda")
                dist.all_reduce(microseconds, op=dist.ReduceOp.MAX, group=group)
                rows.append(
                    {
                        "op": name,
                        "world": members,
                        "bytes": used,
                        "us": round(microseconds.item(), 3),
                        "label": arguments.label,
                        "algo": os.environ.get("NCCL_ALGO"),
                        "proto": os.environ.get("NCCL_PROTO"),
                    }
                )
                size *= 4
    dist.barrier()
if rank == 0:
    with open(arguments.out, "a") as stream:
        for row in rows:
            stream.write(json.dumps(row) + "\n")
dist.destroy_process_group()
