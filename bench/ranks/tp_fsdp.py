"""A Llama 8B under tensor parallelism in nodes and FSDP between them, as KempnerForge trains it, for
bench/ranks/weak_scaling.py: ordinary PyTorch, to be started with torchrun.

Why it exists: what goes over the network depends on how a framework wraps the model. As in that project at
commit 01b461a (kempnerforge/distributed, scripts/train.py): the embedding is not split by tensor
parallelism; the outermost FSDP module is resharded after the forward pass, too; gradients are reduced in
the last micro-batch only; the loss of each micro-batch is read; parameters are bf16. Not as there: it is
not compiled.
"""

import argparse
import os
import time
from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from bench.accuracy.models import LLAMAS, Llama
from bench.accuracy.workload import tensor_parallel


def build(options, mesh):
    """The model of one rank."""
    vocabulary, width, layers, *rest = LLAMAS["8b"]
    with torch.device("meta"):
        model = Llama(vocabulary, width, options.layers or layers, *rest, options.seq)
        tensor_parallel(model, mesh["tp"])
        model.emb = nn.Embedding(vocabulary, width)

    def split(module, arguments, found):
        whole = DTensor.from_local(found, mesh["tp"], [Replicate()])
        return whole.redistribute(placements=[Shard(1)]).to_local()

    model.emb.register_forward_hook(split)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for index, layer in enumerate(model.layers):
        model.layers[index] = checkpoint_wrapper(layer)
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=True)
    model.to_empty(device="cuda")
    model.initialise()
    return model.to(torch.bfloat16)


def by_mesh(model):
    """Parameters in groups of one mesh each: what both kinds of parallelism split, and what only FSDP
    does."""
    found = defaultdict(list)
    for parameter in model.parameters():
        found[parameter.device_mesh.mesh_dim_names].append(parameter)
    return list(found.values())


def clip(groups):
    """Scales the gradients so that their norm over all groups is at most 1."""
    norms = [nn.utils.get_total_norm([p.grad for p in group]).full_tensor() for group in groups]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, 1.0, norm)
    return norm


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--mbs", type=int, default=4)
    parser.add_argument("--accum", type=int, default=2)
    parser.add_argument("--layers", type=int, help="instead of the model's 32")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    each = int(os.environ["LOCAL_WORLD_SIZE"])
    shape = (dist.get_world_size() // each, each)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("dp", "tp"))
    torch.manual_seed(dist.get_rank() // each)
    model = build(options, mesh)
    groups = by_mesh(model)
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-4, fused=True)
    for step in range(1, options.steps + 1):
        start = time.perf_counter()
        for micro in range(options.accum):
            model.set_requires_gradient_sync(micro + 1 == options.accum)
            text = torch.randint(LLAMAS["8b"][0], (options.mbs, options.seq + 1)).cuda()
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()) / options.accum
            loss.backward()
            loss.item()
        clip(groups).item()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}  {(time.perf_counter() - start) * 1e3:.1f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
