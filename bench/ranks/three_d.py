"""A Llama under tensor, pipeline and data parallelism at once, for bench/ranks/run.py: ordinary PyTorch, to be
started with torchrun.

Why it exists: it is how models of this size are trained on thousands of GPUs, and what folding is hardest
for: ranks of three kinds of groups, and stages that differ. Ranks are numbered as TorchTitan and
Megatron-Core do: tensor parallelism innermost, stages outermost. So with S data-parallel ranks of T ranks each
the job folds with --fold T/(S*T).
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from bench.accuracy.models import LLAMAS, Llama
from bench.accuracy.workload import fully_sharded, tensor_parallel
from bench.ranks.tp_fsdp import by_mesh


class Stage(Llama):
    """One stage, whose input is split along the sequence: its rotation tables are always of the whole."""

    def forward(self, x):
        h = self.emb(x) if self.emb is not None else x
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        return self.out(self.norm(h)) if self.out is not None else h


def build(options, mesh):
    """The model of one rank."""
    shape = list(LLAMAS[options.size])
    shape[2] = options.layers or shape[2]
    with torch.device("meta"):
        model = Stage(*shape, options.seq, mesh["pp"].get_local_rank(), options.pp)
    tensor_parallel(model, mesh["tp"])
    fully_sharded(model, mesh["dp"])
    model.to_empty(device="cuda")
    model.initialise()
    return model


def clip(groups, stages):
    """Scales the gradients so that their norm over all stages is at most 1."""
    squares = [
        nn.utils.get_total_norm([p.grad for p in group]).full_tensor().float().square()
        for group in groups
    ]
    square = torch.stack(squares).sum()
    dist.all_reduce(square, group=stages)
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, 1.0, square.sqrt())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="8b", choices=LLAMAS)
    parser.add_argument("--layers", type=int, help="instead of the size's own")
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--pp", type=int, default=8)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--accum", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    shape = (options.pp, dist.get_world_size() // (options.pp * options.tp), options.tp)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("pp", "dp", "tp"))
    torch.manual_seed(0)
    model = build(options, mesh)
    groups = by_mesh(model)
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-4, fused=True)
    stages, own = mesh["pp"].get_group(), mesh["pp"].get_local_rank()
    stage = PipelineStage(model, own, options.pp, device, group=stages)
    schedule = Schedule1F1B(
        stage,
        options.accum,
        loss_fn=lambda logits, text: F.cross_entropy(logits.float().flatten(0, 1), text.flatten()),
    )
    for step in range(1, options.steps + 1):
        start = time.perf_counter()
        text = torch.randint(LLAMAS[options.size][0], (options.accum, options.seq + 1)).cuda()
        inputs = (text[:, :-1],) if own == 0 else ()
        target = text[:, 1:] if own == options.pp - 1 else None
        schedule.step(*inputs, target=target)
        clip(groups, stages)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            print(f"step {step}  {(time.perf_counter() - start) * 1e3:.1f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
