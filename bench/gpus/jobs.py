"""The training jobs of this bench: shapes whose real times are known on one GPU, and their steps.

Why it exists: the same step must run on 1, 2 and 4 GPUs of one machine within seconds of each
other. Ranks and communicators therefore outlive a job: each job gets a mesh over the ranks that
are there, of copies x data parallel x tensor parallel, so that smaller jobs fill the machine too.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from bench.accuracy.models import LLAMAS, Llama
from bench.accuracy.workload import fully_sharded, tensor_parallel


@dataclass(frozen=True)
class Shape:
    """`tp` 0: as many as the job has GPUs."""

    size: str
    mode: str
    seq: int
    batch: int
    layers: int | None = None
    recompute: bool = False
    tp: int = 1
    steps: int = 10

    def tiny(self) -> Shape:
        """The same code in seconds on an emulated GPU."""
        return replace(self, size="160m", layers=2, seq=512, batch=1, steps=2)


SHAPES = {
    "1b-fsdp-4k": Shape("1b", "fsdp", 4096, 2),
    "8b12-fsdp-8k-ac": Shape("8b", "fsdp", 8192, 2, layers=12, recompute=True, steps=6),
    "3b14-fsdp-8k-ac": Shape("3b", "fsdp", 8192, 2, layers=14, recompute=True, steps=8),
    "1b-fsdp-16k-ac": Shape("1b", "fsdp", 16384, 1, recompute=True, steps=8),
    "8b12-fsdp-4k": Shape("8b", "fsdp", 4096, 1, layers=12),
    "1b-ddp-4k": Shape("1b", "ddp", 4096, 2),
    "8b-fsdp-4k": Shape("8b", "fsdp", 4096, 1, steps=8),
    "8b12-fsdp_tp2-4k": Shape("8b", "fsdp_tp", 4096, 4, layers=12, tp=2, steps=8),
    "13b10-tp-4k": Shape("13b", "tp", 4096, 8, layers=10, tp=0, steps=8),
    "160m-fsdp-1k": Shape("160m", "fsdp", 1024, 1, steps=20),
}

_meshes: dict[tuple[int, int], DeviceMesh] = {}


def mesh_of(gpus: int, tp: int = 1) -> DeviceMesh:
    """Copies x dp x tp over all ranks; every rank must ask for the same meshes in the same order."""
    key = gpus, tp
    if key not in _meshes:
        world = dist.get_world_size()
        _meshes[key] = init_device_mesh(
            "cuda", (world // gpus, gpus // tp, tp), mesh_dim_names=("copy", "dp", "tp")
        )
    return _meshes[key]


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


class Job:
    """A model on `gpus` GPUs (this rank's copy of the job), its optimizer and its step."""

    def __init__(self, shape: Shape, gpus: int) -> None:
        self.shape = shape
        tp = shape.tp or gpus
        mesh = mesh_of(gpus, tp)
        dimensions = list(LLAMAS[shape.size])
        dimensions[2] = shape.layers or dimensions[2]
        self.vocabulary = dimensions[0]
        torch.manual_seed(dist.get_rank())
        with torch.device("meta"):
            model = Llama(*dimensions, shape.seq)
        if tp > 1:
            tensor_parallel(model, mesh["tp"])
        if shape.recompute:
            from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
                checkpoint_wrapper,
            )

            for index, layer in enumerate(model.layers):
                model.layers[index] = checkpoint_wrapper(layer)
        if shape.mode in ("fsdp", "fsdp_tp"):
            fully_sharded(model, mesh["dp"])
        else:
            model = model.to(torch.bfloat16)
        model.to_empty(device="cuda")
        model.initialise()
        if shape.mode == "ddp":
            model = nn.parallel.DistributedDataParallel(
                model,
                device_ids=[torch.cuda.current_device()],
                process_group=mesh["dp"].get_group(),
            )
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(self) -> None:
        tokens = torch.randint(0, self.vocabulary, (self.shape.batch, self.shape.seq + 1))
        tokens = tokens.cuda(non_blocking=True)
        logits = self.model(tokens[:, :-1])
        F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
