"""Why it exists: a job that profiles itself, on one rank or sharded over several: `profiled.py FOLDER`.
Two cycles of wait, warm-up and two active steps. Of each cycle, FOLDER gets the chrome trace and what
key_averages() has, with the job's own time around it."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, record_function, schedule

folder = Path(sys.argv[1])
rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(2))
).cuda()
if ranks > 1:
    dist.init_process_group("nccl")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(256, 512)
cycle = 0


def ready(profiler):
    global cycle
    profiler.export_chrome_trace(str(folder / f"{rank}-{cycle}.json"))
    averages = [
        {
            "name": event.key,
            "device": event.device_type.name,
            "self_us": event.self_device_time_total,
            "count": event.count,
        }
        for event in profiler.key_averages()
    ]
    (folder / f"{rank}-{cycle}.averages").write_text(
        json.dumps({"averages": averages, "after": time.time_ns()})
    )
    cycle += 1


torch.cuda.synchronize()
(folder / f"{rank}.before").write_text(str(time.time_ns()))
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
    on_trace_ready=ready,
    profile_memory=True,
) as profiler:
    for _ in range(8):
        with record_function("forward"):
            loss = model(data.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        profiler.step()
if ranks > 1:
    dist.destroy_process_group()
