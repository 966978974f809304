"""One training job of the accuracy bench: ordinary PyTorch, to be started with torchrun on real
GPUs or emulated ones.

    torchrun --nproc-per-node 8 -m bench.accuracy.workload --size 8b --mode fsdp --seq 8192 --ac
        [--out FILE] [--trace FILE]

Why it exists: the same file gives the real times and the simulated ones, so that they can be
compared. Rank 0 prints one line "RESULT {json}": the configuration, seconds of every step (by the
host's clock, between two synchronisations; by CUDA events; and until the host had issued
everything), and peak memory in bytes. Every step counts in the lists; the summary leaves the first
--warmup out. --trace profiles steps of its own, after the timed ones.
"""

import argparse
import json
import os
import platform
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from bench.accuracy.models import LLAMAS, Llama, ResNet50, VisionTransformer

IMAGE_CLASSES = 1000
OPTIMIZERS = {
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=True),
    "single": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=False),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4),
}


def tensor_parallel(model, mesh):
    """Splits heads and feed-forward over `mesh`; between them activations are split along the
    sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    parallelize_module(
        model,
        mesh,
        {
            "emb": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {
                "n1": SequenceParallel(),
                "n2": SequenceParallel(),
                "attn": PrepareModuleInput(
                    input_layouts=(Shard(1), None, None),
                    desired_input_layouts=(Replicate(), None, None),
                ),
                "attn.wq": ColwiseParallel(),
                "attn.wk": ColwiseParallel(),
                "attn.wv": ColwiseParallel(),
                "attn.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "ffn.w1": ColwiseParallel(),
                "ffn.w3": ColwiseParallel(),
                "ffn.w2": RowwiseParallel(output_layouts=Shard(1)),
            },
        )


def fully_sharded(model, mesh):
    """FSDP2 by layer: parameters gathered in bf16, gradients reduced in fp32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh, mp_policy=precision)


def build_llama(options, rank, world):
    """The model of one rank, its parameters born on the GPU."""
    shape = list(LLAMAS[options.size])
    shape[2] = options.layers or shape[2]
    mesh = None
    if options.mode not in ("none", "pp"):
        split = {"tp": world, "fsdp_tp": options.tp}.get(options.mode, 1)
        mesh = init_device_mesh("cuda", (world // split, split), mesh_dim_names=("dp", "tp"))
    stage, stages = (rank, world) if options.mode == "pp" else (0, 1)
    with torch.device("meta"):
        model = Llama(*shape, options.seq, stage, stages)
    if mesh is not None and mesh["tp"].size() > 1:
        tensor_parallel(model, mesh["tp"])
    if options.ac:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for index, layer in enumerate(model.layers):
            model.layers[index] = checkpoint_wrapper(layer)
    if options.compile:
        for layer in model.layers:
            layer.compile()
    if options.mode in ("fsdp", "fsdp_tp"):
        fully_sharded(model, mesh["dp"])
    elif options.precision == "bf16":
        model = model.to(torch.bfloat16)
    model.to_empty(device="cuda")
    model.initialise()
    if options.mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    return model, shape[0]


def llama_step(options, model, vocabulary, optimizer):
    """A function that trains one step: --accum micro-batches of --mbs sequences, clipping,
    AdamW."""

    def step():
        for _ in range(options.accum):
            tokens = torch.randint(0, vocabulary, (options.mbs, options.seq + 1)).cuda(
                non_blocking=True
            )
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def pipeline_step(options, model, vocabulary, optimizer, rank, world):
    """A function that trains one step of a 1F1B pipeline: --accum micro-batches go through one
    stage per rank."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    def loss_of(logits, targets):
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    stage = PipelineStage(model, rank, world, torch.device("cuda", torch.cuda.current_device()))
    schedule = Schedule1F1B(stage, options.accum, loss_fn=loss_of)

    def step():
        tokens = torch.randint(0, vocabulary, (options.accum * options.mbs, options.seq + 1)).cuda(
            non_blocking=True
        )
        losses = []
        if rank == 0:
            schedule.step(tokens[:, :-1])
        elif rank == world - 1:
            schedule.step(target=tokens[:, 1:], losses=losses)
        else:
            schedule.step()
        # the norm over all stages: clip_grad_norm_ would see this stage alone
        square = get_total_norm([p.grad for p in model.parameters()]).float().square()
        dist.all_reduce(square)
        clip_grads_with_norm_(model.parameters(), 1.0, square.sqrt())
        optimizer.step()
        optimizer.zero_grad()
        return losses

    return step


def image_step(options):
    """A function that trains one step of ResNet-50 (SGD) or ViT-B/16 (AdamW): channels last,
    autocast, one batch that stays on the GPU."""
    model = (
        (ResNet50() if options.model == "resnet50" else VisionTransformer())
        .cuda()
        .to(memory_format=torch.channels_last)
    )
    if options.mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    if options.model == "resnet50":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    else:
        optimizer = OPTIMIZERS[options.optimizer](model.parameters())
    images = torch.randn(options.mbs, 3, 224, 224, device="cuda").to(
        memory_format=torch.channels_last
    )
    labels = torch.randint(0, IMAGE_CLASSES, (options.mbs,), device="cuda")

    def step():
        for _ in range(options.accum):
            with torch.autocast("cuda", torch.bfloat16, enabled=options.precision == "bf16"):
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def timed_steps(step, count):
    """Runs `count` steps; returns seconds per step by the host's clock, by CUDA events, and until
    all was issued."""
    wall, device, issue = [], [], []
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    kept = None  # the last loss lives on through the next step, as in any loop that logs it
    for _ in range(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        before.record()
        kept = step()
        after.record()
        issued = time.perf_counter()
        torch.cuda.synchronize()
        wall.append(time.perf_counter() - start)
        issue.append(issued - start)
        device.append(before.elapsed_time(after) / 1e3)
    del kept
    return wall, device, issue


def profile(step, path, rank):
    """Writes a Kineto trace of one step of rank 0; one step before it absorbs the profiler's own
    start."""
    if rank != 0:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        return
    from torch.profiler import ProfilerActivity, schedule
    from torch.profiler import profile as profiler

    activities = [ProfilerActivity.CUDA, ProfilerActivity.CPU]
    with profiler(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda p: p.export_chrome_trace(path),
    ) as active:
        for _ in range(2):
            step()
            torch.cuda.synchronize()
            active.step()


def parse():
    parser = argparse.ArgumentParser(
        description="Trains one configuration and prints its step times and peak memory."
    )
    parser.add_argument("--model", default="llama", choices=["llama", "resnet50", "vit"])
    parser.add_argument("--size", default="1b", choices=LLAMAS)
    parser.add_argument(
        "--mode", default="fsdp", choices=["none", "ddp", "fsdp", "tp", "fsdp_tp", "pp"]
    )
    parser.add_argument(
        "--tp", type=int, default=1, help="tensor-parallel ranks of mode fsdp_tp (tp: all of them)"
    )
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument(
        "--mbs",
        type=int,
        default=1,
        help="sequences (images) per micro-batch and data-parallel rank",
    )
    parser.add_argument("--layers", type=int, help="layers, instead of the size's own")
    parser.add_argument(
        "--ac", action="store_true", help="recompute every layer in the backward pass"
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile every layer")
    parser.add_argument(
        "--optimizer", default="fused", choices=OPTIMIZERS, help="AdamW's implementation, or SGD"
    )
    parser.add_argument(
        "--precision",
        default="bf16",
        choices=["bf16", "fp32", "tf32"],
        help="fp32, tf32: not with FSDP or TP",
    )
    parser.add_argument("--accum", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--warmup", type=int, default=4, help="first steps that the summary leaves out"
    )
    parser.add_argument(
        "--trace", help="Kineto trace of rank 0, one further step (.json or .json.gz)"
    )
    parser.add_argument("--out", help="append the result to this file as one line of JSON")
    return parser.parse_args()


def main():
    options = parse()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if options.mode == "none" and world > 1:
        raise SystemExit("workload.py: --mode none is for one GPU; name a parallel mode")
    if options.precision != "bf16" and options.mode not in ("none", "ddp"):
        raise SystemExit("workload.py: --precision fp32 and tf32 are for modes none and ddp")
    if options.mode == "pp" and options.mbs > 1:
        raise SystemExit(
            "workload.py: --mode pp takes one sequence per micro-batch (its inputs are views of the batch, and "
            "torch's pipelining refuses strided ones); raise --accum instead of --mbs"
        )
    if options.mode != "none":
        dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # a pipeline's last stage needs the first one's tokens
    torch.manual_seed(0 if options.mode == "pp" else rank)

    torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
    if options.model != "llama":
        if options.mode not in ("none", "ddp"):
            raise SystemExit(f"workload.py: {options.model} runs in modes none and ddp")
        step = image_step(options)
    else:
        model, vocabulary = build_llama(options, rank, world)
        optimizer = OPTIMIZERS[options.optimizer](model.parameters())
        if options.mode == "pp":
            step = pipeline_step(options, model, vocabulary, optimizer, rank, world)
        else:
            step = llama_step(options, model, vocabulary, optimizer)

    torch.cuda.reset_peak_memory_stats()
    wall, device, issue = timed_steps(step, options.steps)
    peaks = [[torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]]
    free, total = torch.cuda.mem_get_info()
    if world > 1:
        mine = torch.tensor(peaks[0], dtype=torch.int64, device="cuda")
        every = torch.empty(2 * world, dtype=torch.int64, device="cuda")
        dist.all_gather_into_tensor(every, mine)
        peaks = every.view(world, 2).tolist()
    if options.trace:
        profile(step, options.trace, rank)
    if rank == 0:
        kept = wall[options.warmup :]
        median = statistics.median(kept)
        result = {
            "world": world,
            **{k: v for k, v in vars(options).items() if k not in ("out", "trace")},
            "median_s": median,
            "spread": statistics.pstdev(kept) / median,
            "min_s": min(kept),
            "max_s": max(kept),
            "device_median_s": statistics.median(device[options.warmup :]),
            "issue_median_s": statistics.median(issue[options.warmup :]),
            "times": [round(t, 6) for t in wall],
            "device_times": [round(t, 6) for t in device],
            "issue_times": [round(t, 6) for t in issue],
            "peak_alloc": peaks[0][0],
            "peak_reserved": peaks[0][1],
            "peaks": peaks,
            "mem_get_info": [free, total],
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": list(torch.cuda.nccl.version()),
            "python": platform.python_version(),
        }
        print("RESULT " + json.dumps(result), flush=True)
        if options.out:
            with open(options.out, "a") as stream:
                stream.write(json.dumps(result) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
