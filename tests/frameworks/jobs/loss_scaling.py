"""Loss scaling on a small model with DDP: on the device, and on the CPU, where torch's own
GradScaler is the oracle."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn


def train(device):
    """The scale after each step and whether the step changed the weights; the loss overflows until
    the scale has come down."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    model = nn.parallel.DistributedDataParallel(
        model, device_ids=[device] if device != "cpu" else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(
        "cuda" if device != "cpu" else "cpu", init_scale=2.0**20, growth_interval=3
    )
    inputs = torch.linspace(-1, 1, 8 * 16).view(8, 16).to(device)
    seen = []
    for step in range(12):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.autocast("cuda" if device != "cpu" else "cpu", torch.float16):
            output = model(inputs)
        loss = output.float().pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if step == 7:  # what a bad batch does
            next(model.parameters()).grad[3, 5] = float("nan")
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        moved = any(not torch.equal(old, new) for old, new in zip(before, model.parameters()))
        seen.append([scaler.get_scale(), moved, bool(torch.isfinite(norm))])
    return seen


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    result = {"cuda": train(f"cuda:{torch.cuda.current_device()}"), "cpu": train("cpu")}
    sys.stdout.write("SCALES " + json.dumps(result) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
