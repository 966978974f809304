"""A small job for tests of sweeps: one rank, six steps. `--weights` in MiB; `--fail` ends it."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--weights", type=int, default=4)
parser.add_argument("--rows", type=int, default=64)
parser.add_argument("--fail", action="store_true")
options = parser.parse_args()

model = torch.nn.Linear(1024, options.weights << 8, bias=False, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    if options.fail and step == 2:
        raise ValueError("the job's own failure")
    model(torch.zeros(options.rows, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
