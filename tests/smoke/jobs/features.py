"""Runs under torchrun on 2 ranks with expandable segments: one use of each part of CUDA's libraries
that training jobs rely on, beside what examples/train_llama.py uses.

Small results are compared with arithmetic or with the CPU. For large ones only the time is known: no
GPU is faster than its data sheet says.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import check, differs, run_checks, say, timed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

RANK, WORLD, LOCAL = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
H200_FLOPS = 989e12  # dense bf16, data sheet
BFLOAT = {"device": "cuda", "dtype": torch.bfloat16}


def too_fast(what, ms, flops):
    """Yields a complaint when `flops` took less than the data sheet allows."""
    least = flops / H200_FLOPS * 1e3
    if not ms >= least:
        yield f"{what}: {ms} ms; the data sheet allows {least} ms"


def objects(rank):
    return {"rank": rank, "text": "x" * (1000 * rank), "list": list(range(5 * rank))}


@check
def objects_are_exchanged():
    everyone = [objects(rank) for rank in range(WORLD)]
    gathered = [None] * WORLD
    dist.all_gather_object(gathered, objects(RANK))
    yield from differs("all_gather_object", gathered, everyone)
    box = [objects(1)] if RANK == 1 else [None]
    dist.broadcast_object_list(box, src=1)
    yield from differs("broadcast_object_list", box, [objects(1)])
    at_root = [None] * WORLD if RANK == 0 else None
    dist.gather_object(objects(RANK), at_root, dst=0)
    yield from differs("gather_object", at_root, everyone if RANK == 0 else None)
    dist.scatter_object_list(box, everyone if RANK == 0 else None, src=0)
    yield from differs("scatter_object_list", box, [objects(RANK)])


@check
def small_sums_are_real():
    value = torch.arange(8.0, device="cuda") * (RANK + 1)
    dist.all_reduce(value)
    yield from differs("all_reduce", value, torch.arange(8.0) * sum(range(1, WORLD + 1)))
    yield from differs("item", value.sum().item(), 28.0 * sum(range(1, WORLD + 1)))


@check
def compiled_functions_train():
    layer = torch.nn.Linear(1024, 1024).to(**BFLOAT)

    def forward(x):
        return torch.nn.functional.gelu(layer(x)).float().softmax(-1).square().mean()

    x = torch.randn(512, 1024, **BFLOAT, requires_grad=True)
    compiled = torch.compile(forward)
    compiled(x).backward()
    yield from differs("gradient", x.grad.shape, x.shape)
    yield from differs("weights", layer.weight.grad.shape, layer.weight.shape)
    ms = timed(lambda: compiled(x).backward())
    yield from too_fast("step", ms, 3 * 2 * 512 * 1024 * 1024)


@check
def captured_graphs_are_replayed():
    given = torch.zeros(16, device="cuda")
    large = torch.zeros(4096, 4096, **BFLOAT)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warms up what may not be made during a capture
        dist.all_reduce(given * 2)
        large @ large
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = given * 2
        dist.all_reduce(result)
        product = large @ large
    for step in range(3):
        given.fill_(RANK + step)
        graph.replay()
        wanted = 2.0 * sum(rank + step for rank in range(WORLD))
        yield from differs(f"replay {step}", result, torch.full((16,), wanted))
    yield from differs("product", product.shape, large.shape)
    yield from too_fast("replay", timed(graph.replay), 2 * 4096**3)


@check
def attention_by_cudnn():
    def attend(tensors):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            result = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
        result.backward(torch.ones_like(result))
        return result

    tensors = [torch.randn(1, 8, 32, 64).to(**BFLOAT).requires_grad_() for _ in range(3)]
    result = attend(tensors)
    on_cpu = [tensor.detach().float().cpu().requires_grad_() for tensor in tensors]
    expected = torch.nn.functional.scaled_dot_product_attention(*on_cpu, is_causal=True)
    expected.backward(torch.ones_like(expected))
    yield from differs("result", result.float(), expected, 0.05)
    for name, given, wanted in zip(("query", "key", "value"), tensors, on_cpu, strict=True):
        yield from differs(f"gradient of {name}", given.grad.float(), wanted.grad, 0.05)
    large = [torch.randn(4, 8, 4096, 128, **BFLOAT).requires_grad_() for _ in range(3)]
    ms = timed(lambda: attend(large))
    forward = 2 * 4 * 8 * 4096 * 4096 * 128  # two products, of which causality leaves one half
    yield from too_fast("forward and backward", ms, 3.5 * forward)


@check
def convolutions_by_cudnn():
    torch.manual_seed(3)
    layer = torch.nn.Conv2d(3, 8, 3, padding=1)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    layer(x).square().sum().backward()
    expected = [x.grad, layer.weight.grad.clone()]
    there = x.detach().cuda().requires_grad_()
    layer = layer.cuda()
    layer.zero_grad()
    layer(there).square().sum().backward()
    for name, given, wanted in zip(
        ("input", "weight"), (there.grad, layer.weight.grad), expected, strict=True
    ):
        yield from differs(f"gradient of {name}", given, wanted, 1e-3)
    large = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False).to(**BFLOAT)
    images = torch.randn(32, 256, 56, 56, **BFLOAT).to(memory_format=torch.channels_last)
    images.requires_grad_()
    ms = timed(lambda: large(images).sum().backward())
    yield from too_fast("convolutions", ms, 3 * 2 * 32 * 56 * 56 * 256 * 256 * 9)


@check
def segments_expand():
    segments = torch.cuda.memory_snapshot()
    if not segments or not all(segment["is_expandable"] for segment in segments):
        yield f"not expandable: {[segment['is_expandable'] for segment in segments]}"
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    blocks = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
    grown = torch.cuda.memory_reserved() - before
    if not 600 << 20 <= grown <= 640 << 20:
        yield f"{grown} bytes reserved for 20 blocks of 30 MiB"
    del blocks
    torch.cuda.empty_cache()
    yield from differs("given back", torch.cuda.memory_reserved() <= before, True)


@check
def checkpoints_are_written_and_read():
    def model():
        torch.manual_seed(5)
        layers = [torch.nn.Linear(16, 16) for _ in range(2)]
        return torch.nn.Sequential(*layers).cuda()

    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    whole = model()
    path = os.path.join(folder[0], f"rank{RANK}.pt")
    torch.save(whole.state_dict(), path)
    expected = {name: tensor.cpu() for name, tensor in whole.state_dict().items()}
    for name, tensor in torch.load(path, map_location="cuda").items():
        yield from differs(f"saved {name}", tensor, expected[name])
    mesh = init_device_mesh("cuda", (WORLD,))
    sharded = fully_shard(whole, mesh=mesh)
    dcp.save(sharded.state_dict(), checkpoint_id=os.path.join(folder[0], "dcp"))
    other = fully_shard(model().requires_grad_(False), mesh=mesh)
    for parameter in other.parameters():
        parameter.zero_()
    state = other.state_dict()
    dcp.load(state, checkpoint_id=os.path.join(folder[0], "dcp"))
    for name, tensor in state.items():
        yield from differs(f"loaded {name}", isinstance(tensor, DTensor), True)
        wanted = distribute_tensor(expected[name].cuda(), mesh, [Shard(0)]).to_local()
        yield from differs(f"loaded {name}", tensor.to_local(), wanted.cpu())


if __name__ == "__main__":
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL))
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    say("TORCH", version=torch.__version__, cuda=torch.version.cuda, nccl=nccl)
    run_checks(only=sys.argv[1:] or None)
    dist.destroy_process_group()
