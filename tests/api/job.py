"""A small job for tests of the Python API: one rank with two optimizer steps and more on a simulated GPU,
without torchrun."""

import os
import sys

import torch

assert os.environ.get("API_TEST", "") == (sys.argv[1] if len(sys.argv) > 1 else "")
model = torch.nn.Linear(512, 512, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    model(torch.zeros(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print("trained")
