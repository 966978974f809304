"""Training steps on one GPU, plain and with a ring beside every layer, as eight GPUs would have them.

Why it exists: the law of power must hold for steps, not for loops of one kernel; and what a ring
costs a step on one GPU is what several GPUs lose apart from waiting for each other. The model and
the sizes are those of a script whose real runs are known (TRUTH names its folder).
"""

from __future__ import annotations

import gc
import gzip
import importlib.util
import json
import os
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from bench.power.ring import GATHER, REDUCE, Ring

SHAPES = {  # size, sequence, batch, layers (None: all), recomputation
    "1b_fsdp_4k_mbs2": ("1b", 4096, 2, None, False),
    "3b_fsdp_8k_mbs2_ac": ("3b", 8192, 2, None, True),
    "8b12_fsdp_8k_mbs2_ac": ("8b", 8192, 2, 12, True),
    "8b12_fsdp_4k": ("8b", 4096, 1, 12, False),
    "13b6_fsdp_2k": ("13b", 2048, 1, 6, False),
}
VARIANTS = {"plain": 0.0, "ring": 370.0, "ring_185": 185.0, "plain_again": 0.0}  # GB/s; 0: no ring
SHARE = 7 / 8  # of a result, what a ring of eight moves through each GPU


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def script():
    path = Path(os.environ["TRUTH"]) / "train.py"
    spec = importlib.util.spec_from_file_location("truth_train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Job:
    """A model, its optimizer and its step; `rate` is that of the rings beside it."""

    def __init__(self, source, shape: tuple, ring: Ring) -> None:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        size, self.seq, self.batch, layers, recompute = shape
        torch.manual_seed(0)
        cfg = list(source.SIZES[size])
        cfg[2] = layers or cfg[2]
        self.vocabulary = cfg[0]
        with torch.device("meta"):
            self.model = source.Llama(*cfg, self.seq)
        if recompute:
            for i, layer in enumerate(self.model.layers):
                self.model.layers[i] = checkpoint_wrapper(layer)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in self.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(self.model, mp_policy=policy)
        for layer in self.model.layers:
            layer.register_forward_pre_hook(lambda module, _: self._beside(module, GATHER, 2))
            layer.register_full_backward_pre_hook(self._backward)
        self.model.to_empty(device="cuda")
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.normal_(0, 0.02)
            self.model.init_rope()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.ring, self.side = ring, torch.cuda.Stream()
        self.rate, self.rings = 0.0, 0

    def _backward(self, module, _) -> None:
        self._beside(module, GATHER, 2)
        self._beside(module, REDUCE, 4)

    def _beside(self, module, kind: int, width: int) -> None:
        """A ring over this layer's parameters, of `width` bytes each, beside what comes next."""
        if not self.rate:
            return
        count = sum(parameter.numel() for parameter in module.parameters())
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.ring.launch(kind, self.rate, self.ring.steps_of(int(count * width * SHARE)))
        self.rings += 1

    def step(self) -> None:
        tokens = torch.randint(0, self.vocabulary, (self.batch, self.seq + 1))
        tokens = tokens.cuda(non_blocking=True)
        logits = self.model(tokens[:, :-1])
        F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def training(out, sampler, folder: Path) -> None:
    """Clock, power and energy of the steps of every shape and variant; one step by kernel."""
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("nccl")
    source, ring = script(), Ring()
    for name, shape in SHAPES.items():
        job = Job(source, shape, ring)
        for variant, rate in VARIANTS.items():
            job.rate = rate
            warm, times = kept_up(job, sampler)
            end = sampler.now()
            trace = [row[:5] for row in sampler.rows if warm <= row[0] <= min(end, warm + 2.5)]
            out(
                "training",
                shape=name,
                variant=variant,
                rings=job.rings,
                times=times,
                median_s=sorted(times)[len(times) // 2],
                trace=trace,
                **sampler.between(warm, end),
            )
            if variant in ("plain", "ring"):
                by_kernel(folder, f"kernels-{name}-{variant}.json.gz", job.step)
        peak = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        out("training_peak", shape=name, allocated=peak[0], reserved=peak[1])
        del job
        free()
        torch.cuda.reset_peak_memory_stats()
    dist.destroy_process_group()


def kept_up(job: Job, sampler) -> tuple[float, list[float]]:
    """(when the GPU was warm, seconds of each step after that)."""
    for _ in range(4):
        job.step()
    torch.cuda.synchronize()
    job.rings, times, warm = 0, [], sampler.now()
    until = warm + float(os.environ.get("POWER_STEPS_S", "5"))
    while sampler.now() < until or len(times) < 4:
        at = time.perf_counter()
        job.step()
        torch.cuda.synchronize()
        times.append(round(time.perf_counter() - at, 6))
    return warm, times


def by_kernel(folder: Path, file_name: str, step) -> None:
    """Two steps under the profiler: every launch, as [name, stream, begin us, us, grid]."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        step()
        torch.cuda.synchronize()
    path = folder / "step.json"
    recorded.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    path.unlink()
    names: dict[str, int] = defaultdict(lambda: len(names))
    rows = [
        [names[e["name"]], e["args"].get("stream"), e["ts"], e["dur"], e["args"].get("grid")]
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    rows.sort(key=lambda row: row[2])
    start = rows[0][2] if rows else 0
    for row in rows:
        row[2] = round(row[2] - start, 3)
    with gzip.open(folder / file_name, "wt") as file:
        json.dump({"names": list(names), "rows": rows}, file)
