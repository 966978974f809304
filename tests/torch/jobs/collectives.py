"""Runs under torchrun on 2 nodes x 2 ranks: every collective of torch.distributed on NCCL, against
plain arithmetic.

Each rank knows what the others send (`sent`), so each computes what must arrive. Numbers are small
integers: exact in every type and in any order of addition.
"""

import hashlib
import os
import random
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from common import check, differs, run_checks
from torch.distributed.device_mesh import init_device_mesh

WHOLE = [torch.int8, torch.uint8, torch.int32, torch.int64]
REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [*WHOLE, *REAL, torch.bool]
RANK, WORLD, LOCAL = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))


def sent(rank, dtype, count=6, salt=0):
    """What `rank` contributes, on the CPU: small integers that differ by rank, place and salt."""
    whole = (torch.arange(count) * (rank + 2) + rank + salt) % 5 - (
        0 if dtype in (torch.uint8, torch.bool) else 2
    )
    return whole.to(dtype)


def mine(dtype, count=6, salt=0):
    return sent(RANK, dtype, count, salt).cuda()


def reduced(operation, dtype, inputs):
    """The reduction of CPU tensors, computed in float64: exact for what `sent` gives."""
    stack = torch.stack([tensor.double() for tensor in inputs])
    value = getattr(
        stack,
        {"SUM": "sum", "AVG": "mean", "MIN": "amin", "MAX": "amax", "PRODUCT": "prod"}[operation],
    )(0)
    return value.bool() if dtype == torch.bool else value.to(dtype)


def everyone(dtype, count=6, salt=0):
    return [sent(rank, dtype, count, salt) for rank in range(WORLD)]


@check
def all_reduce():
    for dtype in DTYPES:
        for operation in ("SUM", "MIN", "MAX", "PRODUCT", *(("AVG",) if dtype in REAL else ())):
            # NCCL has bytes only; PyTorch promises logical or for SUM
            if dtype == torch.bool and operation != "SUM":
                continue
            tensor = mine(dtype)
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation))
            yield from differs(
                f"{operation} {dtype}", tensor, reduced(operation, dtype, everyone(dtype))
            )


@check
def all_reduce_pre_multiplied():
    # for bf16 PyTorch hands NCCL an fp32 factor, which reads as 0
    for dtype in (
        torch.float16,
        torch.float32,
        torch.float64,
    ):
        tensor = mine(dtype)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
        yield from differs(
            f"{dtype}", tensor, reduced("SUM", dtype, [t * 0.5 for t in everyone(dtype)])
        )
        # a factor that a kernel computed
        factor = torch.tensor([0.25], device="cuda", dtype=dtype) * 2
        tensor = mine(dtype)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
        yield from differs(
            f"device factor {dtype}",
            tensor,
            reduced("SUM", dtype, [t * 0.5 for t in everyone(dtype)]),
        )


@check
def all_reduce_complex_and_inexact():
    tensor = torch.complex(mine(torch.float32), mine(torch.float32, salt=1))
    dist.all_reduce(tensor)
    yield from differs("real", tensor.real, reduced("SUM", torch.float32, everyone(torch.float32)))
    yield from differs(
        "imaginary", tensor.imag, reduced("SUM", torch.float32, everyone(torch.float32, salt=1))
    )
    inputs = [
        torch.randn(1000, generator=torch.Generator().manual_seed(rank)) for rank in range(WORLD)
    ]
    tensor = inputs[RANK].cuda()
    dist.all_reduce(tensor)
    yield from differs("random", tensor, sum(inputs), tolerance=1e-5)


@check
def all_reduce_infinite_and_nan():
    inputs = [torch.zeros(4) for _ in range(WORLD)]
    inputs[1] = torch.tensor([float("inf"), 1.0, float("nan"), -float("inf")])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = inputs[RANK].to(dtype).cuda()
        dist.all_reduce(tensor)
        yield from differs(f"{dtype}", tensor, inputs[1].to(dtype))


@check
def reduce():
    for dtype in DTYPES:
        for root in range(WORLD):
            tensor = mine(dtype, salt=root)
            dist.reduce(tensor, root)
            if RANK == root:
                yield from differs(
                    f"to {root} {dtype}", tensor, reduced("SUM", dtype, everyone(dtype, salt=root))
                )


@check
def broadcast():
    for dtype in (*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2):
        for root in range(WORLD):
            tensor = mine(dtype, salt=root)
            dist.broadcast(tensor, root)
            yield from differs(f"from {root} {dtype}", tensor, sent(root, dtype, salt=root))


@check
def all_gather():
    for dtype in DTYPES:
        parts = [torch.empty(6, dtype=dtype, device="cuda") for _ in range(WORLD)]
        dist.all_gather(parts, mine(dtype))
        for rank, part in enumerate(parts):
            yield from differs(f"{dtype} part {rank}", part, sent(rank, dtype))


@check
def all_gather_uneven():
    parts = [torch.empty(rank + 1, device="cuda") for rank in range(WORLD)]
    dist.all_gather(parts, mine(torch.float32, RANK + 1))
    for rank, part in enumerate(parts):
        yield from differs(f"part {rank}", part, sent(rank, torch.float32, rank + 1))


@check
def all_gather_into_tensor():
    for dtype in DTYPES:
        flat, stacked = (
            torch.empty(shape, dtype=dtype, device="cuda") for shape in ((6 * WORLD,), (WORLD, 6))
        )
        dist.all_gather_into_tensor(flat, mine(dtype))
        dist.all_gather_into_tensor(stacked, mine(dtype))
        yield from differs(f"{dtype} flat", flat, torch.cat(everyone(dtype)))
        yield from differs(f"{dtype} stacked", stacked, torch.stack(everyone(dtype)))
    whole = torch.zeros(6 * WORLD, device="cuda")  # in place: the shard is a slice of the result
    shard = whole.narrow(0, 6 * RANK, 6)
    shard.copy_(mine(torch.float32))
    dist.all_gather_into_tensor(whole, shard)
    yield from differs("in place", whole, torch.cat(everyone(torch.float32)))


@check
def reduce_scatter():
    for dtype in (*WHOLE, *REAL):
        for operation in ("SUM", "MAX"):
            inputs = [
                [sent(rank, dtype, salt=place) for place in range(WORLD)] for rank in range(WORLD)
            ]
            result = torch.empty(6, dtype=dtype, device="cuda")
            dist.reduce_scatter(
                result,
                [tensor.cuda() for tensor in inputs[RANK]],
                op=getattr(dist.ReduceOp, operation),
            )
            yield from differs(
                f"{operation} {dtype}",
                result,
                reduced(operation, dtype, [row[RANK] for row in inputs]),
            )
    inputs = [
        [sent(rank, torch.float32, place + 1) for place in range(WORLD)] for rank in range(WORLD)
    ]
    result = torch.empty(RANK + 1, device="cuda")
    dist.reduce_scatter(result, [tensor.cuda() for tensor in inputs[RANK]])
    yield from differs(
        "uneven", result, reduced("SUM", torch.float32, [row[RANK] for row in inputs])
    )


@check
def reduce_scatter_tensor():
    for dtype in (*WHOLE, *REAL):
        for operation in ("SUM", "MIN", "PRODUCT", *(("AVG",) if dtype in REAL else ())):
            inputs = everyone(dtype, 6 * WORLD)
            result = torch.empty(6, dtype=dtype, device="cuda")
            dist.reduce_scatter_tensor(
                result, inputs[RANK].cuda(), op=getattr(dist.ReduceOp, operation)
            )
            expected = reduced(operation, dtype, inputs).chunk(WORLD)[RANK]
            yield from differs(f"{operation} {dtype}", result, expected)
    result = torch.empty(6, device="cuda")
    dist.reduce_scatter_tensor(
        result, mine(torch.float32, 6 * WORLD), op=dist._make_nccl_premul_sum(0.5)
    )
    expected = reduced(
        "SUM", torch.float32, [t * 0.5 for t in everyone(torch.float32, 6 * WORLD)]
    ).chunk(WORLD)[RANK]
    yield from differs("pre-multiplied", result, expected)


@check
def all_to_all():
    for dtype in DTYPES:
        outgoing = [mine(dtype, count=peer + 1, salt=peer) for peer in range(WORLD)]
        incoming = [torch.empty(RANK + 1, dtype=dtype, device="cuda") for _ in range(WORLD)]
        dist.all_to_all(incoming, outgoing)
        for peer, tensor in enumerate(incoming):
            yield from differs(f"{dtype} from {peer}", tensor, sent(peer, dtype, RANK + 1, RANK))


@check
def all_to_all_single():
    for dtype in DTYPES:
        result = torch.empty(2 * WORLD, dtype=dtype, device="cuda")
        dist.all_to_all_single(result, mine(dtype, 2 * WORLD))
        yield from differs(
            f"{dtype}",
            result,
            torch.cat([t.chunk(WORLD)[RANK] for t in everyone(dtype, 2 * WORLD)]),
        )


@check
def all_to_all_single_uneven():
    for dtype in DTYPES:

        def split(rank):
            return [(rank + peer) % 3 for peer in range(WORLD)]  # with zeros

        inputs = [sent(rank, dtype, sum(split(rank))) for rank in range(WORLD)]
        arriving = [split(peer)[RANK] for peer in range(WORLD)]
        result = torch.empty(sum(arriving), dtype=dtype, device="cuda")
        dist.all_to_all_single(result, inputs[RANK].cuda(), arriving, split(RANK))
        yield from differs(
            f"{dtype}",
            result,
            torch.cat([inputs[peer].split(split(peer))[RANK] for peer in range(WORLD)]),
        )
    rows = torch.arange(12.0).view(4, 3) + 100 * RANK  # rows of a matrix, sizes in rows
    result = torch.empty(4, 3, device="cuda")
    dist.all_to_all_single(result, rows.cuda(), [1] * WORLD, [1] * WORLD)
    yield from differs(
        "rows",
        result,
        torch.stack([torch.arange(3.0) + 3 * RANK + 100 * peer for peer in range(WORLD)]),
    )


@check
def gather():
    for dtype in DTYPES:
        for root in (0, WORLD - 1):
            parts = (
                [torch.empty(6, dtype=dtype, device="cuda") for _ in range(WORLD)]
                if RANK == root
                else None
            )
            dist.gather(mine(dtype), parts, dst=root)
            for rank, part in enumerate(parts or ()):
                yield from differs(f"to {root} {dtype} part {rank}", part, sent(rank, dtype))


@check
def scatter():
    for dtype in DTYPES:
        for root in (0, WORLD - 1):
            parts = (
                [sent(root, dtype, salt=place).cuda() for place in range(WORLD)]
                if RANK == root
                else None
            )
            tensor = torch.empty(6, dtype=dtype, device="cuda")
            dist.scatter(tensor, parts, src=root)
            yield from differs(f"from {root} {dtype}", tensor, sent(root, dtype, salt=RANK))


@check
def send_and_receive():
    for dtype in DTYPES:
        for source, target in ((0, 1), (1, 2), (3, 0)):
            if RANK == source:
                dist.send(mine(dtype, salt=target), target)
            elif RANK == target:
                tensor = torch.empty(6, dtype=dtype, device="cuda")
                dist.recv(tensor, source)
                yield from differs(
                    f"{source} to {target} {dtype}", tensor, sent(source, dtype, salt=target)
                )
    if RANK < 2:  # several under way, taken in order
        peer, works, results = 1 - RANK, [], [torch.empty(1, device="cuda") for _ in range(3)]
        for index, result in enumerate(results):
            value = torch.full((1,), 10.0 * RANK + index, device="cuda")
            order = (dist.isend, value), (dist.irecv, result)
            works += [call(tensor, peer) for call, tensor in (order if RANK else reversed(order))]
        for work in works:
            work.wait()
        yield from differs(
            "in order",
            torch.cat(results),
            torch.tensor([10.0 * peer + index for index in range(3)]),
        )


@check
def ring_of_batched_sends():
    tensor, total = mine(torch.float32), mine(torch.float32)
    for _ in range(WORLD - 1):
        arriving = torch.empty_like(tensor)
        requests = (
            dist.P2POp(dist.isend, tensor, (RANK + 1) % WORLD),
            dist.P2POp(dist.irecv, arriving, (RANK - 1) % WORLD),
        )
        for work in dist.batch_isend_irecv(list(requests)):
            work.wait()
        tensor = arriving
        total += tensor
    yield from differs(
        "sum around the ring", total, reduced("SUM", torch.float32, everyone(torch.float32))
    )
    yield from differs("last", tensor, sent((RANK + 1) % WORLD, torch.float32))


@check
def coalesced():
    tensors = [mine(torch.float32, salt=index) for index in range(5)]
    with dist._coalescing_manager(device=torch.device("cuda", LOCAL), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for index, tensor in enumerate(tensors):
        yield from differs(
            f"all_reduce {index}",
            tensor,
            reduced("SUM", torch.float32, everyone(torch.float32, salt=index)),
        )
    wholes, shards = (
        [torch.empty(6 * WORLD, device="cuda") for _ in range(3)],
        [torch.empty(3, device="cuda") for _ in range(3)],
    )
    with dist._coalescing_manager(device=torch.device("cuda", LOCAL)):
        for index, whole in enumerate(wholes):
            dist.all_gather_into_tensor(whole, mine(torch.float32, salt=index))
    with dist._coalescing_manager(device=torch.device("cuda", LOCAL)):
        for index, shard in enumerate(shards):
            dist.reduce_scatter_tensor(shard, mine(torch.float32, 3 * WORLD, index))
    for index in range(3):
        yield from differs(
            f"all_gather {index}", wholes[index], torch.cat(everyone(torch.float32, salt=index))
        )
        expected = reduced("SUM", torch.float32, everyone(torch.float32, 3 * WORLD, index)).chunk(
            WORLD
        )[RANK]
        yield from differs(f"reduce_scatter {index}", shards[index], expected)


@check
def functional_collectives():
    value = functional.all_reduce(mine(torch.float32), "sum", dist.group.WORLD)
    yield from differs(
        "all_reduce", value + 0, reduced("SUM", torch.float32, everyone(torch.float32))
    )
    value = functional.all_gather_tensor(mine(torch.int64), 0, dist.group.WORLD)
    yield from differs(
        "all_gather", functional.wait_tensor(value), torch.cat(everyone(torch.int64))
    )
    value = functional.reduce_scatter_tensor(mine(torch.float32, 8), "avg", 0, dist.group.WORLD)
    yield from differs(
        "reduce_scatter",
        value * 1,
        reduced("AVG", torch.float32, everyone(torch.float32, 8)).chunk(WORLD)[RANK],
    )


@check
def barrier_and_work_objects():
    dist.barrier()
    dist.barrier(device_ids=[LOCAL])
    tensor = mine(torch.float32)
    work = dist.all_reduce(tensor, async_op=True)
    yield from differs("wait", work.wait(), True)
    yield from differs("value", tensor, reduced("SUM", torch.float32, everyone(torch.float32)))
    torch.cuda.synchronize()
    yield from differs("completed", work.is_completed(), True)
    work = dist.all_reduce(torch.zeros(1 << 24, device="cuda"), async_op=True)
    while not work.is_completed():  # polling moves simulated time on, or this would never end
        pass
    yield from differs("wait with a time-out", work.wait(timedelta(seconds=30)), True)


@check
def overlapping_compute():
    tensors = [mine(torch.float32, salt=index) for index in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    matrix = torch.eye(16, device="cuda")
    for _ in range(3):
        matrix = matrix @ (matrix * 2)
    for work in reversed(works):
        work.wait()
    for index, tensor in enumerate(tensors):
        yield from differs(
            f"{index}",
            tensor * 2,
            2 * reduced("SUM", torch.float32, everyone(torch.float32, salt=index)),
        )
    yield from differs("compute", matrix.trace(), torch.tensor(16.0 * 2**7))
    first = mine(torch.float32)
    work = dist.all_reduce(first, async_op=True)
    other = mine(torch.float32, salt=3)  # a second communicator at the same time
    second = dist.all_reduce(other, group=HALVES[RANK // 2], async_op=True)
    second.wait(), work.wait()
    yield from differs(
        "beside another group", first, reduced("SUM", torch.float32, everyone(torch.float32))
    )
    pair = [RANK // 2 * 2, RANK // 2 * 2 + 1]
    yield from differs(
        "in the other group",
        other,
        reduced("SUM", torch.float32, [sent(r, torch.float32, salt=3) for r in pair]),
    )


@check
def chains_of_small_operators():
    tensor = torch.full((4,), RANK + 1.0, device="cuda")
    tensor = tensor.mul(2).add(1)
    dist.all_reduce(tensor)
    yield from differs("item", tensor[2].item(), sum(2.0 * (rank + 1) + 1 for rank in range(WORLD)))
    norm = torch.linalg.vector_norm(tensor) ** 2
    dist.all_reduce(norm)
    yield from differs(
        "norm",
        norm.sqrt().item(),
        (WORLD * 4) ** 0.5 * sum(2.0 * (rank + 1) + 1 for rank in range(WORLD)),
    )
    count = (torch.arange(10, device="cuda") > RANK + 4).sum()
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    yield from differs("count", int(count), 5)
    ids = torch.nonzero(torch.arange(8, device="cuda") % WORLD == RANK).flatten()
    everything = torch.empty(8, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(everything, ids)
    yield from differs("sorted", everything.sort().values, torch.arange(8))


@check
def subgroups():
    members = [3, 1]
    group = dist.new_group(members)
    if RANK in members:
        tensor = mine(torch.float32)
        dist.all_reduce(tensor, group=group)
        yield from differs(
            "sum", tensor, reduced("SUM", torch.float32, [sent(r, torch.float32) for r in members])
        )
        parts = [torch.empty(6, device="cuda") for _ in members]
        dist.all_gather(parts, mine(torch.float32), group=group)
        for position, rank in enumerate(dist.get_process_group_ranks(group)):
            yield from differs(f"part {position}", parts[position], sent(rank, torch.float32))
        tensor = mine(torch.float32)
        dist.broadcast(tensor, src=3, group=group)
        yield from differs("broadcast", tensor, sent(3, torch.float32))
        box = [{"from": RANK} if RANK == 1 else None]
        dist.broadcast_object_list(box, src=1, group=group)
        yield from differs("object", box, [{"from": 1}])
    else:
        yield from differs("rank outside", dist.get_rank(group), -1)
    alone = [dist.new_group([rank]) for rank in range(WORLD)][RANK]
    tensor = mine(torch.float32)
    dist.all_reduce(tensor, group=alone)
    yield from differs("alone", tensor, sent(RANK, torch.float32))
    dist.destroy_process_group(alone)


@check
def split_group():
    group = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    pair = [RANK % 2, RANK % 2 + 2]
    tensor = mine(torch.float32)
    dist.all_reduce(tensor, group=group)
    yield from differs(
        "sum", tensor, reduced("SUM", torch.float32, [sent(r, torch.float32) for r in pair])
    )
    deeper = dist.split_group(parent_pg=group, split_ranks=[[0], [1]])
    tensor = mine(torch.float32)
    dist.all_reduce(tensor, group=deeper)
    yield from differs("split again", tensor, sent(RANK, torch.float32))
    partial = dist.split_group(split_ranks=[[0, 1, 2]])
    if RANK < 3:
        tensor = mine(torch.float32)
        dist.all_reduce(tensor, group=partial)
        yield from differs(
            "three of four", tensor, reduced("SUM", torch.float32, everyone(torch.float32)[:3])
        )
    else:
        yield from differs("fourth", partial in (None, dist.GroupMember.NON_GROUP_MEMBER), True)


@check
def mesh():
    grid = init_device_mesh("cuda", (2, 2), mesh_dim_names=("outer", "inner"))
    for name, peers in (
        ("outer", [RANK % 2, RANK % 2 + 2]),
        ("inner", [RANK // 2 * 2, RANK // 2 * 2 + 1]),
    ):
        tensor = mine(torch.float32)
        dist.all_reduce(tensor, group=grid[name].get_group())
        yield from differs(
            name, tensor, reduced("SUM", torch.float32, [sent(r, torch.float32) for r in peers])
        )
    flat = grid["outer", "inner"]._flatten("all")
    tensor = mine(torch.float32)
    dist.all_reduce(tensor, group=flat.get_group())
    yield from differs("flattened", tensor, reduced("SUM", torch.float32, everyone(torch.float32)))


@check
def distributed_tensors():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    grid = init_device_mesh("cuda", (WORLD,))
    whole = torch.arange(32.0).view(8, 4)
    sharded = distribute_tensor(whole.cuda(), grid, [Shard(0)])
    yield from differs("local", sharded.to_local(), whole.chunk(WORLD)[RANK])
    yield from differs(
        "other way", sharded.redistribute(grid, [Shard(1)]).to_local(), whole[:, RANK : RANK + 1]
    )
    yield from differs(
        "product",
        (sharded.t() @ sharded).redistribute(grid, [Replicate()]).to_local(),
        whole.t() @ whole,
    )
    yield from differs("full", (sharded * 2).full_tensor(), whole * 2)
    yield from differs("mean", sharded.mean().full_tensor(), whole.mean())


def objects(rank):
    return {
        "rank": rank,
        "text": "x" * (1000 * rank),
        "set": set(range(rank)),
        "tensor": torch.arange(rank),
    }


@check
def all_gather_object():
    results = [None] * WORLD
    dist.all_gather_object(results, objects(RANK))
    yield from differs("objects", str(results), str([objects(r) for r in range(WORLD)]))
    large = random.Random(1).randbytes(3_000_000)  # a plan of a checkpoint may be that long
    dist.all_gather_object(results, large if RANK == 2 else None)
    yield from differs(
        "large",
        [result and hashlib.md5(result).hexdigest() for result in results],
        [None, None, hashlib.md5(large).hexdigest(), None],
    )


@check
def broadcast_object_list():
    for root in range(WORLD):
        box = [objects(root), "second", None] if RANK == root else [None] * 3
        dist.broadcast_object_list(box, src=root)
        yield from differs(f"from {root}", str(box), str([objects(root), "second", None]))
    # in one tensor of bytes
    large = [random.Random(index).randbytes(1_500_000) for index in range(3)]
    box = list(large) if RANK == 1 else [None] * 3
    dist.broadcast_object_list(box, src=1)
    yield from differs("large", [item == wanted for item, wanted in zip(box, large)], [True] * 3)


@check
def gather_object():
    results = [None] * WORLD if RANK == 1 else None
    dist.gather_object("g" * (RANK * 7 + 1), results, dst=1)
    yield from differs(
        "objects", results, ["g" * (r * 7 + 1) for r in range(WORLD)] if RANK == 1 else None
    )
    dist.gather_object(list(range(100_000 * RANK)), results, dst=1)
    yield from differs(
        "large",
        [len(result) for result in results or ()],
        [100_000 * r for r in range(WORLD)] if results else [],
    )


@check
def scatter_object_list():
    result = [None]
    dist.scatter_object_list(
        result, [list(range(r * 5)) for r in range(WORLD)] if RANK == 3 else None, src=3
    )
    yield from differs("object", result, [list(range(RANK * 5))])
    dist.scatter_object_list(
        result, ["s" * (r * 400_000) for r in range(WORLD)] if RANK == 0 else None, src=0
    )
    yield from differs("large", len(result[0]), RANK * 400_000)


@check
def send_object_list():
    if RANK == 0:
        dist.send_object_list(["a", {"b": 2}, "c" * 5000], dst=3)
    elif RANK == 3:
        box = [None] * 3
        dist.recv_object_list(box, src=0)
        yield from differs("objects", box, ["a", {"b": 2}, "c" * 5000])


@check
def empty_tensors():
    tensor = torch.empty(0, device="cuda")
    dist.all_reduce(tensor)
    yield from differs("empty", tensor, torch.empty(0))


@check
def gloo_beside():
    group = dist.new_group(backend="gloo")
    dist.monitored_barrier(group, timeout=timedelta(seconds=30))
    tensor = sent(RANK, torch.float32)
    dist.all_reduce(tensor, group=group)
    yield from differs("sum", tensor, reduced("SUM", torch.float32, everyone(torch.float32)))
    device = mine(torch.float32)
    dist.all_reduce(device)
    yield from differs("as NCCL's", device, tensor)


@check
def destroy_and_start_again():
    address = [None]
    if RANK == 0:
        store = dist.TCPStore(
            socket.gethostname(), 0, WORLD, is_master=True, wait_for_workers=False
        )
        address = [(socket.gethostname(), store.port)]
    dist.broadcast_object_list(address, src=0)
    dist.barrier()
    dist.destroy_process_group()
    if RANK:
        store = dist.TCPStore(*address[0], WORLD, is_master=False)
    dist.init_process_group(
        "nccl", store=store, rank=RANK, world_size=WORLD, device_id=torch.device("cuda", LOCAL)
    )
    for dtype in (torch.float32, torch.int64):
        tensor = mine(dtype)
        dist.all_reduce(tensor)
        yield from differs(f"{dtype}", tensor, reduced("SUM", dtype, everyone(dtype)))
    dist.barrier()


if __name__ == "__main__":
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL))
    HALVES = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    run_checks()
    dist.destroy_process_group()
